"""The exact filter: a predicate compiled for the types of a file's columns and evaluated on Arrow arrays.

The results are those of ``pyarrow.dataset`` for the same expression, null and NaN rules included. pyarrow's kernels
compare literals that the column's type holds exactly (a few microseconds); pyarrow's expression engine, whose implicit
casts then decide, evaluates all other atoms. Dictionary arrays are evaluated on their dictionaries. A predicate on a
list is true of a row if it is true of one element.

``fold_constants`` simplifies a predicate for a file with constant columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from asyncpq.checkpoints import checkpoint, paused
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import constant_array, is_list, null_scalar, plain_array, plain_scalar
from asyncpq.decoding.expression_engine import (
    COMPARE,
    EngineAtom,
    Kernel,
    any_element,
    in_slices,
    tests_nan,
    text_kernel,
    words_kernel,
)
from asyncpq.decoding.paths import struct_path, top_level
from asyncpq.decoding.typed_literals import (
    Convert,
    between_values,
    converter,
    exact_array,
    exact_scalar,
    lacks_kernels,
    storage_type,
    storage_values,
)
from asyncpq.errors import ColumnNotFoundError, PredicateTypeError, UsageError, nearest_column
from asyncpq.expressions import Expression, FunctionTest, VariantTest, columns, simplify, tree
from asyncpq.expressions.scalars import Scalar, show
from asyncpq.records import dataclass

_NULL = null_scalar(pa.bool_())
Columns: TypeAlias = Mapping[str, "pa.Array | pa.ChunkedArray"]
Evaluate: TypeAlias = Callable[[Columns], Any]

_FEW_KEYS = 4
_PERHAPS_NO_KEYS = frozenset({type(None), float, Decimal})  # null and NaN, which match nothing
_SEARCHED_VALUES = 256  # for each key: so many sorted values are searched, fewer hashed
_STRINGS = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})
_FEW_LITERALS = 16  # an atom with more is not kept
_ATOM_COST = 1 / 16  # the time of a kernel's call is that of decoding some thousand bytes
_WORD_STEPS = 4  # for each word, which is searched in any case of its letters
_PYTHON_STEPS = 16  # of kernels that look at each value in Python


@dataclass(slots=True, eq=False)
class Filter:
    """A predicate compiled for columns of known types by :func:`compile_filter`.

    :meth:`mask` needs the columns in the attribute ``columns``, by their names in the schema. ``engine_atoms`` are the
    comparisons that pyarrow's engine evaluates, which is slower. ``cost`` is about how many times as long as the
    decoding of its columns the evaluation takes, at most; 1 for few atoms that are no patterns. ``num_hashed`` is how
    many literals each evaluation puts into hash tables first.
    """

    expression: Expression
    _evaluate: Evaluate
    columns: tuple[str, ...]
    engine_atoms: tuple[tree.Atom, ...]
    cost: int
    num_hashed: int = 0

    def mask(self, columns: Columns, num_rows: int) -> pa.BooleanArray:
        """Return a mask of the rows: true where a row matches, false or null where it does not.

        Each of ``columns`` has ``num_rows`` values of the schema's type, perhaps dictionary-encoded. Raises
        PredicateTypeError if pyarrow's implicit cast fails on a value.
        """
        mask = self._evaluate(columns)
        if isinstance(mask, pa.Scalar):
            mask = pa.repeat(mask, num_rows)
        elif isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        if len(mask) != num_rows:
            raise UsageError(f"the filter's columns have {len(mask)} rows, expected {num_rows}")
        return mask


def compile_filter(expr: Expression, schema: pa.Schema | Mapping[str, pa.DataType]) -> Filter:
    """Compile ``expr`` for the columns' types.

    ``a.b`` names the key ``a.b`` of the schema if there is one, else the field ``b`` of the struct column ``a``. Raises
    ColumnNotFoundError for a column that is not in ``schema``, PredicateTypeError for a column that cannot be compared
    with a literal, or is inside a list or map.
    """
    return FilterCompiler(schema).compile(expr)


def column_type(name: str, schema: pa.Schema | Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the type of the column or struct leaf ``name``. Raises the errors of :func:`compile_filter`."""
    return _Column(name, _types(schema)).type


def _types(schema: pa.Schema | Mapping[str, pa.DataType]) -> Mapping[str, pa.DataType]:
    return {field.name: field.type for field in schema} if isinstance(schema, pa.Schema) else schema


def _missing(name: str, types: Mapping[str, pa.DataType]) -> ColumnNotFoundError:
    hint = nearest_column(name, list(types))
    return ColumnNotFoundError("the filter names a column that does not exist", column=name, hint=hint)


class _Column:
    """A column that the filter names: its type, the name of its array (``key``), and its path inside that array."""

    __slots__ = ("key", "name", "path", "type")

    def __init__(self, name: str, types: Mapping[str, pa.DataType]) -> None:
        self.name = name
        key = top_level(types, name)
        if key is None:
            raise _missing(name, types)
        self.key = key
        self.path = struct_path(types[self.key], name[len(self.key) + 1 :]) if self.key != name else []
        self.type = types[self.key]
        for child in self.path:
            storage = self.type.storage_type if isinstance(self.type, pa.BaseExtensionType) else self.type
            if pa.types.is_nested(storage) and not isinstance(storage, pa.StructType):
                raise PredicateTypeError(
                    f"{name!r} is inside a list or map and has several values per row",
                    column=name,
                    hint="Filter by columns or by leaves of structs.",
                )
            if not isinstance(self.type, pa.StructType) or self.type.get_field_index(child) < 0:
                raise _missing(name, types)
            self.type = self.type.field(child).type
        if isinstance(self.type, pa.JsonType) or lacks_kernels(self.type):  # pyarrow compares the text of plain strings
            self.type = storage_type(self.type)

    def get(self, columns: Columns) -> Any:
        array = columns[self.key]
        for child in self.path:
            array = pc.struct_field(array, child)
        return array


def _comparable_keys(expr: tree.KeyIn) -> tuple[Scalar, ...]:
    if expr.types.isdisjoint(_PERHAPS_NO_KEYS):
        return expr.values
    return tuple([value for value in expr.values if value is not None and value == value])


def _key_array(keys: Sequence[Scalar], type_: pa.DataType) -> tuple[pa.Array, list[Scalar]]:
    """Return what :func:`exact_array` returns for ``keys``. If a key is 0.0 or -0.0, the array has both."""
    held, others = exact_array(keys, type_)
    if pa.types.is_floating(type_) and any(type(key) in (int, float) and key == 0 for key in keys):
        held = pa.concat_arrays([held, plain_array([0.0, -0.0], type_)])
    return held, others


_Compared: TypeAlias = dict[str, "tuple[_Column, pa.DataType, Convert | None]"]


class FilterCompiler:
    """Compiles predicates about the same columns. It caches what depends only on the columns' types, so lookups that
    differ only in their keys compute that once. Threads may share it."""

    __slots__ = ("_compared", "types")

    def __init__(self, schema: pa.Schema | Mapping[str, pa.DataType]) -> None:
        self.types: Mapping[str, pa.DataType] = _types(schema)
        self._compared: _Compared = {}

    def compile(self, expr: Expression) -> Filter:
        """Compile a predicate for this compiler's columns, as :func:`compile_filter` does."""
        if isinstance(expr, tree.Comparison) and (known := self._compared.get(expr.column)) is not None:
            column, type_, convert = known  # as of most lookups
            scalar = None if convert is None else exact_scalar(expr.value, type_, convert)
            if scalar is not None:
                compare = COMPARE[tree.MIRRORED[expr.op]]
                evaluate = _on_values(column, lambda values: compare([scalar, values]))
                return Filter(expr, evaluate, (column.key,), (), 1)
        compiler = _Compiler(self.types, self._compared)
        evaluate = compiler.compile(expr)
        keys, engine_atoms = tuple(compiler.keys), tuple(compiler.engine_atoms)
        return Filter(expr, evaluate, keys, engine_atoms, int(1 + compiler.cost), compiler.num_hashed)


class _Compiler:
    def __init__(self, types: Mapping[str, pa.DataType], compared: _Compared) -> None:
        self._types = types
        self._compared = compared
        self.keys: dict[str, None] = {}
        self.engine_atoms: list[tree.Atom] = []
        self.cost = 0.0
        self.num_hashed = 0

    def compile(self, expr: Expression) -> Evaluate:
        make = self._OF_ATOMS.get(type(expr))
        if make is not None:
            self.cost += _ATOM_COST
            return make(self, expr)
        if isinstance(expr, tree.Constant):
            constant = plain_scalar(expr.value, pa.bool_())
            return lambda _: constant
        if isinstance(expr, tree.Not):
            arg = self.compile(expr.arg)
            return lambda arrays: pc.invert(arg(arrays))
        if isinstance(expr, tree.And):
            return self._junction(expr.args, pc.and_kleene, neutral=True)
        if isinstance(expr, tree.Or):
            return self._junction(expr.args, pc.or_kleene, neutral=False)
        raise PredicateTypeError(f"{expr!r} is a {type(expr).__name__}, expected a predicate")

    def _column(self, name: str) -> _Column:
        column = _Column(name, self._types)
        self.keys[column.key] = None
        return column

    def _junction(self, args: tuple[Expression, ...], join: Callable[[Any, Any], Any], *, neutral: bool) -> Evaluate:
        if not args:
            return self.compile(tree.Constant(neutral))
        compiled = [self.compile(arg) for arg in paused(args)]

        def evaluate(arrays: Columns) -> Any:
            mask = compiled[0](arrays)
            for arg in compiled[1:]:
                checkpoint()
                mask = join(mask, arg(arrays))
            return mask

        return evaluate if len(compiled) > 1 else compiled[0]

    def _comparison(self, expr: tree.Comparison) -> Evaluate:
        known = self._compared.get(expr.column)
        if known is None:
            column = _Column(expr.column, self._types)
            type_ = storage_type(column.type)
            known = self._compared[expr.column] = (column, type_, converter(type_))
        column, type_, convert = known
        self.keys[column.key] = None
        scalar = None if convert is None else exact_scalar(expr.value, type_, convert)
        if scalar is None and expr.value is None and convert is not None:
            scalar = null_scalar(type_)
        op = expr.op
        if scalar is None:
            near = between_values(op, expr.value, type_)
            if isinstance(near, bool):
                result = plain_scalar(near, pa.bool_())
                return _on_values(column, lambda values: pc.if_else(pc.is_valid(values), result, _NULL))
            if near is None and tests_nan(expr) and pa.types.is_float16(type_):  # pyarrow has this test, no comparison
                return _on_values(column, lambda values: pc.invert(pc.is_nan(values)))
            if near is None:
                _refuse_uuid(expr.value, column)
                return self._engine(expr)
            op, scalar = near
        compare = COMPARE[tree.MIRRORED[op]]
        return _on_values(column, lambda values: compare([scalar, values]))

    def _membership(self, expr: tree.In) -> Evaluate:
        column = self._column(expr.column)
        type_ = storage_type(column.type)
        held, others = expr.derived(("array", type_), lambda: exact_array(expr.values, type_))
        others = [value for value in others if between_values("==", value, type_) is not False]
        if others or converter(type_) is None:
            for value in others:
                _refuse_uuid(value, column)
            return self._engine(expr)
        with_null = None in expr.values
        value_set = pa.concat_arrays([held, pa.nulls(1, held.type)]) if with_null else held
        self.num_hashed += len(held)
        return _on_values(column, lambda values: _members(values, value_set), null=with_null)

    def _keys(self, expr: tree.KeyIn) -> Evaluate:
        column = self._column(expr.column)
        type_ = storage_type(column.type)
        keys = expr.derived(("keys",), lambda: _comparable_keys(expr))
        if len(keys) <= 1 or converter(type_) is None:
            return self.compile(tree.Or(tuple(tree.Comparison(expr.column, "==", key) for key in keys)))
        held, others = expr.derived(("array of keys", type_), lambda: _key_array(keys, type_))
        self.num_hashed += len(held)

        few = list(held) if _is_plain(held.type) and len(held) <= _FEW_KEYS else []

        def is_key(values: Any) -> Any:
            if few:  # faster than a hash table
                return reduce(pc.or_, [pc.equal(values, key) for key in few])
            member = _members(values, held)
            return member if values.null_count == 0 else pc.if_else(pc.is_valid(values), member, _NULL)

        evaluate = _on_values(column, is_key)
        others = [value for value in others if between_values("==", value, type_) is not False]
        if not others:
            return evaluate
        rest = self.compile(tree.Or(tuple(tree.Comparison(expr.column, "==", key) for key in others)))
        return lambda arrays: pc.or_kleene(evaluate(arrays), rest(arrays))

    def _is_null(self, expr: tree.IsNull) -> Evaluate:
        column = self._column(expr.column)
        if isinstance(column.type, pa.DictionaryType) and expr.nan_is_null:
            return self._engine(expr)
        nan_is_null = expr.nan_is_null

        def evaluate(arrays: Columns) -> Any:
            array = column.get(arrays)
            if nan_is_null and isinstance(array.type, pa.DictionaryType):
                array = array.cast(column.type)
            return pc.is_null(array, nan_is_null=nan_is_null)

        return evaluate

    def _text(self, expr: tree.StartsWith | tree.Contains | tree.Like) -> Evaluate:
        column = self._column(expr.column)
        type_ = storage_type(column.type)
        if type_ not in _STRINGS:
            return self._engine(expr)
        find = text_kernel(expr)
        try:
            find(pa.nulls(1, type_))
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise PredicateTypeError(
                f"{expr}: the text cannot be compared with {column.type}: {error}",
                column=expr.column,
                hint="Use text that is valid UTF-8.",
            ) from error
        if not isinstance(expr, tree.Like):
            self.cost += isinstance(expr, tree.Contains)
            return _on_values(column, find)
        steps = 1 + expr.num_wildcards
        self.cost += steps
        return _on_values(column, in_slices(find, steps))

    def _words(self, expr: tree.HasTokens | tree.HasPhrase) -> Evaluate:
        column = self._column(expr.column)
        if storage_type(column.type) not in (pa.string(), pa.large_string()):
            raise PredicateTypeError(
                f"{expr}: a column of type {column.type} has no words",
                column=expr.column,
                hint="Use this predicate on a column of strings.",
            )
        steps = _WORD_STEPS * len(expr.tokens)
        self.cost += steps
        return _on_values(column, in_slices(words_kernel(expr), steps))

    def _has(self, expr: tree.Has) -> Evaluate:
        column = self._column(expr.column)
        if not is_list(column.type):
            raise PredicateTypeError(
                f"{expr}: the column has the type {column.type}, expected a list",
                column=expr.column,
                hint="Compare a column of single values with ==.",
            )
        elements = _Compiler({expr.column: column.type.value_type}, {})
        equal = elements.compile(tree.Comparison(expr.column, "==", expr.value))
        if elements.engine_atoms:
            self.engine_atoms.append(expr)
        return lambda arrays: any_element(column.get(arrays), lambda values: equal({expr.column: values}))

    def _box(self, expr: tree.IntersectsBox) -> Evaluate:
        from asyncpq.decoding.wkb import box_kernel  # few predicates are about geometries

        column = self._column(expr.column)
        type_ = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
        if storage_type(type_) not in (pa.binary(), pa.large_binary()):
            raise PredicateTypeError(
                f"{expr}: the column has the type {column.type}, expected geometries in well-known binary",
                column=expr.column,
                hint="Use it on a column of WKB. Compare columns of coordinates with >= and <=.",
            )
        self.cost += _PYTHON_STEPS
        return _on_values(column, in_slices(box_kernel(expr), _PYTHON_STEPS))

    def _variant(self, expr: VariantTest) -> Evaluate:
        from asyncpq.decoding.variants import part_type, reading_parts  # few predicates are about variants

        column = self._column(expr.column)
        read = reading_parts(column.type, expr)
        test = self._derived(expr, expr.test, part_type(expr.type))
        self.cost += _PYTHON_STEPS
        find = in_slices(lambda values: test(read(values)), _PYTHON_STEPS)
        return lambda arrays: find(column.get(arrays))

    def _function(self, expr: FunctionTest) -> Evaluate:
        from asyncpq.decoding.expression_engine import compared_test, function_kernel  # few predicates have functions

        column = self._column(expr.column)
        type_, apply = function_kernel(expr, column.type)
        test = self._derived(expr, compared_test(expr), type_)
        self.cost += 1
        return _on_values(column, lambda values: test(apply(values)))

    def _derived(self, expr: tree.DerivedTest, test: tree.Atom, type_: pa.DataType) -> Callable[[Any], Any]:
        """Return ``test`` of ``expr`` as a function of an array of ``type_``, which is made of the column."""
        name = test.column or ""
        inner = _Compiler({name: type_}, {})
        evaluate = inner.compile(test)
        if inner.engine_atoms:
            self.engine_atoms.append(expr)
        self.cost += inner.cost
        return lambda values: evaluate({name: values})

    def _engine(self, expr: tree.Atom) -> Evaluate:
        operands = [self._column(name) for name in columns(expr)]
        atom = EngineAtom(expr, {column.name: column.type for column in operands})
        self.engine_atoms.append(expr)

        def evaluate(arrays: Columns) -> Any:
            values: list[Any] = []
            for column in operands:
                array = column.get(arrays)
                if isinstance(array.type, pa.BaseExtensionType) and not isinstance(column.type, pa.BaseExtensionType):
                    array = array.cast(array.type.storage_type)
                values.append(array if array.type == column.type else array.cast(column.type))
            return atom.evaluate(values)

        return evaluate

    _OF_ATOMS: ClassVar[Mapping[type, Callable[[_Compiler, Any], Evaluate]]] = {
        tree.Comparison: _comparison,
        tree.In: _membership,
        tree.KeyIn: _keys,
        tree.IsNull: _is_null,
        tree.StartsWith: _text,
        tree.Contains: _text,
        tree.Like: _text,
        tree.HasTokens: _words,
        tree.HasPhrase: _words,
        tree.Has: _has,
        tree.IntersectsBox: _box,
        VariantTest: _variant,
        FunctionTest: _function,
        tree.ColumnComparison: _engine,
    }


def _refuse_uuid(value: Scalar, column: _Column) -> None:
    """Raise PredicateTypeError for a UUID: pyarrow 26's ``isin`` accepts it for every type, with random results."""
    if type(value).__name__ == "UUID":
        raise PredicateTypeError(
            f"a UUID, {show(value)}, cannot be compared with {column.type}",
            column=column.name,
            hint="Pass str(value) for a column of text, value.bytes for a binary one.",
        )


def _is_plain(type_: pa.DataType) -> bool:
    """Return whether two values of the type are equal if and only if their bytes are, so that bytes can be compared."""
    return pa.types.is_integer(type_) or pa.types.is_temporal(type_) or type_ in _STRINGS


def _members(values: Any, keys: pa.Array) -> Any:
    """Return a boolean for each value: whether it is among ``keys``."""
    found = _found_sorted(values, keys) if len(values) >= len(keys) * _SEARCHED_VALUES else None
    return pc.is_in(values, value_set=keys) if found is None else found


def _found_sorted(values: Any, keys: pa.Array) -> pa.BooleanArray | None:
    """Do what :func:`_members` does, by searching the sorted values for each key. None if the values are not sorted, or
    have nulls. A hash table would look at each value, which takes 20 times as long."""
    count = len(values)
    if not isinstance(values, pa.Array) or values.type != keys.type or not _is_plain(keys.type):
        return None
    if not count or values.null_count or keys.null_count:
        return None
    ends = pc.take(values, plain_array([0, count // 2, count - 1], pa.int64()))
    for some in (ends, values):  # most columns that are not sorted show it at once
        if pc.greater(some.slice(0, len(some) - 1), some.slice(1)).true_count:
            return None
    bits = bytearray(-(-count // 8))
    starts, stops = (pc.search_sorted(values, keys, side=side).to_pylist() for side in ("left", "right"))
    if sum(stops) - sum(starts) > count // 8:
        return None
    for start, stop in zip(starts, stops, strict=True):
        for row in range(start, stop):
            bits[row >> 3] |= 1 << (row & 7)
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bits)])


def _on_values(column: _Column, kernel: Kernel, *, null: bool | None = None) -> Evaluate:
    """Return a function that runs ``kernel`` on a column's values; for a dictionary array, only on the values in its
    dictionary.

    ``null`` is the kernel's result for a null value.
    """
    key, type_ = column.key, column.type
    if column.path or isinstance(type_, (pa.DictionaryType, pa.BaseExtensionType)):
        return lambda arrays: _on_array(column.get(arrays), kernel, null)

    def evaluate(arrays: Columns) -> Any:
        array = arrays[key]
        return kernel(array) if array.type == type_ else _on_array(array, kernel, null)

    return evaluate


def _on_array(array: Any, kernel: Kernel, null: bool | None) -> Any:
    type_ = array.type
    if isinstance(type_, pa.DictionaryType):
        if isinstance(array, pa.ChunkedArray):
            return pa.chunked_array([_on_array(chunk, kernel, null) for chunk in array.chunks], pa.bool_())
        if len(array.dictionary) > 2 * len(array):
            return _on_array(array.dictionary_decode(), kernel, null)
        mask = pc.take(_on_array(array.dictionary, kernel, null), array.indices)
        return mask if null is None or mask.null_count == 0 else mask.fill_null(null)
    if isinstance(type_, pa.BaseExtensionType) or lacks_kernels(type_):
        if isinstance(array, pa.ChunkedArray):
            return pa.chunked_array([_on_array(chunk, kernel, null) for chunk in array.chunks], pa.bool_())
        return kernel(storage_values(array))
    return kernel(array)


def fold_constants(expr: Expression, constant: Callable[[str], pa.Scalar | None]) -> Expression:
    """Return ``expr`` simplified for a file in which some columns have the same value in all rows.

    ``constant`` returns a column's value; None if its rows differ. A filter selects rows where it is true, so null
    counts as false. Raises PredicateTypeError if pyarrow cannot compare a constant with a literal.
    """
    if type(expr) is tree.Comparison and constant(expr.column) is None:  # as of most lookups
        return expr
    folded = _fold(expr, constant)
    return expr if folded is expr else _true_where(simplify(folded))


def _fold(expr: Expression, constant: Callable[[str], pa.Scalar | None]) -> Expression:
    def known(atom: tree.Atom) -> Expression:
        values = tuple([constant(name) for name in columns(atom)])
        if None in values:
            return atom
        few = len(atom.literals) <= _FEW_LITERALS
        # 0.0 and -0.0 are equal scalars, but differ for some predicates: their texts tell them apart
        return _known(atom, values, tuple(map(_text, values))) if few else _result(atom, values)

    return tree.replace_atoms(expr, known)


def _text(value: pa.Scalar) -> str:
    try:
        return repr(value)
    except (ValueError, OverflowError):  # a date that Python does not have
        return ""


def _result(atom: Expression, values: Sequence[pa.Scalar], _: Sequence[str] = ()) -> tree.Constant:
    """Evaluate a comparison for one value of each of its columns, and return the result as a constant."""
    named = dict(zip(columns(atom), values, strict=True))
    types = {name: value.type for name, value in named.items()}
    arrays = {name: constant_array(value, 1) for name, value in named.items()}
    return tree.Constant(compile_filter(atom, types).mask(arrays, 1)[0].as_py())


_known = functools.lru_cache(maxsize=1024)(_result)  # many files, and many reads, have the same constants


def _true_where(expr: Expression) -> Expression:
    """Return ``expr`` with null constants replaced by false. It selects the same rows, since no NOT is above the
    constants."""
    if isinstance(expr, tree.Constant):
        return tree.Constant(expr.value is True)
    if not isinstance(expr, (tree.And, tree.Or)):
        return expr
    args = tuple([_true_where(arg) for arg in expr.args])
    return simplify(type(expr)(args)) if args != expr.args else expr

"""Evaluate predicates with pyarrow's expression engine; predicates on text, and functions of columns, with kernels.

The engine casts literals and columns implicitly. If a literal is not of its column's type, asyncpq returns the engine's
result. The engine takes about 70 us a call, so the filter calls it only for such comparisons.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import is_list, null_scalar, plain_array, plain_scalar
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import Expression, FunctionTest, columns, tree
from asyncpq.expressions.scalars import Day, Duration, Moment, Scalar, TimeOfDay, Timestamp, days, nanoseconds
from asyncpq.expressions.tokens import tokens

_SHOWN = 3  # leaves of a struct that a hint names
_NULLS = "Of columns of {} only is_null() and is_valid() can be asked."
_LISTS = "Of columns of lists only has(value), is_null() and is_valid() can be asked."
_EXAMPLES: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (lambda type_: isinstance(type_, pa.UuidType), "uuid.UUID(\"...\"), in SQL UUID '...'"),
    (pa.types.is_date, "date.fromisoformat(\"...\"), in SQL DATE '...'"),
    (
        lambda type_: isinstance(type_, pa.TimestampType) and type_.tz is not None,
        "datetime.fromisoformat(\"...\"), in SQL TIMESTAMP WITH TIME ZONE '...', with an offset such as +00:00",
    ),
    (pa.types.is_timestamp, "datetime.fromisoformat(\"...\"), in SQL TIMESTAMP '...'"),
    (pa.types.is_time, "time.fromisoformat(\"...\"), in SQL TIME '...'"),
    (pa.types.is_duration, "timedelta(seconds=...), in SQL INTERVAL '...' SECOND"),
    (pa.types.is_decimal, 'Decimal("...")'),
    (pa.types.is_integer, 'int("...")'),
    (pa.types.is_floating, 'float("...")'),
    (pa.types.is_boolean, "True or False"),
    (lambda type_: type_ in (pa.string(), pa.large_string(), pa.string_view()), "str(...), in SQL text in quotes"),
)
_GIVEN_AS_TEXT: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (lambda type_: isinstance(type_, pa.UuidType), "a UUID"),
    (pa.types.is_date, "a date"),
    (pa.types.is_timestamp, "a timestamp"),
    (pa.types.is_time, "a time"),
)
_SAME_KIND: Mapping[type, tuple[type[Moment], ...]] = {
    Timestamp: (dt.datetime, Timestamp),
    TimeOfDay: (dt.time, TimeOfDay),
    Duration: (dt.timedelta, Duration),
}
_DATES = frozenset({dt.date, Day, type(None)})
CONVERSION_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)
Kernel: TypeAlias = Callable[[Any], Any]
COMPARE: Mapping[str, Callable[[Sequence[Any]], Any]] = {  # of lists of two arrays or scalars
    "==": pc.kernel("equal"),
    "!=": pc.kernel("not_equal"),
    "<": pc.kernel("less"),
    "<=": pc.kernel("less_equal"),
    ">": pc.kernel("greater"),
    ">=": pc.kernel("greater_equal"),
}
_NULL = null_scalar(pa.bool_())
_FALSE = plain_scalar(False, pa.bool_())
_GAP = r"[\x00-/:-@\[-`{-\x7f]"  # ASCII characters that are neither letters nor numbers
_MAX_PATTERN = 10_000  # characters; pyarrow refuses patterns that take much memory
_START = plain_array([0], pa.int64())
_SLICE_STEPS = 1 << 20
_TEXTS: Final = (pa.string(), pa.large_string())
#: The comparisons that a pattern of LIKE becomes, and their text.
_TEXT_OF: Final[Mapping[type, str]] = {
    tree.Comparison: "value",
    tree.Contains: "text",
    tree.Like: "pattern",
    tree.StartsWith: "prefix",
}


def to_pyarrow(expr: Expression, fields: Mapping[str, pc.Expression] | None = None) -> pc.Expression:
    """Translate an expression to a pyarrow expression with the same meaning.

    ``fields`` maps column names to field references; by default dotted names are nested fields. Raises
    PredicateTypeError if pyarrow cannot represent a literal.
    """
    if isinstance(expr, tree.Constant):
        return pc.scalar(pa.scalar(expr.value, pa.bool_()))
    if isinstance(expr, (tree.And, tree.Or)):
        return _join([to_pyarrow(arg, fields) for arg in expr.args], all_of=isinstance(expr, tree.And))
    if isinstance(expr, tree.Not):
        return ~to_pyarrow(expr.arg, fields)
    references = {name: fields[name] if fields else pc.field(*name.split(".")) for name in columns(expr)}
    return _atom_to_pyarrow(expr, references)


def _atom_to_pyarrow(expr: Expression, references: Mapping[str, pc.Expression]) -> pc.Expression:
    if isinstance(expr, tree.ColumnComparison):
        return tree.OPERATORS[expr.op](references[expr.left], references[expr.right])
    (name, field), *_ = references.items()
    if isinstance(expr, tree.IsNull):
        return field.is_null(nan_is_null=expr.nan_is_null)
    if isinstance(expr, (tree.StartsWith, tree.Contains, tree.Like)):
        return text_kernel(expr)(field)
    try:
        if isinstance(expr, tree.Comparison):
            return tree.OPERATORS[expr.op](field, pc.scalar(arrow_scalar(expr.value)))
        if isinstance(expr, tree.In):
            return field.isin(_value_set(expr.values))
        if isinstance(expr, tree.KeyIn):
            joined = (value for value in expr.values if value is not None and value == value)  # not null, not NaN
            keys = [pc.scalar(arrow_scalar(value)) for value in joined]
            return _join([field == key for key in keys], all_of=False)
    except CONVERSION_ERRORS as error:
        raise PredicateTypeError(
            f"{expr}: pyarrow cannot represent the literal: {error}",
            column=name,
            hint="Pass a literal of the column's type.",
        ) from error
    raise PredicateTypeError(
        f"{expr} cannot be translated to a pyarrow expression", hint="Write it with col() and its comparisons."
    )


def _join(args: Sequence[pc.Expression], *, all_of: bool) -> pc.Expression:
    if not args:
        return pc.scalar(all_of)
    return functools.reduce(operator.and_ if all_of else operator.or_, args)


def arrow_scalar(value: Scalar) -> pa.Scalar:
    """Return ``value`` as a scalar of the type that pyarrow infers."""
    if isinstance(value, Day):
        return pa.scalar(value.days, pa.date32())
    if isinstance(value, Timestamp):
        return pa.scalar(value.nanoseconds, pa.timestamp("ns", value.timezone))
    if isinstance(value, TimeOfDay):
        return pa.scalar(value.nanoseconds, pa.time64("ns"))
    if isinstance(value, Duration):
        return pa.scalar(value.nanoseconds, pa.duration("ns"))
    return pa.scalar(_without_zone(value))


def _without_zone(value: Scalar) -> Scalar:
    """Return the value. Raises TypeError for a time of day with a zone, since pyarrow would drop the zone."""
    if isinstance(value, dt.time) and value.tzinfo is not None:
        raise TypeError("a time of day with a time zone cannot be compared: pyarrow's times of day have no zone")
    return value


def _value_set(values: tuple[Scalar, ...]) -> pa.Array:
    if any(isinstance(value, Day) for value in values) and all(type(value) in _DATES for value in values):
        return pa.array([None if value is None else days(value) for value in values], pa.date32())
    fine = next((value for value in values if isinstance(value, (Timestamp, TimeOfDay, Duration))), None)
    if fine is None:
        return pa.array(map(_without_zone, values))
    type_ = arrow_scalar(fine).type
    moments: list[int | None] = []
    for value in values:
        if value is None:
            moments.append(None)
        elif isinstance(value, _SAME_KIND[type(fine)]):
            moments.append(nanoseconds(value))
        else:
            raise TypeError(f"the list mixes {value!r} with values of type {type_}")
    return pa.array(moments, type_)


class EngineAtom:
    """One comparison that pyarrow's engine evaluates on columns of the given ``types``.

    The constructor raises PredicateTypeError if pyarrow cannot compare the column with the literal.
    """

    __slots__ = ("_expression", "_names", "_types", "expr")

    def __init__(self, expr: tree.Atom, types: Mapping[str, pa.DataType]) -> None:
        self.expr: tree.Atom = expr
        self._names = columns(expr)
        self._types = types
        # Positional names, since a column's own name may have dots or occur twice.
        self._expression = to_pyarrow(expr, {name: pc.field(f"c{index}") for index, name in enumerate(self._names)})
        # One null: without any value pyarrow does not compare time zones.
        self.evaluate([pa.nulls(1, types[name]) for name in self._names])

    def evaluate(self, arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.ChunkedArray:
        """Return the comparison's boolean result for each row. ``arrays`` are the columns that it names, in order."""
        import pyarrow.acero as acero  # it loads pyarrow.dataset, which few reads need

        table = pa.table({f"c{index}": array for index, array in enumerate(arrays)})
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        project = acero.Declaration("project", acero.ProjectNodeOptions([self._expression], ["mask"]), [source])
        try:
            return project.to_table(use_threads=False).column(0)
        except pa.ArrowException as error:
            types = [self._types[name] for name in self._names]
            if tests_nan(self.expr):
                raise PredicateTypeError(
                    f"the test for NaN needs a column of floats, but the column has the type {types[0]}",
                    column=self._names[0],
                    hint="Leave is_nan(), in SQL isnan(), out: no other type has NaN.",
                ) from error
            detail = str(error).splitlines()[0]
            pair = re.search(_NO_KERNEL, detail)
            if pair is not None:
                own = [str(type_) for type_ in types]  # others are the literal's: pyarrow makes 5 an int8
                left, right = (name if name in own else re.sub(r"^int\d+$", "integer", name) for name in pair.groups())
                reason = f"values of the type {left} cannot be compared with values of the type {right}"
            else:
                reason = f"cannot be evaluated on {', '.join(map(str, types))}: {detail}"
            reason, cure = _as_text(self.expr, types[0]) or (reason, _hint(self.expr, types))
            raise PredicateTypeError(f"{self.expr}: {reason}", column=self._names[0], hint=cure) from error


#: Matches pyarrow's message for a comparison of two types that it does not have.
_NO_KERNEL = r"'(?:equal|not_equal|less|greater)(?:_equal)?' has no kernel .*?\((\w+(?:\(.*?\))?), (\w+(?:\(.*\))?)\)$"


def tests_nan(expr: tree.Atom) -> bool:
    """Return whether ``expr`` is the comparison of :func:`asyncpq.expressions.tree.is_nan`."""
    return isinstance(expr, tree.Comparison) and expr.op == "<=" and expr.value == math.inf


def _as_text(expr: tree.Atom, type_: pa.DataType) -> tuple[str, str] | None:
    """If ``expr`` compares a UUID, date or time with text, return reason and hint for an error; else None."""
    text = next((value for value in expr.literals if isinstance(value, str)), None)
    example = _example(type_)
    if text is None or not isinstance(expr, (tree.Comparison, tree.In, tree.KeyIn)) or example is None:
        return None
    what = next((name for is_kind, name in _GIVEN_AS_TEXT if is_kind(type_)), None)
    if what is None:
        return None
    return f"{what} is given as text, but the column has the type {type_}", f"Pass {example.replace('...', text)}."


def _hint(expr: tree.Atom, types: Sequence[pa.DataType]) -> str:
    """Return a hint with predicates or literals that work on columns of these types."""
    for name, type_ in zip(columns(expr), types, strict=True):
        type_ = _value_type(type_)
        if isinstance(type_, pa.StructType):
            leaves = ", ".join(f'col("{name}.{child.name}")' for child in list(type_)[:_SHOWN])
            return f"Name leaves of the struct: {leaves}{', ...' if type_.num_fields > _SHOWN else ''}."
        if is_list(type_):
            return _LISTS
        if pa.types.is_nested(type_):
            return _NULLS.format("lists and maps")
        if pa.types.is_float16(type_):
            return "Of columns of halffloat only is_null(), is_valid() and is_nan() can be asked."
        if isinstance(type_, pa.BaseExtensionType) and not isinstance(type_, pa.UuidType):
            return _NULLS.format(str(type_))
    if len(types) > 1:
        return "Compare columns of the same type."
    if isinstance(expr, (tree.StartsWith, tree.Contains, tree.Like)):
        return "Only columns of strings and binary can be asked so."
    if isinstance(types[0], pa.TimestampType) and any(
        isinstance(value, (dt.datetime, Timestamp)) for value in expr.literals
    ):
        if types[0].tz is not None:
            return "Give the datetime a tzinfo, in SQL an offset: the column's values are instants."
        return "Give the datetime no tzinfo, in SQL no offset: the column's values have no time zone."
    example = _example(types[0])
    return f"Give the literal the column's type: {example}." if example else "Give the literal the column's type."


def _example(type_: pa.DataType) -> str | None:
    """Return Python code that makes a literal of the column's type from text; None if the type has no example."""
    return next((text for is_kind, text in _EXAMPLES if is_kind(_value_type(type_))), None)


def _value_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if isinstance(type_, pa.DictionaryType) else type_


def text_kernel(expr: tree.StartsWith | tree.Contains | tree.Like) -> Kernel:
    """Return the function that evaluates a text predicate on an array of strings or binary, or on a pyarrow
    expression."""
    if isinstance(expr, tree.StartsWith):
        return lambda values: pc.starts_with(values, pattern=expr.prefix)
    if isinstance(expr, tree.Contains):
        return lambda values: pc.match_substring(values, pattern=expr.text)
    return lambda values: pc.match_like(values, pattern=expr.pattern)


def in_slices(kernel: Kernel, steps: int) -> Kernel:
    """Return a function that runs ``kernel``, of an array to as many booleans, on slices of an array that take some 20
    ms each, so that the work can stop or pause between them. ``steps``: steps of 20 ns that a byte may take."""

    def sliced(values: Any) -> Any:
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array([sliced(chunk) for chunk in values.chunks], pa.bool_())
        size = values.nbytes * steps
        if size <= _SLICE_STEPS:
            return kernel(values)
        pieces: list[Any] = []
        rows = max(1, len(values) * _SLICE_STEPS // size)
        for start in range(0, len(values), rows):
            checkpoint()
            piece = kernel(values.slice(start, rows))
            pieces += piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece]
        return pa.concat_arrays(pieces)

    return sliced


def words_kernel(expr: tree.HasTokens | tree.HasPhrase) -> Kernel:
    """Return the function that evaluates a predicate on the words of an array of strings.

    pyarrow finds ASCII words between ASCII characters, which is enough for ASCII texts. Other texts in which pyarrow
    finds nothing are tokenized one by one.
    """
    asked = expr.tokens
    if isinstance(expr, tree.HasTokens):
        patterns = [_pattern((token,)) for token in dict.fromkeys(asked)]
        test: Callable[[list[str]], bool] = frozenset(asked).issubset
    else:
        patterns = [_pattern(asked)]
        test = functools.partial(_has_run, list(asked))
    in_ascii = all(map(str.isascii, asked))
    too_long = in_ascii and max(map(len, patterns)) > _MAX_PATTERN

    def kernel(values: Any) -> Any:
        mask = pc.if_else(pc.is_valid(values), plain_scalar(in_ascii and not too_long, pa.bool_()), _NULL)
        for pattern in patterns if in_ascii and not too_long else ():
            if not mask.true_count:  # to compile the others takes longer than to match them
                break
            checkpoint()
            mask = pc.and_(mask, pc.match_substring_regex(values, pattern))
        undecided = pc.is_valid(values) if too_long else pc.invert(pc.string_is_ascii(values))
        undecided = pc.and_not(undecided, mask).fill_null(_FALSE)
        if undecided.true_count:
            # As bytes, since a file may hold strings that are not UTF-8.
            as_bytes = pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary()
            texts = values.filter(undecided).cast(as_bytes).to_pylist()
            answers = [test(tokens(text.decode("utf-8", "replace"))) for text in texts]
            mask = pc.replace_with_mask(mask, undecided, plain_array(answers, pa.bool_()))
        return mask

    return kernel


def _pattern(asked: tuple[str, ...]) -> str:
    """Return a regular expression (RE2) that finds the words ``asked`` one after another, between ASCII characters."""
    return f"(?i:(?:^|{_GAP}){f'{_GAP}+'.join(asked)}(?:{_GAP}|$))"


def _has_run(asked: list[str], words: list[str]) -> bool:
    """Return whether ``asked`` occur in ``words`` as consecutive words."""
    first, size = asked[0], len(asked)
    return any(word == first and words[index : index + size] == asked for index, word in enumerate(words))


def any_element(lists: pa.Array | pa.ChunkedArray, test: Callable[[pa.Array], Any]) -> pa.Array | pa.ChunkedArray:
    """Return, for each row of a list column, whether ``test`` is true for an element; null where the list is null.

    ``test`` maps an array of elements to as many booleans, or to a single boolean for all elements.
    """
    if isinstance(lists, pa.ChunkedArray):
        return pa.chunked_array([any_element(chunk, test) for chunk in lists.chunks], pa.bool_())
    elements = pc.list_flatten(lists)
    mask = test(elements)
    if isinstance(mask, pa.Scalar):
        mask = pa.repeat(mask, len(elements))
    elif isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    valid = pc.is_valid(lists)
    # Elements before each row, and those found among them; null lists have none.
    sizes = pc.if_else(valid, pc.list_value_length(lists).cast(pa.int64()), _START[0])
    bounds = pa.concat_arrays([_START, pc.cumulative_sum(sizes)])
    counts = pa.concat_arrays([_START, pc.cumulative_sum(mask.fill_null(_FALSE).cast(pa.int64()))]).take(bounds)
    mask = pc.not_equal(counts[:-1], counts[1:])
    return mask if lists.null_count == 0 else pc.if_else(valid, mask, _NULL)


def function_type(expr: FunctionTest, type_: pa.DataType) -> pa.DataType:
    """Return the type of the function's results for a column of ``type_``.

    Raises:
        PredicateTypeError: the column's type does not have the function.
    """
    values = type_.value_type if isinstance(type_, pa.DictionaryType) else storage_type(type_)
    if expr.function != "mod" and values in _TEXTS:
        return values
    if expr.function == "mod" and pa.types.is_integer(values):
        return pa.uint64() if values == pa.uint64() else pa.int64()
    needed = "integers" if expr.function == "mod" else "strings"
    raise PredicateTypeError(
        f"{expr}: the column has the type {type_}, expected {needed}",
        column=expr.column,
        hint=f"Use it on a column of {needed}.",
    )


def compared_test(expr: FunctionTest) -> tree.Atom:
    """Return the comparison with the function's results. That of ILIKE has its texts in small letters, by the kernel
    that the column's texts go through: it knows other letters than Python does.

    Raises:
        PredicateTypeError: a text of ILIKE is not valid Unicode.
    """
    if expr.function != "folded":
        return expr.test
    name = _TEXT_OF[type(expr.test)]
    text = getattr(expr.test, name)
    try:
        small = pc.utf8_lower(pa.scalar(text, pa.string())).as_py()
    except UnicodeEncodeError:
        raise PredicateTypeError(f"the text {text!r} of ILIKE is not valid Unicode", column=expr.column) from None
    test: Any = expr.test
    return replace(test, **{name: small})  # type: ignore[no-any-return]


def function_kernel(expr: FunctionTest, type_: pa.DataType) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return the type of the function's results, and the function of an array of ``type_``. Raises the errors of
    :func:`function_type`."""
    result = function_type(expr, type_)
    if expr.function in ("lower", "folded"):
        return result, pc.utf8_lower
    if expr.function == "upper":
        return result, pc.utf8_upper
    divisor = pa.scalar(expr.divisor, result)

    def remainder(values: Any) -> Any:
        whole = values.cast(result)
        return pc.subtract(whole, pc.multiply(pc.divide(whole, divisor), divisor))

    return result, remainder

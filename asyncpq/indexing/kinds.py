"""The kinds of an index that users name: ``Bounds("day")``, ``Keys("user")``. Each defines its index tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from asyncpq.decoding.paths import type_of
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, nearest_column
from asyncpq.expressions.tokens import TOKENIZER, TOKENIZER_VERSION
from asyncpq.indexing.index_model import IndexTable
from asyncpq.indexing.key_encoding import MAX_GRAM_BYTES, element_type, is_indexable
from asyncpq.options import require_whole


class IndexKind(ABC):
    """Base of the kinds of index over the files of a dataset, such as :class:`Keys`: items of ``kinds`` of
    :meth:`asyncpq.Session.build_index`. Builds know those of :mod:`asyncpq.indexing` only: an index of your own is a
    :class:`FileIndex`.

    Attributes:
        name: the kind's name in reports and messages.
    """

    name: ClassVar[str]

    @abstractmethod
    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return the index tables that a build makes for this kind, for a dataset with the columns ``schema``. Builds
        call it, and you may, to check the columns first.

        Raises:
            ColumnNotFoundError: the dataset lacks a column that the kind names.
            InvalidOptionError: the kind does not support the type of a column.
        """


@dataclass(frozen=True, init=False)
class Bounds(IndexKind):
    """Least and greatest value and the numbers of nulls and NaNs of columns, for each file and row group: for
    comparisons on columns that files or row groups cluster, such as dates. An item of ``kinds`` of
    :meth:`asyncpq.Session.build_index`.

    Args:
        columns: names or dotted paths of columns; none: all columns whose values have an order.
    """

    name: ClassVar[str] = "bounds"
    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", _names(columns))

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return a table of the kind "bounds" for each column. Raises as :meth:`IndexKind.tables`."""
        names = self.columns or tuple(_ordered_leaves(schema))
        return [IndexTable("bounds", (name,)) for name in names if _checked(schema, name, "bounds", lists=False)]


@dataclass(frozen=True, init=False)
class ValueSet(IndexKind):
    """The distinct values of columns, for each file: for ``==`` and ``is_in`` on columns of few values. An item of
    ``kinds`` of :meth:`asyncpq.Session.build_index`.

    Args:
        columns: names or dotted paths of columns.
        max_values: a file with more distinct values is not indexed: every lookup reads it.
    """

    name: ClassVar[str] = "set"
    columns: tuple[str, ...]
    max_values: int

    def __init__(self, *columns: str, max_values: int = 1000) -> None:
        object.__setattr__(self, "columns", _names(columns, at_least=1))
        require_whole("max_values", max_values)
        object.__setattr__(self, "max_values", max_values)

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return a table of the kind "set" for each column. Raises as :meth:`IndexKind.tables`."""
        options = (("max_values", self.max_values),)
        return [IndexTable("set", (name,), options) for name in self.columns if _checked(schema, name, "a set")]


@dataclass(frozen=True, init=False)
class Bloom(IndexKind):
    """Bloom filters of columns, for each file and row group: for ``==`` and ``is_in`` on columns of many values. An
    item of ``kinds`` of :meth:`asyncpq.Session.build_index`.

    Args:
        columns: names or dotted paths of columns.
        false_positives: share of absent values that a filter reports as present, from 0.000001 to 0.5.
    """

    name: ClassVar[str] = "bloom"
    columns: tuple[str, ...]
    false_positives: float

    def __init__(self, *columns: str, false_positives: float = 0.01) -> None:
        object.__setattr__(self, "columns", _names(columns, at_least=1))
        share: Any = false_positives
        if not isinstance(share, (int, float)) or not 1e-6 <= share <= 0.5:
            raise InvalidOptionError(
                f"false_positives must be between 0.000001 and 0.5, not {share!r}",
                hint="Pass a share such as 0.01: of the files without a value, a filter fails to rule out so many.",
            )
        object.__setattr__(self, "false_positives", float(share))

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return a table of the kind "bloom" for each column. Raises as :meth:`IndexKind.tables`."""
        options = (("fpp", self.false_positives),)
        return [
            IndexTable("bloom", (name,), options) for name in self.columns if _checked(schema, name, "Bloom filters")
        ]


@dataclass(frozen=True, init=False)
class NGrams(IndexKind):
    """The n-grams of string columns, for each file: for ``contains`` and ``like``. An item of ``kinds`` of
    :meth:`asyncpq.Session.build_index`.

    Args:
        columns: names or dotted paths of columns.
        n: number of bytes of an n-gram, at most 8.
        max_ngrams: a file with more distinct n-grams is not indexed: every lookup reads it.
    """

    name: ClassVar[str] = "ngram"
    columns: tuple[str, ...]
    n: int
    max_ngrams: int

    def __init__(self, *columns: str, n: int = 3, max_ngrams: int = 200_000) -> None:
        object.__setattr__(self, "columns", _names(columns, at_least=1))
        require_whole("n", n)
        object.__setattr__(self, "n", n)
        if n > MAX_GRAM_BYTES:
            raise InvalidOptionError(
                f"n={n}: n-grams have at most {MAX_GRAM_BYTES} bytes", option="n", hint="Pass n=3, for example."
            )
        require_whole("max_ngrams", max_ngrams)
        object.__setattr__(self, "max_ngrams", max_ngrams)

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return a table of the kind "ngram" for each column. Raises as :meth:`IndexKind.tables`."""
        options = (("max_ngrams", self.max_ngrams), ("n", self.n))
        return [IndexTable("ngram", (name,), options) for name in self.columns if _text(schema, name, "n-grams")]


@dataclass(frozen=True, init=False)
class Keys(IndexKind):
    """A secondary index, from each value of a column to its files and rows: for lookups by columns that are not sorted.
    An item of ``kinds`` of :meth:`asyncpq.Session.build_index`.

    Args:
        columns: names or dotted paths of columns; several make one composite key; its first columns can be looked up
            alone.
        max_postings: maximum number of row ranges that the index has for one value in one file. Beyond it, neighbouring
            ranges are joined, with other rows between them.
    """

    name: ClassVar[str] = "keys"
    columns: tuple[str, ...]
    max_postings: int

    def __init__(self, *columns: str, max_postings: int = 10_000) -> None:
        object.__setattr__(self, "columns", _names(columns, at_least=1))
        require_whole("max_postings", max_postings)
        object.__setattr__(self, "max_postings", max_postings)

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return one table of the kind "keys" for all columns. Raises as :meth:`IndexKind.tables`."""
        for name in self.columns:
            _checked(schema, name, "a key", lists=len(self.columns) == 1)
        return [IndexTable("keys", self.columns, (("max_postings", self.max_postings),))]


@dataclass(frozen=True, init=False)
class Text(IndexKind):
    """The files and rows of each token of a string column, for ``has_tokens`` and ``has_phrase``. An item of ``kinds``
    of :meth:`asyncpq.Session.build_index`.

    Tokens are lower-cased Unicode words (docs/filter-words.md). Reads do not use an index of another tokenizer.

    Args:
        columns: names or dotted paths of columns; each column has its own tokens.
    """

    name: ClassVar[str] = "text"
    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", _names(columns, at_least=1))

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return a table of the kind "text" for each column. Raises as :meth:`IndexKind.tables`."""
        options = (("tokenizer", TOKENIZER), ("version", TOKENIZER_VERSION))
        return [IndexTable("text", (name,), options) for name in self.columns if _text(schema, name, "tokens")]


@dataclass(frozen=True)
class Footers(IndexKind):
    """Copies of the files' footers and page indexes, so that a read fetches data without opening each file first. An
    item of ``kinds`` of :meth:`asyncpq.Session.build_index`."""

    name: ClassVar[str] = "footers"

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return one :class:`IndexTable`, of the kind "footers", whatever ``schema`` is; raises no error."""
        return [IndexTable("footers")]


@dataclass(frozen=True)
class Pages(IndexKind):
    """Page indexes for files that were written without them, so that reads fetch single pages of these files. An item
    of ``kinds`` of :meth:`asyncpq.Session.build_index`."""

    name: ClassVar[str] = "pages"

    def tables(self, schema: pa.Schema) -> list[IndexTable]:
        """Return one :class:`IndexTable`, of the kind "pages", whatever ``schema`` is; raises no error."""
        return [IndexTable("pages")]


def check_kinds(kinds: Any, argument: str) -> None:
    """Raise InvalidOptionError if ``kinds``, the argument called ``argument``, is not a list of index kinds."""
    if not isinstance(kinds, (list, tuple)) or not all(isinstance(kind, IndexKind) for kind in kinds):
        raise InvalidOptionError(
            f"{argument}: must be a list of index kinds",
            option=argument,
            hint="Pass for example [Bounds(), Keys('id')].",
        )


_NAMES_HINT = "Pass names of columns, for example Keys('user')."


def _names(columns: tuple[Any, ...], *, at_least: int = 0) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in columns):
        raise InvalidOptionError(f"the names of columns must be strings, not {columns!r}", hint=_NAMES_HINT)
    if len(columns) < at_least:
        raise InvalidOptionError("an index of this kind needs the name of a column", hint=_NAMES_HINT)
    if len(set(columns)) < len(columns):
        raise InvalidOptionError(f"a column is named twice: {', '.join(columns)}", hint="Name each column once.")
    return columns


def _checked(schema: pa.Schema, name: str, what: str, *, lists: bool = True) -> bool:
    """Return True if the column can be indexed. A list column, indexed by its elements, is allowed only with
    ``lists``. ``what`` names the index in messages. Raises ColumnNotFoundError if the column does not exist,
    InvalidOptionError if its values cannot be keys."""
    type_ = type_of(schema, name)
    if type_ is None:
        hint = nearest_column(name, schema.names)
        raise ColumnNotFoundError("the dataset has no such column", column=name, hint=hint)
    item = element_type(type_)
    if not is_indexable(type_) or (item is not None and (not lists or element_type(item) is not None)):
        hint = None
        if isinstance(type_, pa.StructType):
            hint = f"Name what is in it: {name}.{type_[0].name}." if type_.num_fields else None
        elif item is not None and is_indexable(type_) and element_type(item) is None:
            hint = f"Keys({name!r}), ValueSet({name!r}) and Bloom({name!r}) index the elements of lists."
        raise InvalidOptionError(f"{what} cannot be made of {type_}", column=name, hint=hint)
    return True


def _text(schema: pa.Schema, name: str, what: str) -> bool:
    _checked(schema, name, what, lists=False)
    type_ = type_of(schema, name)
    if type_ is not None and pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if type_ is None or not (
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    ):
        raise InvalidOptionError(
            f"{what} are made of strings, not of {type_of(schema, name)}",
            column=name,
            hint="Use Bounds, ValueSet or Keys.",
        )
    return True


def _ordered_leaves(schema: pa.Schema) -> Sequence[str]:
    """Return the names of the columns, and the dotted paths of the leaves of structs, whose values have an order.
    Leaves with an ambiguous path are left out: a field's name has a dot, or a column's name equals the path."""
    leaves: list[str] = []
    tops = {*schema.names}

    def visit(name: str, type_: pa.DataType) -> None:
        if isinstance(type_, pa.StructType):
            for field in type_:
                path = f"{name}.{field.name}"
                if "." not in field.name and path not in tops:
                    visit(path, field.type)
        elif is_indexable(type_) and element_type(type_) is None:
            leaves.append(name)

    for field in schema:
        visit(field.name, field.type)
    return leaves

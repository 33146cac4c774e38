"""The lake's columns in a single file: matched by Spark's rules for names, with the types that the file stores.

Spark reads a file's values as the requested type by rules of its own, which an exact cast may contradict. So values
keep the file's type until :mod:`asyncpq.spark.types` converts them, and a file is pruned only by conditions that mean
the same for its own values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard

import pyarrow as pa

from asyncpq.datasets.dataset_files import DatasetState, SameRequest
from asyncpq.datasets.file_statistics import type_of
from asyncpq.datasets.model import TableField, View
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.decoding.arrow import children_of, is_list, with_children
from asyncpq.decoding.field_types import field_types
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import AmbiguousColumnError, AsyncpqError
from asyncpq.events import Operation
from asyncpq.expressions import Atom, Expression, columns, implied
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.types.read_conf import ReadConf, find_name
from asyncpq.spark.types.special_types import is_variant

_TEXT = frozenset({pa.string(), pa.large_string()})
_BYTES = frozenset({pa.binary(), pa.large_binary()})
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}  # of the integers of so many bits
_UNITS = {"s", "ms", "us"}


class OwnColumns(NamedTuple):
    """The lake's columns as one file has them.

    Attributes:
        fields: for each column of the lake; None if the file has them as the lake does.
        ambiguous: by column of the lake, the error if several columns of the file match.
    """

    fields: tuple[TableField, ...] | None
    ambiguous: Mapping[str, AmbiguousColumnError]


def own_columns(
    schema: pa.Schema,
    names: Sequence[str],
    types: Sequence[pa.DataType | None],
    skip: Mapping[str, object],
    conf: ReadConf,
) -> OwnColumns:
    """Match the lake's columns to those of a file.

    Args:
        schema: the lake's.
        names: the file's top-level fields.
        types: their types; None where asyncpq has none, which is an error when the field is read.
        skip: columns that are not taken from the file.
    """
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        places.setdefault(conf.key(name), []).append(at)
    own: dict[int, TableField] = {}
    ambiguous: dict[str, AmbiguousColumnError] = {}
    for number, (asked, wanted) in enumerate(zip(schema.names, schema.types, strict=True)):
        found = places.get(conf.key(asked), ())
        if not found or asked in skip:
            continue
        name, kind = names[found[0]], types[found[0]]
        if len(found) == 1 and name == asked and (kind is None or kind.equals(wanted)):
            continue
        try:
            find_name([names[at] for at in found], asked, conf)  # raises if the name is ambiguous
            own[number] = _inside(schema.field(number), name, kind, conf)
        except AmbiguousColumnError as error:
            ambiguous[asked] = error
    if not own:
        return OwnColumns(None, ambiguous)
    return OwnColumns(tuple([own.get(at) or _as_lake(field) for at, field in enumerate(schema)]), ambiguous)


def _as_lake(field: pa.Field) -> TableField:
    return TableField(name=field.name, type=field.type, nullable=field.nullable)


def _own_field(field: pa.Field, name: str, kind: pa.DataType | None, conf: ReadConf) -> TableField:
    """A column of the lake, or a part of one, as the file has it under ``name``, with the parts that the lake has."""
    if kind is None or pa.types.is_null(kind) or kind.equals(field.type):
        return TableField(name=field.name, type=field.type, nullable=field.nullable, names=(name,))
    if is_variant(field.type):  # files shred variants differently, and all parts are needed
        return TableField(name=field.name, type=kind, names=(name,))
    children = _own_children(field.type, kind, conf)
    if children:
        parts = [pa.field(child.name, child.type) for child in children]
        if isinstance(kind, pa.MapType):
            parts[0] = parts[0].with_nullable(False)
        kind = with_children(kind, parts)
    return TableField(name=field.name, type=kind, names=(name,), children=tuple(children))


def _own_children(wanted: pa.DataType, kind: pa.DataType, conf: ReadConf) -> list[TableField]:
    """The parts of a nested column. Empty if the shapes differ: then Spark's rules refuse the column later."""
    if isinstance(wanted, pa.StructType) and isinstance(kind, pa.StructType):
        names = [child.name for child in kind]
        places = [find_name(names, child.name, conf) for child in wanted]
        return [
            _as_lake(child) if at is None else _inside(child, names[at], kind.field(at).type, conf)
            for child, at in zip(wanted, places, strict=True)
        ]
    both_maps = isinstance(wanted, pa.MapType) and isinstance(kind, pa.MapType)
    if both_maps or (is_list(wanted) and is_list(kind)):
        parts = zip(children_of(wanted), children_of(kind), strict=True)
        return [_inside(child, own.name, own.type, conf) for child, own in parts]
    return []


def _inside(field: pa.Field, name: str, kind: pa.DataType | None, conf: ReadConf) -> TableField:
    try:
        return _own_field(field, name, kind, conf)
    except AmbiguousColumnError as error:
        error.column = f"{field.name}.{error.column}"
        raise


# -- conditions -----------------------------------------------------------------------------------


def condition_on(where: Expression | None, lake: pa.Schema, own: pa.Schema, conf: ReadConf) -> Expression | None:
    """The part of a condition that can be evaluated on a file or index with the columns ``own``; None for none.

    The result is true wherever the condition is.

    Args:
        lake: names and types for which the condition was made.
        own: names and types for which it is returned.
    """

    def atom(expr: Atom) -> Expression | None:
        for name in columns(expr):
            asked, have = type_of(lake, name), type_of(own, name)
            if asked is None or have is None:
                return None
            if not _compares(have, asked):
                moved = _moved(expr, have) if _same_moments(have, asked, conf) else None
                if moved is None:
                    return None
                expr = moved
        try:
            return None if compile_filter(expr, own).engine_atoms else expr
        except AsyncpqError:
            return None

    return None if where is None else implied(where, atom)


def sure_part(expr: Expression, is_sure: Callable[[Expression], bool]) -> Expression | None:
    """A condition that is implied by ``expr`` and contains only atoms that ``is_sure`` accepts; None if that is always
    true."""
    return implied(expr, lambda part: part if is_sure(part) else None)


def _moved(atom: Atom, kind: pa.TimestampType) -> Atom | None:
    """The comparison with its UTC timestamps turned into timestamps without zone, or the reverse."""
    moments = [_moment(value, kind) for value in atom.literals]
    if atom.column is None or None in moments:
        return None
    return atom.with_literals(lambda value: _moment(value, kind))


def _moment(value: Any, kind: pa.TimestampType) -> dt.datetime | None:
    if not isinstance(value, dt.datetime):
        return None
    moment = value if value.tzinfo is None else value.astimezone(dt.UTC)
    return moment.replace(tzinfo=None if kind.tz is None else dt.UTC)


def _same_moments(have: pa.DataType, asked: pa.DataType, conf: ReadConf) -> TypeGuard[pa.TimestampType]:
    """Whether one type has a zone and the other has none, which Spark reads as UTC.

    Spark can be set to read INT96 as times of the session's zone; then the answer is False.
    """
    if not isinstance(have, pa.TimestampType) or not isinstance(asked, pa.TimestampType):
        return False
    other_zone = (have.tz is None) is not (asked.tz is None)
    return other_zone and {have.unit, asked.unit} <= _UNITS and not conf.int96_timestamp_conversion


def _compares(have: pa.DataType, asked: pa.DataType) -> bool:
    """Whether Spark reads each value of ``have`` as the equal value of ``asked``, so that comparisons agree."""
    have, asked = _values(have), _values(asked)
    if have.equals(asked):
        return True
    if pa.types.is_integer(have):
        return _integer_compares(have, asked)
    if pa.types.is_float32(have):
        return bool(pa.types.is_float64(asked))
    if pa.types.is_decimal(have) and pa.types.is_decimal(asked):
        more_scale = asked.scale - have.scale
        return bool(more_scale >= 0 and asked.precision - have.precision >= more_scale)
    if isinstance(have, pa.TimestampType) and isinstance(asked, pa.TimestampType):
        return (have.tz is None) is (asked.tz is None) and {have.unit, asked.unit} <= _UNITS
    return (have in _TEXT and asked in _TEXT) or (have in _BYTES and asked in _BYTES)


def _integer_compares(have: pa.DataType, asked: pa.DataType) -> bool:
    if pa.types.is_float64(asked):
        return bool(have.bit_width <= 32 and not have.equals(pa.uint32()))  # Spark reads them as signed integers
    if pa.types.is_decimal(asked):
        return bool(asked.precision - asked.scale >= _DIGITS[have.bit_width])
    if not pa.types.is_integer(asked) or have.bit_width > asked.bit_width:
        return False
    if pa.types.is_signed_integer(have) == pa.types.is_signed_integer(asked):
        return True
    return bool(pa.types.is_signed_integer(asked) and have.bit_width < asked.bit_width)


def _values(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


class SparkRequests:
    """Requests for files whose columns may differ from the lake's: a
    :class:`asyncpq.datasets.dataset_files.FileRequests`.

    Attributes:
        conf: Spark's settings of the read.
        variants: the columns as files have them, if that differs from the dataset.
        needs_jvm_zone: see :class:`asyncpq.spark.reads.planning.LakePlan`.
    """

    def __init__(self, state: DatasetState, ask: ScanRequest, conf: ReadConf) -> None:
        self.variants: list[tuple[TableField, ...]] = []
        self.needs_jvm_zone = False
        self.conf = conf
        self._state = state
        self._ask = ask
        self._same = SameRequest(state, ask)
        self._own: dict[tuple[bytes, str | None], tuple[OwnColumns, ScanRequest]] = {}

    def accept(self, opened: OpenedFile) -> None:
        """See :class:`asyncpq.datasets.dataset_files.FileRequests`."""
        self._same.accept(opened)
        found = self._columns_of(opened)
        if found is not None and found[0].fields is not None:
            opened.file = replace(opened.file, fields=found[0].fields)

    def request(self, opened: OpenedFile) -> ScanRequest:
        """See :class:`asyncpq.datasets.dataset_files.FileRequests`."""
        found = self._columns_of(opened)
        return self._ask if found is None else found[1]

    def may_match(self, opened: OpenedFile) -> bool:
        """See :class:`asyncpq.datasets.dataset_files.FileRequests`."""
        return self.request(opened) is not self._ask or self._same.may_match(opened)

    def _columns_of(self, opened: OpenedFile) -> tuple[OwnColumns, ScanRequest] | None:
        """The columns of a file, and the request for it; None if a table defines the file's columns.

        Raises:
            AmbiguousColumnError: a column that is read matches several columns of the file.
        """
        if self.is_table or opened.file.content is not None:
            return None
        key = opened.schema_bytes
        if key not in self._own:
            own = _own_columns(opened, self._state.columns.schema, self.conf)
            self._own[key] = own, self._request_for(own)
        own, ask = self._own[key]
        if own.ambiguous:
            for name in own.ambiguous.keys() & self._tops():
                raise own.ambiguous[name].locate(url=opened.version.url)
        return own, ask

    def _tops(self) -> set[str]:
        """Names of the top-level columns that are read; may include others."""
        ask, names = self._ask, self._state.columns.schema.names
        if ask.columns is None:
            return set(names)
        asked = {str(name) for name in ask.columns} | set(() if ask.where is None else columns(ask.where))
        return {name for name in names if name in asked or any(one.startswith(f"{name}.") for one in asked)}

    def _request_for(self, own: OwnColumns) -> ScanRequest:
        """The request for a file: the same object if it means the same for the file."""
        ask, lake = self._ask, self._state.columns.schema
        if own.fields is None or ask.where is None:
            return ask
        types = pa.schema([(field.name, field.type) for field in own.fields])
        where, prune = (condition_on(one, lake, types, self.conf) for one in (ask.where, ask.prune))
        same = where == ask.where and prune == ask.prune
        return ask if same else ask._replace(where=where, prune=None if where is None else prune)

    @property
    def is_table(self) -> bool:
        """Whether a table defines the columns of files."""
        return self._state.columns.fields is not None

    def variant(self, fields: tuple[TableField, ...] | None) -> int:
        """Number of these columns in ``variants``, from 1; 0 for the dataset's columns."""
        if fields is None:
            return 0
        for at, known in enumerate(self.variants):
            if known is fields or known == fields:
                return at + 1
        self.variants.append(fields)
        return len(self.variants)


def _own_columns(opened: OpenedFile, schema: pa.Schema, conf: ReadConf) -> OwnColumns:
    version, extensions = opened.version, opened.source.runtime.options.read.extension_types
    opened.share_types(extensions)
    fields = version.metadata.schema.fields

    def types(ordinals: Sequence[int]) -> list[pa.DataType | None]:
        try:
            return [found.arrow.type for found in field_types(version, ordinals, extensions)]
        except AsyncpqError:  # the type is unknown; reading the column raises the error
            return [None] if len(ordinals) == 1 else [kind for at in ordinals for kind in types([at])]

    found = types([field.index for field in fields])
    return own_columns(schema, [field.name for field in fields], found, opened.file.partition, conf)


class NarrowedRequests:
    """Passes on to an index only conditions that mean the same for its column types.

    It is a :class:`asyncpq.datasets.providers.FileProvider`.

    Args:
        known: the columns as the index has them.
        schema: the columns for which conditions are made.
    """

    def __init__(self, source: FileProvider, known: pa.Schema, schema: pa.Schema, conf: ReadConf) -> None:
        self.view: View = source.view
        self._source = source
        self._known = known
        self._schema = schema
        self._conf = conf

    @property
    def description(self) -> str:
        return self._source.description

    @property
    def known(self) -> FileSet | None:
        return self._source.known

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        where, prune = (condition_on(one, self._schema, self._known, self._conf) for one in (ask.where, ask.prune))
        return await self._source.files(
            ask._replace(where=where, prune=prune), operation, scan=scan, allow_stale=allow_stale
        )

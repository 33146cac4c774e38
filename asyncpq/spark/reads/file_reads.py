"""The lake's columns in a single file: matched by Spark's rules for names, with the types that the file stores.

Spark converts a file's values to the requested type by its own rules, which differ from an exact cast. So values keep
the file's type until :mod:`asyncpq.spark.types` converts them. A condition prunes a file or an index only if the
condition selects the same rows before the conversion as after it. Values in paths have Spark's types
(:class:`SparkFiles`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeGuard
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.types import DataType

from asyncpq import DataFile, Expression, TableField, View, errors
from asyncpq.datasets.dataset_files import DatasetState, SameRequest
from asyncpq.datasets.file_statistics import type_of
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.decoding.arrow import children_of, is_list, with_children
from asyncpq.decoding.field_types import field_types
from asyncpq.decoding.filter import compile_filter
from asyncpq.distributed import check_planned_rows, file_sets
from asyncpq.events import Operation
from asyncpq.expressions import Atom, columns, implied, simplify
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.types.calendars import file_dates
from asyncpq.spark.types.partition_types import partition_scalar, unescaped
from asyncpq.spark.types.read_conf import ReadConf, find_name, within
from asyncpq.spark.types.special_types import is_variant

_TEXT = frozenset({pa.string(), pa.large_string()})
_BYTES = frozenset({pa.binary(), pa.large_binary()})
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}  # of the integers of so many bits
_UNITS = {"s", "ms", "us"}


class OwnColumns(NamedTuple):
    """The lake's columns as one file stores them."""

    fields: tuple[TableField, ...] | None  # for each column of the lake; None if the file stores all as the lake does
    ambiguous: Mapping[str, errors.AmbiguousColumnError]  # columns of the lake that match several columns of the file


def own_columns(
    schema: pa.Schema, names: Sequence[str], types: Sequence[pa.DataType | None], skip: Collection[str], conf: ReadConf
) -> OwnColumns:
    """Match the columns of a lake's ``schema`` to the top-level fields of a file, which have ``names`` and ``types``.

    A type is None if asyncpq does not support the field's type; reading that field raises an error. ``skip`` contains
    lake columns whose values do not come from the file (partition columns).
    """
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(conf.key(name), []).append(place)
    own: dict[int, TableField] = {}
    ambiguous: dict[str, errors.AmbiguousColumnError] = {}
    for number, field in enumerate(schema):
        matching = places.get(conf.key(field.name), ())
        if not matching or field.name in skip:
            continue
        name, dtype = names[matching[0]], types[matching[0]]
        if len(matching) == 1 and name == field.name and (dtype is None or dtype.equals(field.type)):
            continue
        try:
            find_name([names[place] for place in matching], field.name, conf)  # raises if the name is ambiguous
            own[number] = _inside(field, name, dtype, conf)
        except errors.AmbiguousColumnError as error:
            ambiguous[field.name] = error
    if not own:
        return OwnColumns(None, ambiguous)
    return OwnColumns(tuple([own.get(at) or _as_lake(field) for at, field in enumerate(schema)]), ambiguous)


def _as_lake(field: pa.Field) -> TableField:
    return TableField(name=field.name, type=field.type, nullable=field.nullable)


def _inside(field: pa.Field, name: str, dtype: pa.DataType | None, conf: ReadConf) -> TableField:
    """Return how to read the lake column ``field``, or a part of one, from a file that stores it as ``name`` with
    the type ``dtype`` (None: unsupported). The children of a nested column come in the order of the lake's type."""
    if dtype is None or pa.types.is_null(dtype) or dtype.equals(field.type):
        return TableField(name=field.name, type=field.type, nullable=field.nullable, names=(name,))
    if is_variant(field.type):  # files shred variants differently, and all parts are needed
        return TableField(name=field.name, type=dtype, names=(name,))
    with within(field.name):
        children = _own_children(field.type, dtype, conf)
    if children:
        parts = [pa.field(child.name, child.type) for child in children]
        if isinstance(dtype, pa.MapType):
            parts[0] = parts[0].with_nullable(False)
        dtype = with_children(dtype, parts)
    return TableField(name=field.name, type=dtype, names=(name,), children=tuple(children))


def _own_children(wanted: pa.DataType, dtype: pa.DataType, conf: ReadConf) -> list[TableField]:
    """Return how to read the children of a nested column from a file that stores it with the type ``dtype``, in the
    order of the lake's type ``wanted``. Empty if the two are not both structs, lists or maps: converting the column
    then raises the error."""
    if isinstance(wanted, pa.StructType) and isinstance(dtype, pa.StructType):
        names = [child.name for child in dtype]
        places = [find_name(names, child.name, conf) for child in wanted]
        return [
            _as_lake(child) if at is None else _inside(child, names[at], dtype.field(at).type, conf)
            for child, at in zip(wanted, places, strict=True)
        ]
    both_maps = isinstance(wanted, pa.MapType) and isinstance(dtype, pa.MapType)
    if both_maps or (is_list(wanted) and is_list(dtype)):
        parts = zip(children_of(wanted), children_of(dtype), strict=True)
        return [_inside(child, own.name, own.type, conf) for child, own in parts]
    return []


# -- conditions -----------------------------------------------------------------------------------


def condition_on(where: Expression | None, lake: pa.Schema, own: pa.Schema, conf: ReadConf) -> Expression | None:
    """Return the part of the condition ``where``, on the columns of ``lake``, that can be evaluated on a file or index
    with the columns ``own``.

    The returned condition is true for all rows for which ``where`` is true. None if no part can be evaluated, or if
    ``where`` is None.
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
        except errors.AsyncpqError:
            return None

    return None if where is None else implied(where, atom)


def _moved(atom: Atom, dtype: pa.TimestampType) -> Atom | None:
    """Return the comparison ``atom`` with its timestamps converted to UTC, or to no zone, as ``dtype`` requires.
    None if it does not compare a single column with timestamps only."""

    def moment(value: Any) -> dt.datetime | None:
        if not isinstance(value, dt.datetime):
            return None
        try:
            in_utc = value if value.tzinfo is None else value.astimezone(dt.UTC)
        except OverflowError:  # the first or last day of Python's years
            return None
        return in_utc.replace(tzinfo=None if dtype.tz is None else dt.UTC)

    if atom.column is None or None in map(moment, atom.literals):
        return None
    return atom.with_literals(moment)


def _same_moments(have: pa.DataType, asked: pa.DataType, conf: ReadConf) -> TypeGuard[pa.TimestampType]:
    """Return whether exactly one of two timestamp types, in the file and in the lake, has a zone, and both denote
    the same moments. Spark reads timestamps without a zone as UTC, unless its settings convert INT96."""
    if not isinstance(have, pa.TimestampType) or not isinstance(asked, pa.TimestampType):
        return False
    other_zone = (have.tz is None) is not (asked.tz is None)
    return other_zone and {have.unit, asked.unit} <= _UNITS and not conf.int96_timestamp_conversion


def _compares(have: pa.DataType, asked: pa.DataType) -> bool:
    """Return whether Spark reads every value of the type ``have`` as an equal value of the type ``asked``."""
    have, asked = (dtype.value_type if isinstance(dtype, pa.DictionaryType) else dtype for dtype in (have, asked))
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


# -- requests for files ---------------------------------------------------------------------------


#: Facts about the files of a plan: each holds for at least one of those that were opened.
NEEDS_JVM_ZONE: Final = "old timestamps depend on the time zone of the JVM"
HAS_OLD_DATES: Final = "dates of the calendar of Spark before 3.0"
STORED_OTHERWISE: Final = "a file stores columns otherwise than the lake has them"


class SparkRequests:
    """Makes the request for each file of a read, because its columns may differ from the lake's.

    Implements :class:`asyncpq.distributed.scan_tasks.PlanRequests`. With ``are_planned``, the files are those of a
    plan: a file that lacks rows of its plan raises ObjectChangedError.
    """

    def __init__(self, state: DatasetState, request: ScanRequest, conf: ReadConf, *, are_planned: bool = False) -> None:
        self.facts: frozenset[str] = frozenset()
        self.conf = conf
        self.is_table: bool = state.columns.fields is not None  # a table defines the columns of files
        self._schema = state.columns.schema
        self._ask = request
        self._are_planned = are_planned
        self._same = SameRequest(state, request)
        self._other = SameRequest(replace(state), request)  # later reads do not get its statistics
        self._own: dict[tuple[bytes, str | None], tuple[OwnColumns, ScanRequest]] = {}

    def accept(self, opened: OpenedFile) -> None:
        """Set ``opened.file.fields`` to the fields as which the file stores the lake's columns. Raises
        AmbiguousColumnError if a column to read matches several columns of the file, and ObjectChangedError if the
        file lacks planned rows."""
        self._same.accept(opened)
        fields = self._columns_of(opened)[0].fields
        if fields is not None:
            opened.file = replace(opened.file, fields=fields)
        if self._are_planned:
            check_planned_rows(opened)

    def planned(self, opened: OpenedFile) -> None:
        """Note whether the file has dates and times of old calendars."""
        dates = file_dates(opened.version.metadata, self.conf)
        if dates.datetime.mode == "LEGACY":
            self.facts |= {HAS_OLD_DATES}
        if any(calendar.mode == "LEGACY" and calendar.zone is None for calendar in (dates.datetime, dates.int96)):
            self.facts |= {NEEDS_JVM_ZONE}

    def request(self, opened: OpenedFile) -> ScanRequest:
        """Return the scan request for a file, with the condition in terms of the columns as the file stores them."""
        return self._columns_of(opened)[1]

    async def may_match(self, opened: OpenedFile) -> bool:
        """Return whether a file may contain matching rows, by its footer; True if its request differs from the
        lake's."""
        own, request = self._columns_of(opened)
        if request is not self._ask:
            return True
        # another condition on the same columns may need its own request for a file that stores them differently
        return await (self._same if own.fields is None else self._other).may_match(opened)

    def _columns_of(self, opened: OpenedFile) -> tuple[OwnColumns, ScanRequest]:
        """Return the lake's columns as stored in a file, and the request for this file."""
        if self.is_table or opened.file.content is not None:
            return OwnColumns(None, {}), self._ask
        key = opened.schema_bytes
        if key not in self._own:
            own = _own_columns(opened, self._schema, self.conf)
            self._own[key] = own, self._request_for(own)
            if own.fields is not None:
                self.facts |= {STORED_OTHERWISE}
        own, request = self._own[key]
        if own.ambiguous:
            for name in own.ambiguous.keys() & self._tops():
                raise own.ambiguous[name].locate(url=opened.version.url)
        return own, request

    def _tops(self) -> set[str]:
        """Return the names of the top-level columns that the request reads; the result may contain a few others."""
        request, names = self._ask, self._schema.names
        if request.columns is None:
            return set(names)
        asked = {str(name) for name in request.columns} | set(() if request.where is None else columns(request.where))
        return {name for name in names if name in asked or any(path.startswith(f"{name}.") for path in asked)}

    def _request_for(self, own: OwnColumns) -> ScanRequest:
        """Return the request for a file: the lake's request itself if the file can evaluate its whole condition."""
        request = self._ask
        if own.fields is None or request.where is None:
            return request
        types = pa.schema([(field.name, field.type) for field in own.fields])
        where, prune = (condition_on(expr, self._schema, types, self.conf) for expr in (request.where, request.prune))
        prune = None if where is None or prune is None else simplify(prune)
        same = where == request.where and prune == request.prune
        return request if same else request._replace(where=where, prune=prune)


def _own_columns(opened: OpenedFile, schema: pa.Schema, conf: ReadConf) -> OwnColumns:
    version, extensions = opened.version, opened.source.runtime.options.read.extension_types
    opened.share_types(extensions)
    fields = version.metadata.schema.fields

    def types(ordinals: Sequence[int]) -> list[pa.DataType | None]:
        try:
            return [found.arrow.type for found in field_types(version, ordinals, extensions)]
        except errors.AsyncpqError:  # the type is unknown; reading the column raises the error
            return [None] if len(ordinals) == 1 else [dtype for at in ordinals for dtype in types([at])]

    names = [field.name for field in fields]
    return own_columns(schema, names, types([field.index for field in fields]), opened.file.partition, conf)


# -- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionTypes:
    """Spark's types of partition columns whose values are parsed from the texts in paths. Picklable."""

    dtypes: tuple[tuple[str, DataType], ...]
    hive: bool  # parse the texts of `key=value` folders; otherwise the texts are asyncpq's partition values


class SparkFiles:
    """The files of another provider, ``source``, with partition values of Spark's types.

    Implements :class:`asyncpq.datasets.providers.FileProvider`. ``schemas`` are the columns of the lake and those of
    the index, which are from when it was built: the index gets only conditions that these columns can evaluate. None:
    it gets all. With ``typed``, the files of ``source`` have Spark's values already.
    """

    def __init__(
        self,
        source: FileProvider,
        conf: ReadConf,
        types: PartitionTypes | None = None,
        *,
        typed: bool = False,
        schemas: tuple[pa.Schema, pa.Schema] | None = None,
    ) -> None:
        self.view: View = source.view
        self.types = types
        self.source = source
        self._conf = conf
        self._is_typed = typed
        self._dtypes = {} if types is None else dict(types.dtypes)
        self._schemas = schemas
        self._values: dict[str, dict[str, Any]] = {}

    @property
    def index(self) -> Any:
        """The index that prunes files before they are opened. None if there is no index, or if its columns have other
        types than the lake's."""
        return self.source.index if self._schemas is None else None

    @property
    def description(self) -> str:
        return self.source.description

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]:
        return self.source.indexes

    @property
    def known(self) -> FileSet | None:
        return None if self._dtypes else self.source.known

    async def files(
        self, request: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        may_be_stale = allow_stale and not self._dtypes  # the renewal would have other values
        found = await self.source.files(self._request(request), operation, scan=scan, allow_stale=may_be_stale)
        return self._with_values(found)

    async def sets(self, request: ScanRequest, operation: Operation, *, most_files: int) -> AsyncGenerator[FileSet]:
        """Yield the files of :meth:`files` as :func:`file_sets` does."""
        async with aclosing(file_sets(self.source, self._request(request), operation, most_files)) as sets:
            async for found in sets:
                yield self._with_values(found)

    def _with_values(self, found: FileSet) -> FileSet:
        if self._is_typed or not self._dtypes:
            return found
        return found._replace(files=[self._typed(file) for file in found.files])

    def _request(self, request: ScanRequest) -> ScanRequest:
        where, prune = self._asked(request.where), self._asked(request.prune)
        return request._replace(where=where, prune=None if where is None or prune is None else simplify(prune))

    def _asked(self, where: Expression | None) -> Expression | None:
        """Return the part of the condition ``where`` that ``source`` can evaluate with its own partition values and
        columns."""
        if where is not None and self._dtypes:
            where = implied(where, lambda atom: atom if self._dtypes.keys().isdisjoint(columns(atom)) else None)
        return where if self._schemas is None else condition_on(where, *self._schemas, self._conf)

    def _typed(self, file: DataFile) -> DataFile:
        folder = file.url.rpartition("/")[0]
        if self.types is not None and folder not in self._values:
            texts = _path_texts(file, self._dtypes, self._conf, hive=self.types.hive)
            scalars = {
                name: partition_scalar(texts.get(name), dtype, self._conf) for name, dtype in self._dtypes.items()
            }
            self._values[folder] = {name: scalar.as_py() for name, scalar in scalars.items()}
        return replace(file, partition={**file.partition, **self._values[folder]})


def narrowed_for_index(
    source: FileProvider, schema: pa.Schema, partitions: Collection[str], conf: ReadConf
) -> FileProvider:
    """Return ``source``, or a wrapper that passes only some conditions to an index whose column types differ from the
    lake's ``schema``. Types of the columns ``partitions``, which come from paths, are not compared."""
    index = source.index
    if index is None:
        return source
    known = index.manifest.schema
    columns = [field for field in schema if field.name not in partitions and field.name in known.names]
    if all(field.type.equals(known.field(field.name).type) for field in columns):
        return source
    inner, types = (source.source, source.types) if isinstance(source, SparkFiles) else (source, None)
    return SparkFiles(inner, conf, types, schemas=(schema, known))


async def all_files(state: DatasetState, operation: Operation) -> AsyncGenerator[Sequence[DataFile]]:
    """Yield all files of a dataset, those of its last listing or of a new one if there was none, as
    :func:`file_sets` does."""
    known = state.source.known
    if known is not None and known.files:
        yield known.files
        return
    async with aclosing(file_sets(state.source, ScanRequest(), operation)) as sets:
        async for found in sets:
            yield found.files


def texts_in_paths(
    files: Sequence[DataFile], names: Collection[str], conf: ReadConf, *, hive: bool
) -> dict[str, set[str | None]]:
    """Return the texts of each partition column in all paths, with their ``%xx`` escapes. With ``hive``, texts are
    parsed from ``key=value`` folders; otherwise they are asyncpq's partition values."""
    folders = {file.url.rpartition("/")[0]: file for file in files}
    texts: dict[str, set[str | None]] = {name: set() for name in names}
    for file in folders.values():
        for name, text in _path_texts(file, names, conf, hive=hive).items():
            texts[name].add(text)
    return texts


def _path_texts(file: DataFile, names: Collection[str], conf: ReadConf, *, hive: bool) -> dict[str, str | None]:
    if not hive:
        values = ((name, file.partition.get(name)) for name in names)
        return {name: None if text is None else text.replace("%", "%25") for name, text in values}
    texts: dict[str, str | None] = {}
    by_key = {conf.key(name): name for name in names}
    for segment in reversed(file.url.split("/")[:-1]):  # folders above the dataset's root may repeat a name
        key, equals, text = segment.partition("=")
        spelled = unquote(key) if equals else ""
        name = by_key.get(conf.key(spelled), "")
        if name in file.partition and name not in texts:
            if unescaped(key) != spelled:
                raise errors.UnsupportedFeatureError(
                    f"from the folder {segment!r}, Spark reads the column name {unescaped(key)!r}, asyncpq {spelled!r}",
                    column=name,
                    hint="Rename the folder, or read it with spark.read.parquet.",
                )
            texts[name] = text
    return texts

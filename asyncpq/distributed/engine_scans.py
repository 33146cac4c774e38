"""Scans of an engine with rules of its own, for files, values in paths, names that differ in case, and types.

An engine may convert a file's values to the dataset's types by rules that differ from an exact cast. So values keep the
file's types until the engine's own conversion. A condition prunes a file, or an index, only by the comparisons that
have the same result before the conversion as after it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeGuard, runtime_checkable

import pyarrow as pa

from asyncpq.dataset import Dataset, state_of
from asyncpq.datasets.dataset_files import DatasetState, SameRequest
from asyncpq.datasets.listing import parse_target
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileProvider, FileSet, ListedFiles, WrappedFiles
from asyncpq.decoding.arrow import children_of, is_list, with_children
from asyncpq.decoding.casts import inside
from asyncpq.decoding.field_types import field_types
from asyncpq.decoding.filter import compile_filter
from asyncpq.decoding.paths import type_of
from asyncpq.distributed.footers import FooterFacts, ReadFooter, read_footers
from asyncpq.distributed.scan_tasks import TaskScan, check_planned_rows
from asyncpq.errors import AmbiguousColumnError, AsyncpqError, located
from asyncpq.events import Operation
from asyncpq.expressions import Atom, Expression, columns, implied, simplify
from asyncpq.objects.runtime import runtime_of
from asyncpq.scan.executor import UnitRows
from asyncpq.scan.request import ScanRequest
from asyncpq.session import Session

_TEXT: Final = frozenset({pa.string(), pa.large_string()})
_BYTES: Final = frozenset({pa.binary(), pa.large_binary()})
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}  # of the integers of so many bits
_UNITS: Final = {"s", "ms", "us"}

#: A fact about the files of a plan, which holds for at least one of those that were opened.
STORED_OTHERWISE: Final = "a file stores columns otherwise than the dataset has them"


@dataclass(frozen=True, kw_only=True)
class EngineRules:
    """Rules by which an engine matches the columns of files to those of a dataset. Picklable and hashable. ``rules`` of
    :class:`EngineScan` and :class:`EngineFiles` takes them. asyncpq calls its methods, on the planner and on workers;
    a subclass may override all of them but :meth:`find`.

    Attributes:
        case_sensitive: whether names that differ in case are different columns.
        ambiguous_hint: a sentence on what the user can do if several columns of a file match one name: ``hint`` of the
            AmbiguousColumnError; None for none. A subclass may set it.
    """

    case_sensitive: bool = True
    ambiguous_hint: ClassVar[str | None] = None

    @property
    def zoneless_is_utc(self) -> bool:
        """Whether a file's timestamps without a time zone may be read as a column of UTC timestamps, and the other way
        round. False in this class."""
        return False

    def key(self, name: str) -> str:
        """Return the form of a column name that is compared: equal for names of the same column. In this class the
        name, in lower case unless ``case_sensitive``."""
        return name if self.case_sensitive else name.lower()

    def find(self, names: Sequence[str], wanted: str) -> int | None:
        """Return the position of the column ``wanted`` in ``names``; None if no column matches. Raises
        AmbiguousColumnError if several do, which differ only in case."""
        key = self.key(wanted)
        places = [place for place, name in enumerate(names) if self.key(name) == key]
        if len(places) > 1:
            spellings = ", ".join(repr(names[place]) for place in places)
            raise AmbiguousColumnError(
                f"several columns of the file match this name: {spellings}", column=wanted, hint=self.ambiguous_hint
            )
        return places[0] if places else None

    def is_whole(self, dtype: pa.DataType) -> bool:
        """Return whether a nested column of this type in the dataset is read with all fields that a file has in it, for
        :meth:`EngineScan.converter`; if not, only with those of the type. False in this class."""
        return False

    def of_file(self, footer: FooterFacts) -> Hashable:
        """Return what :meth:`EngineScan.converter` must know of a file beside its types, such as its writer: a hashable
        and picklable value, equal for files that are converted alike. None in this class."""
        return None

    def facts(self, footer: FooterFacts) -> frozenset[str]:
        """Return facts about a file, as texts that the engine defines; :attr:`ScanTasks.facts` is the union of those of
        all files with rows to read. Empty in this class."""
        return frozenset()


class OwnColumns(NamedTuple):
    """The dataset's columns as one file stores them.

    Attributes:
        fields: for each column of the dataset, what the file has of it; None if the file has all as the dataset.
        ambiguous: the errors of the dataset's columns that match several columns of the file, by name.
    """

    fields: tuple[TableField, ...] | None
    ambiguous: Mapping[str, AmbiguousColumnError]


def condition_on(rules: EngineRules, where: Expression | None, schema: pa.Schema, own: pa.Schema) -> Expression | None:
    """Return the part of the condition ``where``, on the columns of ``schema``, that can be evaluated on a file or
    index with the columns ``own``.

    The result is true for all rows for which ``where`` is true. None if no part can be, or ``where`` is None.
    """

    def atom(expr: Atom) -> Expression | None:
        for name in columns(expr):
            asked, have = type_of(schema, name), type_of(own, name)
            if asked is None or have is None:
                return None
            if not _compares(have, asked):
                moved = _moved(expr, have) if rules.zoneless_is_utc and _same_moments(have, asked) else None
                if moved is None:
                    return None
                expr = moved
        try:
            return None if compile_filter(expr, own).engine_atoms else expr
        except AsyncpqError:
            return None

    return None if where is None else implied(where, atom)


def own_columns(
    rules: EngineRules,
    schema: pa.Schema,
    names: Sequence[str],
    types: Sequence[pa.DataType | None],
    skip: Collection[str],
) -> OwnColumns:
    """Match the columns of a dataset's ``schema`` to the top-level fields of a file, given by ``names`` and
    ``types``.

    A type is None if asyncpq does not support the field's type; reading that field raises an error. ``skip``
    contains columns whose values do not come from the file (partition columns). The result names the file's field
    of each column.
    """
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(rules.key(name), []).append(place)
    own: dict[int, TableField] = {}
    ambiguous: dict[str, AmbiguousColumnError] = {}
    for number, known in enumerate(schema):
        matching = places.get(rules.key(known.name), ())
        if not matching or known.name in skip:
            continue
        name, dtype = names[matching[0]], types[matching[0]]
        if len(matching) == 1 and name == known.name and (dtype is None or dtype.equals(known.type)):
            continue
        try:
            rules.find([names[place] for place in matching], known.name)  # raises if the name is ambiguous
            own[number] = _inside(rules, known, name, dtype)
        except AmbiguousColumnError as error:
            ambiguous[known.name] = error
    if not own:
        return OwnColumns(None, ambiguous)
    return OwnColumns(tuple([own.get(at) or _as_known(known) for at, known in enumerate(schema)]), ambiguous)


def _inside(rules: EngineRules, known: pa.Field, name: str, dtype: pa.DataType | None) -> TableField:
    """Return how to read the column ``known``, or a part of one, from a file that stores it as ``name`` with the
    type ``dtype`` (None: unsupported). The children of a nested column come in the order of the dataset's type."""
    if dtype is None or pa.types.is_null(dtype) or dtype.equals(known.type):
        return TableField(name=known.name, type=known.type, nullable=known.nullable, names=(name,))
    if rules.is_whole(known.type):
        return TableField(name=known.name, type=dtype, names=(name,))
    try:
        children = _own_children(rules, known.type, dtype)
    except AmbiguousColumnError as error:
        inside(error, known.name)
        raise
    if children:
        parts = [pa.field(child.name, child.type) for child in children]
        if isinstance(dtype, pa.MapType):
            parts[0] = parts[0].with_nullable(False)
        dtype = with_children(dtype, parts)
    return TableField(name=known.name, type=dtype, names=(name,), children=tuple(children))


def _own_children(rules: EngineRules, wanted: pa.DataType, dtype: pa.DataType) -> list[TableField]:
    """Return how to read the children of a nested column from a file that stores it with the type ``dtype``, in the
    order of the dataset's type ``wanted``. Empty if the two are not both structs, lists or maps: converting the
    column then raises the error."""
    if isinstance(wanted, pa.StructType) and isinstance(dtype, pa.StructType):
        names = [child.name for child in dtype]
        places = [rules.find(names, child.name) for child in wanted]
        return [
            _as_known(child) if at is None else _inside(rules, child, names[at], dtype.field(at).type)
            for child, at in zip(wanted, places, strict=True)
        ]
    both_maps = isinstance(wanted, pa.MapType) and isinstance(dtype, pa.MapType)
    if both_maps or (is_list(wanted) and is_list(dtype)):
        parts = zip(children_of(wanted), children_of(dtype), strict=True)
        return [_inside(rules, child, own.name, own.type) for child, own in parts]
    return []


def _as_known(known: pa.Field) -> TableField:
    return TableField(name=known.name, type=known.type, nullable=known.nullable)


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


def _same_moments(have: pa.DataType, asked: pa.DataType) -> TypeGuard[pa.TimestampType]:
    """Return whether exactly one of two timestamp types, in the file and in the dataset, has a zone, and both denote
    the same moments if that without a zone is in UTC."""
    if not isinstance(have, pa.TimestampType) or not isinstance(asked, pa.TimestampType):
        return False
    return (have.tz is None) is not (asked.tz is None) and {have.unit, asked.unit} <= _UNITS


def _compares(have: pa.DataType, asked: pa.DataType) -> bool:
    """Return whether engines read every value of the type ``have`` as an equal value of the type ``asked``."""
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
        # some engines, such as Spark, read unsigned integers as signed ones
        return bool(have.bit_width <= 32 and not have.equals(pa.uint32()))
    if pa.types.is_decimal(asked):
        return bool(asked.precision - asked.scale >= _DIGITS[have.bit_width])
    if not pa.types.is_integer(asked) or have.bit_width > asked.bit_width:
        return False
    if pa.types.is_signed_integer(have) == pa.types.is_signed_integer(asked):
        return True
    return bool(pa.types.is_signed_integer(asked) and have.bit_width < asked.bit_width)


# -- requests for files ---------------------------------------------------------------------------


class EngineRequests:
    """Makes the request for each file of a read, whose columns may differ from the dataset's: a
    :class:`asyncpq.distributed.scan_tasks.PlanRequests`.

    With ``are_planned``, the files are those of a plan: a file that lacks rows of its plan raises ObjectChangedError.
    """

    def __init__(
        self, state: DatasetState, request: ScanRequest, rules: EngineRules, *, are_planned: bool = False
    ) -> None:
        self.facts: frozenset[str] = frozenset()
        self._rules = rules
        self._is_table = state.columns.fields is not None  # a table defines the columns of files
        self._schema = state.columns.schema
        self._ask = request
        self._are_planned = are_planned
        self._same = SameRequest(state, request)
        self._other = SameRequest(replace(state), request)  # later reads do not get its statistics
        self._own: dict[tuple[bytes, str | None], tuple[OwnColumns, ScanRequest]] = {}

    def accept(self, opened: OpenedFile) -> None:
        """Set ``opened.file.fields`` to the fields as which the file stores the dataset's columns. Raises
        AmbiguousColumnError if a column to read matches several columns of the file, and ObjectChangedError if the
        file lacks planned rows."""
        self._same.accept(opened)
        fields = self._columns_of(opened)[0].fields
        if fields is not None:
            opened.file = replace(opened.file, fields=fields)
        if self._are_planned:
            check_planned_rows(opened)

    def planned(self, opened: OpenedFile) -> None:
        """Note the engine's facts of the file."""
        self.facts |= self._rules.facts(FooterFacts(opened.version.metadata))

    def request(self, opened: OpenedFile) -> ScanRequest:
        """Return the scan request for a file, with the condition in terms of the columns as the file stores them."""
        return self._columns_of(opened)[1]

    async def may_match(self, opened: OpenedFile) -> bool:
        """Return whether a file may contain matching rows, by its footer; True if its request differs from the
        dataset's."""
        own, request = self._columns_of(opened)
        if request is not self._ask:
            return True
        # another condition on the same columns may need its own request for a file that stores them differently
        return await (self._same if own.fields is None else self._other).may_match(opened)

    def _columns_of(self, opened: OpenedFile) -> tuple[OwnColumns, ScanRequest]:
        """Return the dataset's columns as stored in a file, and the request for this file."""
        if self._is_table or opened.file.content is not None:
            return OwnColumns(None, {}), self._ask
        key = opened.schema_bytes
        if key not in self._own:
            own = self._own_columns(opened)
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
        """Return the request for a file: the dataset's request itself if the file can evaluate its whole condition."""
        request = self._ask
        if own.fields is None or request.where is None:
            return request
        types = pa.schema([(known.name, known.type) for known in own.fields])
        where, prune = (condition_on(self._rules, expr, self._schema, types) for expr in (request.where, request.prune))
        prune = None if where is None or prune is None else simplify(prune)
        same = where == request.where and prune == request.prune
        return request if same else request._replace(where=where, prune=prune)

    def _own_columns(self, opened: OpenedFile) -> OwnColumns:
        version, extensions = opened.version, opened.source.runtime.options.read.extension_types
        opened.share_types(extensions)
        fields = version.metadata.schema.fields

        def types(ordinals: Sequence[int]) -> list[pa.DataType | None]:
            try:
                return [found.arrow.type for found in field_types(version, ordinals, extensions)]
            except AsyncpqError:  # the type is unknown; reading the column raises the error
                return [None] if len(ordinals) == 1 else [dtype for at in ordinals for dtype in types([at])]

        own_types = types([one.index for one in fields])
        return own_columns(self._rules, self._schema, [one.name for one in fields], own_types, opened.file.partition)


# -- scans ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EngineScan(TaskScan):
    """A :class:`asyncpq.distributed.TaskScan` whose engine converts the values: an engine's subclass implements
    :meth:`converter`, and is made by :meth:`of` for :func:`plan_tasks`. asyncpq calls the methods.

    Attributes:
        rules: how the engine matches columns; the other attributes are those of :class:`TaskScan`.
    """

    rules: EngineRules

    @property
    def cache_key(self) -> tuple[Hashable, ...]:
        """Hashable key of what this process caches of files: scans with equal keys share it. asyncpq calls it; the key
        has ``rules``, and a subclass adds to it what else changes how it reads a file."""
        return *super().cache_key, self.rules

    def converter(
        self, schema: pa.Schema, of_file: Any, names: Mapping[str, str]
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return the function that converts a batch of a file to one of the engine's types, with the same rows: of the
        schema ``output``, if that is not None. asyncpq calls it on the worker.

        Args:
            schema: schema of the batches: the dataset's columns with the file's types.
            of_file: the result of :meth:`EngineRules.of_file` for the file.
            names: names of the dataset's columns, by the file's names, where a table or the file's types define these;
                else empty: the names are equal.
        """
        raise NotImplementedError

    def requests(self, state: DatasetState, request: ScanRequest, *, are_planned: bool = False) -> EngineRequests:
        return EngineRequests(state, request, self.rules, are_planned=are_planned)

    def tables(self) -> Callable[[UnitRows[OpenedFile]], Sequence[pa.Table]]:
        """Return asyncpq's function that converts the rows of one step of a read, by :meth:`converter`, to tables."""
        return _ConvertedTables(self).of

    def batch_schema(self) -> pa.Schema:
        """Return the schema of the converted batches, ``output``; an empty schema if that is None."""
        return pa.schema([]) if self.output is None else self.output


class _ConvertedTables:
    """Converts the tables of one read to the engine's types."""

    def __init__(self, scan: EngineScan) -> None:
        self._scan = scan
        self._fields: Sequence[TableField] = ()  # of the last file, and the dataset's columns by the names that it has
        self._names: Mapping[str, str] = {}
        # usually serves the next file, too
        self._last: tuple[pa.Schema, Any, Mapping[str, str], Callable[[pa.RecordBatch], pa.RecordBatch]] | None = None

    def of(self, rows: UnitRows[OpenedFile]) -> list[pa.Table]:
        """Return the tables of ``rows``, converted, without empty ones. Errors name the file."""
        version, rules = rows.file.version, self._scan.rules
        with located(url=version.url):
            of_file = version.derived(("engine rules", rules), lambda: (rules.of_file(FooterFacts(version.metadata)),))[
                0
            ]
            fields = rows.file.file.fields or ()
            if fields is not self._fields:
                self._fields = fields
                self._names = {known.names[0]: known.name for known in fields if known.names}
            return [self._converted(table, of_file, self._names) for table in rows.tables if table.num_rows]

    def _converted(self, table: pa.Table, of_file: Any, names: Mapping[str, str]) -> pa.Table:
        last = self._last
        if last is None or last[:3] != (table.schema, of_file, names):
            convert = self._scan.converter(table.schema, of_file, names)
            last = self._last = table.schema, of_file, names, convert
        return pa.Table.from_batches([last[3](batch) for batch in table.to_batches()])


# -- files ----------------------------------------------------------------------------------------


#: Files in one set of an index's.
SET_FILES = 16_384


@runtime_checkable
class _InSets(Protocol):
    """A provider that can give its files in sets."""

    def sets(self, request: ScanRequest, operation: Operation, *, most_files: int) -> AsyncGenerator[FileSet]: ...


async def file_sets(
    source: FileProvider, request: ScanRequest, operation: Operation, most_files: int | None = None
) -> AsyncGenerator[FileSet]:
    """Yield the files of ``source`` that may have rows for ``request``, in order: all in one set, unless an index lists
    very many (``most_files`` in a set, or ``SET_FILES``)."""
    if not isinstance(source, _InSets):
        yield await source.files(request, operation)
        return
    async with aclosing(source.sets(request, operation, most_files=most_files or SET_FILES)) as sets:
        async for found in sets:
            yield found


class EngineFiles(WrappedFiles):
    """The files of another provider, with an engine's choice of files and its partition values: for ``source`` of an
    :class:`EngineDataset`. asyncpq calls its methods.

    Args:
        rules: how the engine matches columns.
        source: the provider whose files these are.
        reads: called with an :class:`asyncpq.DataFile`, returns whether the engine reads it; None: it reads all.
        values: called with a file, returns the engine's values of the columns ``retyped``, by name; None: the file's.
        retyped: partition columns for which the engine has other values than ``source``. Conditions on them are not
            passed to ``source``.
        schemas: the columns of the dataset, and those it had when the index was built: the index gets only conditions
            that the latter can evaluate. None: it gets all conditions.
    """

    def __init__(
        self,
        source: FileProvider,
        rules: EngineRules,
        *,
        reads: Callable[[DataFile], bool] | None = None,
        values: Callable[[DataFile], Mapping[str, Any]] | None = None,
        retyped: Collection[str] = (),
        schemas: tuple[pa.Schema, pa.Schema] | None = None,
    ) -> None:
        super().__init__(source)
        self._rules = rules
        self._reads = reads
        self._values = values
        self._retyped = frozenset(retyped)
        self._schemas = schemas

    @property
    def index(self) -> Any:
        """The index that prunes files before they are opened (:class:`asyncpq.indexing.query.index_query.OpenIndex`);
        None if there is no index, or if its columns have other types than the dataset's."""
        return self.source.index if self._schemas is None else None

    @property
    def known(self) -> FileSet | None:
        """The files of the last listing (:class:`asyncpq.datasets.providers.FileSet`), without a request; None if there
        was none, or if columns are ``retyped``."""
        known = None if self._retyped else self.source.known
        return None if known is None else self._as_read(known)

    async def files(
        self, request: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        """Return the files that may have rows for ``request``, without those that the engine does not read. The other
        arguments, and errors, are those of :meth:`asyncpq.datasets.providers.FileProvider.files`."""
        may_be_stale = allow_stale and not self._retyped and self._reads is None  # the renewal would be unchanged
        found = await self.source.files(self._request(request), operation, scan=scan, allow_stale=may_be_stale)
        return self._as_read(found)

    async def sets(self, request: ScanRequest, operation: Operation, *, most_files: int) -> AsyncGenerator[FileSet]:
        """Yield the files of :meth:`files` in sets of about ``most_files``, so that very many need not be in memory."""
        async with aclosing(file_sets(self.source, self._request(request), operation, most_files)) as sets:
            async for found in sets:
                yield self._as_read(found)

    def _as_read(self, found: FileSet) -> FileSet:
        reads, values = self._reads, self._values
        if reads is not None:
            found = found._replace(files=[file for file in found.files if reads(file)])
        if values is None:
            return found
        return found._replace(
            files=[replace(file, partition={**file.partition, **values(file)}) for file in found.files]
        )

    def _request(self, request: ScanRequest) -> ScanRequest:
        if not self._retyped and self._schemas is None:
            return request
        where, prune = self._asked(request.where), self._asked(request.prune)
        return request._replace(where=where, prune=None if where is None or prune is None else simplify(prune))

    def _asked(self, where: Expression | None) -> Expression | None:
        """Return the part of the condition ``where`` that ``source`` can evaluate with its own values and columns."""
        if where is not None and self._retyped:
            where = implied(where, lambda atom: atom if self._retyped.isdisjoint(columns(atom)) else None)
        return where if self._schemas is None else condition_on(self._rules, where, *self._schemas)


class EngineDataset(DatasetState):
    """An open dataset whose files an engine matches by rules of its own: files may lack columns and store other types.
    Made by :meth:`of`, for :func:`plan_tasks`. ``dataclasses.replace`` makes one with other files: ``source`` may be an
    :class:`EngineFiles`. ``runtime``, ``columns``, ``known``, ``unifier`` and ``agreed`` are asyncpq's own.

    Attributes:
        runtime: the session's stores, caches and limits.
        url: url of the dataset, without secrets.
        source: returns the files of each read.
        columns: the dataset's columns.
        skips: whether reads leave out bad files (not Parquet, damaged, ...) and report them, instead of failing.
        skips_missing: whether reads leave out files that do not exist, whatever ``skips`` is.
        known: statistics of the files that were opened.
        unifier: checks that the files' schemas fit together; None, the default: they may differ, and
            :class:`EngineRules` match them.
        agreed: schemas that ``unifier`` has accepted, as pairs of internal keys.
        has_index: whether an index exists in ``_asyncpq/`` below the folder.
        is_written: whether asyncpq wrote some of the files, so that the folder's index decides which of them are live.
        prefix: url of the folder, without secrets; None for a pattern, a list or a table.
        partitions: names of the columns whose values are in the files' paths; None for a table.
    """

    __slots__ = ()

    @classmethod
    def of(cls, dataset: Dataset, *, skips_missing: bool = False) -> Self:
        """Return the state of ``dataset``, with the files that were listed when it was opened.

        Args:
            dataset: an open dataset, whose session must stay entered.
            skips_missing: leave out files that do not exist.
        """
        state = state_of(dataset)
        skips_missing = skips_missing or state.skips_missing
        source = state.source
        if isinstance(source, ListedFiles):
            source = replace(source, check=None)  # also of local files that are replaced meanwhile
        values = {item.name: getattr(state, item.name) for item in fields(state) if item.init}
        return cls(**values | {"source": source, "unifier": None, "skips_missing": skips_missing})

    def opening(self) -> Operation:
        """Return a new operation, which counts the cost of :meth:`files` and :meth:`footers`: enter it with ``with``,
        and call these in the block. It counts as a part of opening the dataset."""
        return self.runtime.operation("open", self.url)

    def own_storage(self, session: Session) -> Mapping[str, Any] | None:
        """Return the storage options, in the form of those of :class:`asyncpq.Session`, of a loaded table that has its
        own, for the settings of workers (:class:`WorkerSettings`); None: those of ``session`` apply."""
        own, known = self.runtime.storage_options, runtime_of(session).storage_options
        if own == known:
            return None
        merged: Mapping[str, Any] = next(iter(own.values()), {})
        return merged if known and known.keys() <= merged.keys() else own

    @staticmethod
    def folder_of(target: object) -> str | None:
        """Return the url of the folder that a target of :meth:`asyncpq.Session.open_dataset` names, with a slash at its
        end; None for a pattern or a list."""
        named = parse_target(target)
        return named.folder if named.urls is None and named.pattern is None else None

    async def files(self, operation: Operation) -> AsyncGenerator[Sequence[DataFile]]:
        """Yield all files (:class:`asyncpq.DataFile`) in one or more lists: those of the last listing, or of a new one
        if there was none. An index of very many files yields several lists.

        Args:
            operation: the result of :meth:`opening`.
        """
        known = self.source.known
        if known is not None and known.files:
            yield known.files
            return
        async with aclosing(file_sets(self.source, ScanRequest(), operation)) as sets:
            async for found in sets:
                yield found.files

    def footers(
        self, files: Sequence[DataFile], operation: Operation, *, first: bool = False
    ) -> AsyncGenerator[ReadFooter]:
        """Yield the footers of files in order, without those that the dataset leaves out: named tuples of the
        :class:`asyncpq.DataFile` (``file``), its ``url`` without secrets, its :class:`FooterFacts` (``facts``), the
        Arrow ``schema`` that asyncpq reads, and ``schema_bytes``, equal for files with the same schema.

        Args:
            files: files of the dataset, as :meth:`files` yields them.
            operation: the result of :meth:`opening`.
            first: stop after the first footer.

        Raises:
            AsyncpqError: a file cannot be opened, and the dataset does not leave it out.
        """
        return read_footers(self, files, operation, first=first)

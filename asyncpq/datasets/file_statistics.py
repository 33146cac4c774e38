"""Rule out files of a dataset by partition values, a table's bounds, and the footers of earlier reads.

``kind_of`` maps Arrow types to :class:`ValueKind`, which says how their values compare with literals. :class:`Learnt`
has the statistics of one column in a whole file, from its footer.

Predicates also test parts of variants and bounding boxes of geometries, which are not columns. :func:`with_parts` gives
each of these parts a name and conditions like a column's, so that its statistics rule out files in the same way. A file
has statistics of a variant's part if it shreds that part. Statistics of bounding boxes are those of GeoParquet's
covering columns, or of GEOMETRY and GEOGRAPHY columns. Different files may have them in different columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
from cachetools import LRUCache

from asyncpq.caching.memory import MemoryCache
from asyncpq.checkpoints import each
from asyncpq.datasets.model import ColumnBounds, DataFile, DataFiles, TableDataFiles, partitions_of, urls_of
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile
from asyncpq.decoding.paths import type_of
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import AsyncpqError, QueryError
from asyncpq.expressions import (
    Atom,
    Comparison,
    Constant,
    Expression,
    IntersectsBox,
    VariantTest,
    atoms,
    columns,
    simplify,
)
from asyncpq.expressions.analysis import Truth, successor
from asyncpq.expressions.simplify import with_conditions
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.derived_conditions import (
    CORNERS,
    box_condition,
    coverings,
    is_inside_sphere,
    shows_wrapping,
    shredded_condition,
    sphere_box,
)
from asyncpq.pruning.literals import FLOAT16, Domain, ValueKind, kind_of_leaf
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import FileBounds, KnownValues, ZonedColumn, Zones, file_zones, rows_where, value_zones
from asyncpq.scan.fetch_planner import row_group_zone
from asyncpq.storage.base import Validator


class Learnt(NamedTuple):
    """Statistics of one column in one version of a file, over all row groups.

    Attributes:
        validator: identifies the version.
        low: lower bound over all row groups, in the form that pruning compares; None if unknown.
        high: upper bound; None if unknown.
        null_count: number of nulls; None if unknown.
        nan_count: number of NaNs; None if unknown.
        all_null: all values are null.
    """

    validator: Validator
    low: Any
    high: Any
    null_count: int | None
    nan_count: int | None
    all_null: bool


class TestedPart(NamedTuple):
    """A part of a column that a predicate tests: a value inside a variant, or one side of the bounding boxes of
    geometries."""

    column: str
    type: pa.DataType  # of the values that are tested
    # returns its statistics in a file, of the column's name there and the kind of ``type``
    learn: Callable[[FileVersion, str, ValueKind], Learnt]


_NO_PARTS: Final[Mapping[str, TestedPart]] = {}


def with_parts(where: Expression, has_column: Callable[[str], bool]) -> tuple[Expression, Mapping[str, TestedPart]]:
    """Return a weaker predicate, true wherever ``where`` is, in which tests of variants and geometries are conditions
    on named parts; and these parts, keyed by their names in it.

    ``has_column`` returns whether a column has the given name, which then cannot name a part.
    """
    if type(where) is Comparison or not any(isinstance(atom, (IntersectsBox, VariantTest)) for atom in atoms(where)):
        return where, _NO_PARTS
    parts: dict[str, TestedPart] = {}

    def condition(atom: Atom) -> Expression | None:
        found: dict[str, TestedPart] = {}
        result: Expression | None = None
        if isinstance(atom, VariantTest):
            from asyncpq.decoding.variants import part_type  # few predicates are about variants

            found[str(atom.test.column)] = TestedPart(atom.column, part_type(atom.type), partial(_variant_part, atom))
            result = atom.test
        elif isinstance(atom, IntersectsBox):
            # x of GEOGRAPHY is unknown to a box at the meridian 180: its statistics have other names
            inside = is_inside_sphere(atom)
            kind = "box" if inside else "plane"
            names = [f"{kind}({atom.column}).{corner}" for corner in CORNERS]
            for corner, name in enumerate(names):
                found[name] = TestedPart(atom.column, pa.float64(), partial(_box_side, corner, inside))
            result = box_condition(atom, [(name, True) for name in names], by_x=True)
        if any(map(has_column, found)):
            return None
        parts.update(found)
        return result

    return with_conditions(where, condition), parts


def column_statistics(version: FileVersion, leaf: Leaf, kind: ValueKind) -> Learnt:
    """Return a leaf's statistics over all row groups; unknown ones if its values do not compare as values of
    ``kind`` do."""
    own = kind_of_leaf(leaf, version.metadata.order_of(leaf))
    if leaf.max_repetition_level or (own.domain, own.scale, own.unit) != (kind.domain, kind.scale, kind.unit):
        return _unknown(version)
    return _over_row_groups(version, leaf, is_bytes=kind.is_bytes)


def leaf_at(version: FileVersion, name: str) -> Leaf | None:
    """Return the leaf with exactly the dotted path ``name``; None if the file has no such leaf."""
    schema = version.metadata.schema
    try:
        (index,) = schema.projection(name).leaves
    except (QueryError, ValueError):
        return None
    leaf = schema.leaves[index]
    return leaf if leaf.dotted == name else None


def _unknown(version: FileVersion) -> Learnt:
    return Learnt(version.validator, None, None, None, None, False)


def _over_row_groups(version: FileVersion, leaf: Leaf, *, is_bytes: bool) -> Learnt:
    metadata, validator = version.metadata, version.validator
    bounds_of = metadata.bounds_of(leaf)
    low: Any = None
    high: Any = None
    nulls: int | None = 0
    nans: int | None = 0
    all_null = True
    for group in metadata.row_groups:
        if not group.num_rows:
            continue
        try:
            found, _ = bounds_of(group.chunk(leaf.index), group.num_rows)
        except AsyncpqError:
            return _unknown(version)  # a read of the column raises the error
        nulls = None if nulls is None or found.null_count is None else nulls + found.null_count
        nans = None if nans is None or found.nan_count is None else nans + found.nan_count
        if found.all_null:
            continue
        all_null = False
        least: Any = found.min
        most: Any = found.max
        if most is not None and is_bytes and not found.max_exact:
            most = successor(most) if most else most
        if least is None or most is None:
            return _unknown(version)
        low = least if low is None or least < low else low
        high = most if high is None or most > high else high
    return Learnt(validator, low, high, nulls, nans, all_null and low is None)


def _variant_part(test: VariantTest, version: FileVersion, column: str, kind: ValueKind) -> Learnt:
    """Return the statistics of a value inside a variant, from its shredded column; unknown ones if some of its
    values may be stored elsewhere."""
    schema = version.metadata.schema
    try:
        found = shredded_condition(test, column, schema, lambda leaf: row_group_zone(version, leaf).zones)
    except AsyncpqError:
        return _unknown(version)  # a read of the column raises the error
    return _unknown(version) if found is None else _of_part(column_statistics(version, found[1], kind))


def _box_side(corner: int, inside: bool, version: FileVersion, column: str, _: ValueKind) -> Learnt:
    """Return the statistics of one side of the bounding boxes of geometries, such as "xmin"; ``corner`` is the
    position of its name in ``CORNERS``. ``inside``: the box that is asked for lies between the meridians -180 and 180
    (:func:`is_inside_sphere`)."""
    leaf = leaf_at(version, column)
    if leaf is None:
        return _unknown(version)
    is_x = CORNERS[corner].startswith("x")
    try:
        covering = version.derived(("coverings",), lambda: coverings(version.metadata), 1000).get(leaf.dotted)
        if covering is None:
            boxes = row_group_zone(version, leaf).boxes
            logical = leaf.element.logical_type
            if logical is not None and logical.kind is LogicalKind.GEOGRAPHY:
                if is_x and not inside:
                    return _unknown(version)
                boxes = [None if box is None else sphere_box(box) for box in boxes]
            return _native_side(version, boxes, is_x=is_x)
        xmin, xmax = (row_group_zone(version, side).zones for side in (covering.xmin, covering.xmax))
    except AsyncpqError:
        return _unknown(version)  # a read of the column raises the error
    if is_x and (not covering.is_planar or shows_wrapping(xmin, xmax)):
        return _unknown(version)
    return _of_part(_over_row_groups(version, covering.leaves[corner], is_bytes=False))


def _of_part(leaf: Learnt) -> Learnt:
    """Return the statistics of a shredded leaf as those of the variant's part, without null counts: these may not
    count the rows in which an outer group is null."""
    return leaf._replace(null_count=None)


def _native_side(version: FileVersion, boxes: list[Any], *, is_x: bool) -> Learnt:
    """Return the range of x (or y) in ``boxes``, the bounding boxes in statistics of GEOMETRY or GEOGRAPHY."""
    groups = version.metadata.row_groups
    known = [box for box, group in zip(boxes, groups, strict=False) if group.num_rows]
    if not known or None in known or (is_x and any(box.xmin > box.xmax for box in known)):
        return _unknown(version)
    lows, highs = zip(*[(box.xmin, box.xmax) if is_x else (box.ymin, box.ymax) for box in known], strict=True)
    if not all(map(math.isfinite, (*lows, *highs))):
        return _unknown(version)
    return Learnt(version.validator, min(lows), max(highs), None, None, False)


@lru_cache(maxsize=1024)
def kind_of(type_: pa.DataType) -> ValueKind:
    """Return the kind of a type's values, which says how they compare with literals. A dictionary type has the kind of
    its value type."""
    type_ = storage_type(type_)
    if isinstance(type_, pa.TimestampType):
        return ValueKind(Domain.TIMESTAMP, unit=type_.unit, zoned=type_.tz is not None)
    if isinstance(type_, (pa.Time32Type, pa.Time64Type)):
        return ValueKind(Domain.TIME, unit=type_.unit)
    if pa.types.is_decimal(type_):
        return ValueKind(Domain.DECIMAL, scale=type_.scale)
    if pa.types.is_float16(type_):
        return FLOAT16
    for is_type, domain in _DOMAINS:
        if is_type(type_):
            return ValueKind(domain)
    return ValueKind(Domain.OTHER, why_not=f"literals are not compared with {type_}")


_DOMAINS: Final[tuple[tuple[Callable[[pa.DataType], bool], Domain], ...]] = (
    (pa.types.is_boolean, Domain.BOOLEAN),
    (pa.types.is_integer, Domain.INTEGER),
    (pa.types.is_float32, Domain.FLOAT32),
    (pa.types.is_floating, Domain.FLOAT),
    (pa.types.is_date, Domain.DATE),
    (pa.types.is_fixed_size_binary, Domain.FIXED),
    (pa.types.is_string, Domain.BYTES),
    (pa.types.is_large_string, Domain.BYTES),
    (pa.types.is_binary, Domain.BYTES),
    (pa.types.is_large_binary, Domain.BYTES),
)
_UNKNOWN = ColumnBounds()
_BOUNDS: Final = attrgetter("min", "max", "null_count", "all_null", "may_be_nan")  # as in FileBounds
_NO_BOUNDS: Final[Mapping[str, ColumnBounds]] = {}
_KEPT: Final = "statistics of footers"
_LEARNT_BYTES: Final = 450  # statistics of a column in a file, its version included, without the url
_MOST_SINGLE: Final = 1024  # files and columns whose bounds are kept ready for pruning


class FileStatistics:
    """Rules files out by partition values, a table's bounds, and the footers of files that were opened before.

    Takes a few hundred bytes for each file and each column that a predicate has named. With ``trust_statistics=False``
    only partition values are used.
    """

    def __init__(self, *, trust_statistics: bool = True) -> None:
        self._trust_statistics = trust_statistics
        self._learnt: dict[str, dict[str, Learnt]] = {}
        # Of files whose rows were counted, by url: the number, and the fields of the version's Validator, in a plain
        # tuple, which the garbage collector does not visit.
        self._num_rows: dict[str, tuple[Any, ...]] = {}
        self._files: Sequence[DataFile] = ()
        self._zones: dict[str, Zones] = {}
        self._learnt_zones: dict[str, tuple[int, Zones]] = {}
        self._last_tested: _Tested | None = None
        self._num_replaced = 0  # statistics of files that took the place of those of another version
        self._single: LRUCache[tuple[str, str], tuple[Learnt, Zones]] = LRUCache(_MOST_SINGLE)

    def keep_only(self, files: Sequence[DataFile]) -> None:
        """Drop the statistics of all files that are not among ``files``."""
        urls = set(urls_of(files))
        if len(self._num_rows) > len(urls):
            self._num_rows = {url: known for url, known in self._num_rows.items() if url in urls}
        for name, found in self._learnt.items():
            if len(found) > len(urls):
                self._learnt[name] = {url: learnt for url, learnt in found.items() if url in urls}
                self._learnt_zones.pop(name, None)

    def recall(self, memory: MemoryCache, key: Hashable, where: Expression, schema: pa.Schema) -> None:
        """Use the statistics of the columns of ``where`` that :meth:`remember` has kept under the same ``key``."""
        for name in columns(_with_parts(where, schema)[0]):
            learnt = memory.get((_KEPT, key, name))
            if learnt is not None:
                self._learnt[name] = learnt

    def remember(self, memory: MemoryCache, key: Hashable) -> None:
        """Keep all statistics in memory for later datasets with the same files, columns and types, which ``key`` names.
        Each column is an entry of its own. What is larger than the memory cache is not kept."""
        for name, by_url in self._learnt.items():
            if by_url:
                memory.put((_KEPT, key, name), by_url, _num_bytes(by_url))

    @property
    def learnt(self) -> Mapping[str, Mapping[str, Learnt]]:
        """Statistics of whole files from their footers, by column and then by the file's url."""
        return self._learnt

    def add(self, learnt: Mapping[str, Mapping[str, Learnt]], most_bytes: int) -> None:
        """Add statistics of files that another process has opened, unless those of a column exceed ``most_bytes``."""
        for name, by_url in learnt.items():
            known = self._learnt.setdefault(name, {})
            if _num_bytes(known) + _num_bytes(by_url) <= most_bytes:
                known.update(by_url)
                self._learnt_zones.pop(name, None)

    def search(
        self,
        files: Sequence[DataFile],
        where: Expression | None,
        schema: pa.Schema,
        by_file: Container[str] | None = None,
    ) -> Callable[[], list[int]]:
        """Return a function, for any thread, that returns the ascending positions in ``files`` of those that may have
        rows for which ``where``, simplified, is true. ``by_file``: urls of the files asked for; None for all."""
        prune = None if where is None else self.searching(files, where, schema)

        def found() -> list[int]:
            numbers = list((RowRanges.all(len(files)) if prune is None else prune()).rows())
            return numbers if by_file is None else [number for number in numbers if files[number].url in by_file]

        return found

    def fates(
        self,
        files: Sequence[DataFile],
        where: Expression | None,
        schema: pa.Schema,
        by_file: Container[str] | None = None,
    ) -> Callable[[], dict[str, str]]:
        """Return a function, for any thread, that returns what rules out each file that :meth:`search` leaves out,
        keyed by url: its partition, a table's metadata ("table"), the footer of an earlier read ("statistics"), or the
        files asked for ("access")."""
        known: dict[str, FileStatistics] = {
            "partition": FileStatistics(trust_statistics=False),
            "table": FileStatistics(trust_statistics=self._trust_statistics),
            "statistics": self,
        }
        searches = {} if where is None else {fate: of.searching(files, where, schema) for fate, of in known.items()}

        def found() -> dict[str, str]:
            fates: dict[str, str] = {}
            for fate, prune in searches.items():
                for number in prune().complement(len(files)).rows():
                    fates.setdefault(files[number].url, fate)
            if by_file is not None:
                fates.update({file.url: "access" for file in files if file.url not in by_file})
            return fates

        return found

    def searching(self, files: Sequence[DataFile], where: Expression, schema: pa.Schema) -> Callable[[], RowRanges]:
        """Return a function, for any thread, that returns the positions in ``files`` of those that may have a row for
        which ``where``, simplified, is true."""
        if files is not self._files:
            self._files, self._zones, self._learnt_zones = files, {}, {}
        is_described = (
            files.are_described
            if isinstance(files, (DataFiles, TableDataFiles))
            else next((True for file in files if file.partition or file.bounds), False)
        )
        tested = self._tested(where, schema)
        types = tested.types
        described = [name for name in types if name not in tested.parts] if is_described else []
        kept = self._zones  # of these files, whichever come before the function is called
        of_learnt = {name: self._learnt_of(files, name, types[name]) for name in types if name in self._learnt}

        def prune() -> RowRanges:
            known: dict[str, Zones] = {}
            for name in described:
                if name not in kept:
                    kept[name] = _zones(files, name, types[name], self._trust_statistics)
                known[name] = kept[name]
            learnt = {name: zones for name, find in of_learnt.items() if (zones := find()) is not None}
            rows = RowRanges.all(len(files))
            if known or (isinstance(where, Constant) and not learnt):
                rows = rows_where(where, Truth.TRUE, len(files), known, tested.values)
            if learnt and rows:
                rows &= rows_where(tested.where, Truth.TRUE, len(files), {**known, **learnt}, tested.values)
            return rows

        return prune

    def _learnt_of(self, files: Sequence[DataFile], name: str, type_: pa.DataType) -> Callable[[], Zones | None]:
        """Return a function, for any thread, that returns the statistics of one column that footers gave, as zones for
        pruning, one for each file; None if there are none."""
        by_url = self._learnt.get(name)
        if not by_url:
            return lambda: None
        if len(files) == 1:
            statistics = _current(files[0], name, by_url.get(files[0].url))
            single = None if statistics is None else self._zones_of(name, type_, files[0].url, statistics)
            return lambda: single
        kept, number, num_replaced = self._learnt_zones, len(by_url), self._num_replaced

        def zones_of_all() -> Zones:
            num_learnt, zones = kept.get(name, (-1, None))
            if zones is None or num_learnt != number:
                learnt = map(by_url.get, urls_of(files))
                known = [
                    None if one is None else _current(files[number], name, one) for number, one in enumerate(learnt)
                ]
                zones = _learnt_zones(name, type_, known)
                if num_replaced == self._num_replaced:  # the number of files tells nothing about replaced ones
                    kept[name] = number, zones
            return zones

        return zones_of_all

    def learning(self, where: Expression | None, dataset: DatasetColumns) -> Callable[[OpenedFile], Callable[[], bool]]:
        """Return a function that remembers the statistics that a file's footer has of the columns of ``where``,
        simplified. It returns a function, for any thread, that returns whether the file may have matching rows."""
        if where is None:
            return lambda opened: lambda: True
        tested = self._tested(where, dataset.schema)

        def learn(opened: OpenedFile) -> Callable[[], bool]:
            file, zones = opened.file, dict[str, Zones]()
            for name, type_ in tested.types.items():
                if name in file.partition:
                    zones[name] = value_zones(kind_of(type_), [file.partition[name]])
                elif self._trust_statistics:
                    known = self._known(opened, name)
                    if known is not None:
                        zones[name] = self._zones_of(name, type_, file.url, known)
                        continue
                    learnt = self._learn(opened, name, tested.parts.get(name), type_, dataset)
                    if learnt is not None:  # most files are ruled out now, so zones of their own are not kept
                        zones[name] = _learnt_zones(name, type_, [learnt])

            def may_match() -> bool:
                if not zones and not isinstance(tested.where, Constant):
                    return True
                return bool(rows_where(tested.where, Truth.TRUE, 1, zones, tested.values))

            return may_match

        return learn

    def _tested(self, where: Expression, schema: pa.Schema) -> _Tested:
        """Return what the searches for ``where`` share, from the last search if that was for it, too."""
        tested = self._last_tested
        if tested is None or tested.asked is not where or tested.schema is not schema:
            tested = self._last_tested = _tested_by(where, schema)
        return tested

    def learn_num_rows(self, opened: OpenedFile) -> int:
        """Remember and return how many rows the file has."""
        version = opened.version
        num_rows = version.metadata.num_rows
        if version.can_validate:
            counted = version.validator
            fields = counted.size, counted.etag, counted.last_modified, counted.version
            self._num_rows[opened.file.url] = (num_rows, *fields)
        return num_rows

    def num_rows_of(self, file: DataFile) -> int | None:
        """Return how many rows the version of a file has, as a table or :meth:`learn_num_rows` says; None if unknown,
        or if the table has deleted some."""
        if file.deletes is not None:
            return None
        if file.immutable and file.num_rows is not None:
            return file.num_rows
        known = self._num_rows.get(file.url)
        return None if known is None or not _is_current(file, Validator(*known[1:])) else known[0]

    def count_known(self, files: Sequence[DataFile], numbers: Sequence[int]) -> tuple[list[int], int]:
        """Return the numbers of those files, among the given ones, whose rows are not known, and how many rows the
        others have. Safe to call from any thread."""
        if isinstance(files, DataFiles) and not self._num_rows:
            return list(numbers), 0
        counts = [self.num_rows_of(files[number]) for number in each(numbers)]
        unknown = [number for number, count in zip(numbers, counts, strict=True) if count is None]
        return unknown, sum(count for count in counts if count is not None)

    def _zones_of(self, name: str, type_: pa.DataType, url: str, learnt: Learnt) -> Zones:
        """Convert ``learnt``, the statistics of the column ``name`` in the file at ``url``, to zones for pruning,
        and cache them."""
        kept: tuple[Learnt, Zones] | None = self._single.get((name, url))
        if kept is None or kept[0] is not learnt:
            kept = self._single[name, url] = learnt, _learnt_zones(name, type_, [learnt])
        return kept[1]

    def _known(self, opened: OpenedFile, name: str) -> Learnt | None:
        """Return the statistics of a column or part that an earlier read has learnt of this version of the file; None
        if there are none."""
        version = opened.version
        last = self._learnt.get(name, {}).get(opened.file.url)
        if last is None or not version.can_validate:
            return None
        return last if last.validator is version.validator or last.validator == version.validator else None

    def _learn(
        self, opened: OpenedFile, name: str, part: TestedPart | None, type_: pa.DataType, dataset: DatasetColumns
    ) -> Learnt | None:
        version, url = opened.version, opened.file.url
        if part is not None:
            field = _own_name(opened, part.column, dataset)
            learnt = None if field is None else part.learn(version, field, kind_of(type_))
        else:
            leaf = leaf_at(version, name) if dataset.fields is None else None
            learnt = None if leaf is None else column_statistics(version, leaf, kind_of(type_))
        if learnt is None:
            return None
        by_url = self._learnt.setdefault(name, {})
        if url in by_url:
            self._learnt_zones.pop(name, None)  # the number of files in its key does not change
            self._num_replaced += 1
        by_url[url] = learnt
        return learnt


def _num_bytes(by_url: Mapping[str, Learnt]) -> int:
    """Return about how many bytes of memory the statistics of a column take."""
    return len(by_url) * (_LEARNT_BYTES + max(map(len, islice(by_url, 16)), default=0))


class _Tested(NamedTuple):
    """The columns that a predicate tests, and what all searches for it share."""

    asked: Expression  # the predicate, simplified
    schema: pa.Schema  # the columns that it names
    where: Expression  # the predicate with conditions on the parts of variants and geometries
    types: Mapping[str, pa.DataType]  # of the columns and parts that ``where`` tests and the schema has
    parts: Mapping[str, TestedPart]  # those of ``types`` that are parts
    values: KnownValues  # the values that ``asked`` and ``where`` search for


def _tested_by(where: Expression, schema: pa.Schema) -> _Tested:
    with_conditions, parts = _with_parts(where, schema)
    if parts:
        with_conditions = simplify(with_conditions)
    types: dict[str, pa.DataType] = {}
    for name in columns(with_conditions):
        type_ = parts[name].type if name in parts else type_of(schema, name)
        if type_ is not None:
            types[name] = type_
    return _Tested(where, schema, with_conditions, types, parts, {})


def _with_parts(where: Expression, schema: pa.Schema) -> tuple[Expression, Mapping[str, TestedPart]]:
    """Return the predicate with conditions on the parts of variants and geometries that it tests, and these parts by
    name; see :func:`with_parts`."""
    return with_parts(where, lambda name: type_of(schema, name) is not None)


def _own_name(opened: OpenedFile, column: str, dataset: DatasetColumns) -> str | None:
    """Return the name that a top-level column of the dataset has in a file; None if the file has no such column."""
    ordinal = dataset.schema.get_field_index(column)
    if ordinal < 0:
        return None
    try:
        (match,) = opened.view(dataset).match(opened.version, [ordinal])
    except AsyncpqError:
        return None  # a read of the column raises the error
    return None if match.source is None else opened.version.metadata.schema.fields[match.source.ordinal].name


def _zones(files: Sequence[DataFile], name: str, type_: pa.DataType, trust_statistics: bool) -> Zones:
    """Return one zone for each file, which bounds a column's values: from partition values and, if statistics are
    trusted, from a table's bounds."""
    kind = kind_of(type_)
    partitions = partitions_of(files)
    if partitions and all(name in values for values in partitions):
        return value_zones(kind, [values[name] for values in partitions])

    def known(partition: Mapping[str, Any], own: Mapping[str, ColumnBounds]) -> ColumnBounds:
        if name not in partition:
            return own.get(name, _UNKNOWN) if trust_statistics else _UNKNOWN
        value = partition[name]  # the same in all rows
        if value is None:
            return ColumnBounds(all_null=True)
        return ColumnBounds(min=value, max=value, null_count=0, may_be_nan=value != value)

    of_tables = repeat(_NO_BOUNDS) if isinstance(files, DataFiles) else (file.bounds for file in files)
    # plain tuples, and no object of a file outlives its step: the garbage collector would walk over them
    each_known = [_BOUNDS(item) for item in map(known, partitions, of_tables)]
    bounds = FileBounds(*[[item[position] for item in each_known] for position in range(len(FileBounds._fields))])
    return file_zones(kind, bounds, is_nested="." in name, any_calendar=True)


def _learnt_zones(name: str, type_: pa.DataType, known: Sequence[Learnt | None]) -> Zones:
    """Return one zone for each file, which bounds a column's values, from statistics of footers. An item of
    ``known`` is None for a file without statistics."""
    return Zones(
        ZonedColumn(kind_of(type_), is_nested="." in name),
        [None if item is None else item.low for item in known],
        [None if item is None else item.high for item in known],
        all_null=[item is not None and item.all_null for item in known],
        null_counts=[None if item is None else item.null_count for item in known],
        nan_counts=[None if item is None else item.nan_count for item in known],
        exact=[True] * len(known),
    )


def _current(file: DataFile, name: str, learnt: Learnt | None) -> Learnt | None:
    """Return ``learnt`` if it may be used for ``file``; None if it may belong to another version of the file, or the
    column's values are in the file's path."""
    if learnt is None or name in file.partition:
        return None
    return learnt if _is_current(file, learnt.validator) else None


def _is_current(file: DataFile, learnt: Validator) -> bool:
    """Whether what is known of the version ``learnt`` may be used for ``file``."""
    if file.validator is None:
        return file.immutable
    return file.validator.is_strong and file.validator.same_version(learnt)

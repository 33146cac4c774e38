"""The manifest: one snapshot of an index, and its JSON.

``{"asyncpq_index": 1, ..., "crc32": 1234}`` in UTF-8; the checksum covers all bytes before it. Unknown members are
ignored. If the object would exceed 64 KiB, long members (:data:`LONG`) move to segments of kind "manifest". Byte
strings are base64. A set of ids is the lengths of gaps and ranges, alternating, as deflated varints. Segments of one
build cover the same files: the first segment has the set, the others have the first one's position in the list of
segments.

What is deflated may inflate to 512 KiB and 16 times the manifest's own bytes, in all. A writer stores what would
deflate further as it is.
"""

from __future__ import annotations

import base64
import json
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from asyncpq.decoding.paths import type_of
from asyncpq.errors import CorruptIndexError, UnsupportedFeatureError
from asyncpq.indexing.index_model import MAX_SNAPSHOT, TABLE_SCHEMAS, IndexTable, Segment
from asyncpq.indexing.key_encoding import MAX_GRAM_BYTES
from asyncpq.parquet.thrift import varint
from asyncpq.pruning.row_ranges import RowRanges

FILES: Final = IndexTable("files")


@dataclass(frozen=True, slots=True)
class Build:
    """A build that has begun, and whose files readers do not see yet."""

    id: str  # names the build; its segments' names begin with it
    files: RowRanges  # ids reserved for its files. Until the build ends they are retired, so no reader sees them


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One snapshot of an index: its dataset, tables, segments and the ids of its files. :attr:`Index.manifest` returns
    one.

    Attributes:
        index: id of the index; each index ever built at a place has another.
        snapshot: number of the snapshot, from 1.
        commit: id of the commit that made the snapshot.
        created: time of the commit by its process's clock, with a zone.
        as_of: time at which the files were listed; None until the first build ends.
        root: url that the paths of files are relative to; "" if paths are whole urls.
        dataset: the indexed dataset, as JSON. Code that opens the dataset says what it holds.
        schema: the dataset's columns; keys are of their types.
        partitions: columns whose values come from paths or from a table's metadata.
        field_ids: a table's field ids of the indexed columns, by name: a name may come to mean another column.
        tables: the index tables, "files" first.
        segments: the segments of all tables.
        next_file: id of the next file. No id is given twice.
        retired: ids below ``next_file`` that are not, or not yet, live.
        num_files, num_rows: numbers of live files, and of rows of those that could be read.
        builds: builds that run or were interrupted.
        long: segments that hold members too long for the root, by the member's name.
        known_since: time of loading, by this process's monotonic clock.
    """

    index: str
    snapshot: int
    commit: str
    created: datetime
    as_of: datetime | None = None
    root: str
    dataset: Mapping[str, Any] = field(default_factory=dict)
    schema: pa.Schema
    partitions: tuple[str, ...] = ()
    field_ids: tuple[tuple[str, int], ...] = ()
    tables: tuple[IndexTable, ...]
    segments: tuple[Segment, ...] = ()
    next_file: int = 0
    retired: RowRanges = field(default_factory=RowRanges)
    num_files: int = 0
    num_rows: int = 0
    builds: tuple[Build, ...] = ()
    long: tuple[tuple[str, Segment], ...] = ()
    known_since: float = field(default_factory=time.monotonic, init=False, compare=False, repr=False)
    _unknown: dict[IndexTable, RowRanges] = field(default_factory=dict, init=False, compare=False, repr=False)

    # Every lookup asks for these, and files may be many: each is computed once.

    @cached_property
    def live(self) -> RowRanges:
        """Ids of the files that readers of this snapshot see: all assigned ids that are not retired."""
        return self.retired.complement(self.next_file)

    @cached_property
    def tables_by_column(self) -> Mapping[str, Sequence[IndexTable]]:
        """Tables that index exactly one column, by the column's name."""
        by_column: dict[str, list[IndexTable]] = {}
        for table in self.tables:
            if len(table.columns) == 1:
                by_column.setdefault(table.columns[0], []).append(table)
        return by_column

    @cached_property
    def indexed_types(self) -> Mapping[str, pa.DataType | None]:
        """Types of the columns that tables index, by name; None for a column that the dataset does not have."""
        return {name: type_of(self.schema, name) for table in self.tables for name in table.columns}

    @cached_property
    def composite_tables(self) -> Sequence[IndexTable]:
        """Tables that index several columns together."""
        return [table for table in self.tables if len(table.columns) > 1]

    @cached_property
    def footer_tables(self) -> Sequence[IndexTable]:
        """Index tables of footers and of page indexes: the kinds "footers" and "pages"."""
        return [table for table in self.tables if table.kind in ("footers", "pages")]

    @cached_property
    def leaf_spans(self) -> Mapping[str, tuple[int, int]]:
        """By column name, the ordinal of the column's first leaf and the ordinal after its last leaf. Partition
        columns, which files do not have, are left out."""
        spans: dict[str, tuple[int, int]] = {}
        start = 0
        for column in self.schema:
            if column.name not in self.partitions:
                stop = start + _num_leaves(column.type)
                spans[column.name] = (start, stop)
                start = stop
        return spans

    @cached_property
    def num_leaves(self) -> int:
        """Number of leaf columns in the files, without partition columns."""
        return max([stop for _, stop in self.leaf_spans.values()], default=0)

    @cached_property
    def segments_by_table(self) -> Mapping[IndexTable, Sequence[Segment]]:
        """Segments by table; tables without segments are left out."""
        by_table: dict[IndexTable, list[Segment]] = {}
        for segment in self.segments:
            by_table.setdefault(segment.table, []).append(segment)
        return by_table

    @property
    def reserved(self) -> RowRanges:
        """Ids that builds which have not ended have assigned to the files that they add."""
        return union(build.files for build in self.builds)

    @property
    def is_built(self) -> bool:
        """Whether at least one build of the index has ended."""
        return self.as_of is not None

    def segments_of(self, table: IndexTable) -> Sequence[Segment]:
        """Return the segments of one table."""
        return self.segments_by_table.get(table, ())

    def covered(self, table: IndexTable) -> RowRanges:
        """Return the ids of the files whose rows in the table are complete: a missing key proves that the file lacks
        the value."""
        lists = {id(segment.files): segment.files for segment in self.segments_of(table)}  # one build's share a list
        return union(RowRanges(files) for files in lists.values())

    def unknown(self, table: IndexTable) -> RowRanges:
        """Return the ids of the files that readers see and whose rows in the table are missing or incomplete."""
        unknown = self._unknown.get(table)
        if unknown is None:
            unknown = self._unknown[table] = self.live - self.covered(table)
        return unknown

    @property
    def names(self) -> frozenset[str]:
        """Names of all segments of this snapshot, including those that store long members of the manifest's JSON."""
        return frozenset(segment.name for segment in (*self.segments, *(held for _, held in self.long)))


def _num_leaves(type_: pa.DataType) -> int:
    if isinstance(type_, pa.DictionaryType):
        return _num_leaves(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _num_leaves(type_.storage_type)
    children = [type_.field(position).type for position in range(type_.num_fields)]
    return sum(_num_leaves(child) for child in children) if children else 1


def union(sets: Iterable[RowRanges]) -> RowRanges:
    """Return the ids that are in any of ``sets``."""
    return RowRanges(span for ranges in sets for span in ranges)


FORMAT: Final = 1
ROOT_BYTES: Final = 64 * 1024
#: Members of the root that may move to segments of their own.
LONG: Final = ("segments", "schema", "retired", "dataset")

BOUNDS_VERSION: Final = 2
"""Version of the segments of the table "bounds", which are made from files' statistics. The number increases when more
statistics turn out to be wrong (``asyncpq.parquet.writer_faults``): segments of older versions are left out."""

_TAIL = b',"crc32":'
_MAX_NUMBER: Final = (1 << 63) - 1  # ids, sizes and counts are 64-bit numbers in every backend
_VARINT_BITS: Final = 63  # of a number; its varint has at most 9 bytes

# What is packed in a manifest of n bytes has at most 512 KiB + 16 * n bytes, and never more than 16 MiB: the ids of a
# million separate files, or the schema of 300,000 columns. Schemas and ids in no regular order deflate to an eighth.
_FREE_BYTES: Final = 512 << 10
_MAX_RATIO: Final = 16
_MAX_BYTES: Final = 16 << 20
_SMALL_BYTES: Final = 4096  # may deflate as far as it does


def encode(manifest: Manifest) -> bytes:
    """Return the manifest's object: JSON with a checksum, without the members that ``manifest.long`` moves to
    segments."""
    elsewhere = dict(manifest.long)
    record: dict[str, Any] = {
        "asyncpq_index": FORMAT,
        "index": manifest.index,
        "snapshot": manifest.snapshot,
        "commit": manifest.commit,
        "created": manifest.created.isoformat(),
        "as_of": None if manifest.as_of is None else manifest.as_of.isoformat(),
        "root": manifest.root,
        "partitions": manifest.partitions,
        "field_ids": manifest.field_ids,
        "parts": [_part_record(index_table) for index_table in manifest.tables],
        "next_file": manifest.next_file,
        "num_files": manifest.num_files,
        "num_rows": manifest.num_rows,
        "builds": [{"id": build.id, "files": _packed_ranges(build.files)} for build in manifest.builds],
        "long": {name: _segment_record(segment, manifest.tables) for name, segment in manifest.long},
    }
    for name in LONG:
        if name not in elsewhere:
            record[name] = _member(manifest, name)
    body = _json(record)[:-1]
    return b"%s%s%d}" % (body, _TAIL, zlib.crc32(body))


def encode_long(manifest: Manifest, name: str) -> bytes:
    """Return the member ``name`` of the manifest's JSON, one of ``LONG``, as the content of a segment of its own."""
    return _json(_member(manifest, name))


def decode(content: bytes, long: Mapping[str, bytes] | None = None, *, url: str | None = None) -> Manifest:
    """Decode a manifest. ``content`` is its object, ``long`` the JSON of the members that :func:`long_members` names
    (None if it names none), ``url`` its place for messages. Raises UnsupportedFeatureError if the format is newer than
    ``FORMAT``, CorruptIndexError if the content is damaged."""
    record = _checked(content, url)
    bodies = long or {}
    try:
        next_file = _count(record["next_file"])
        packed = _Packed(len(content) + sum(map(len, bodies.values())), next_file)
        index_tables = tuple(_part(item) for item in record["parts"])
        held = {_text(name): _segment(item, index_tables, packed) for name, item in record["long"].items()}
        members = {name: json.loads(bodies[name]) if name in held else record[name] for name in LONG}
        as_of = record["as_of"]
        manifest = Manifest(
            index=_name(record["index"]),
            snapshot=_snapshot(record["snapshot"]),
            commit=_name(record["commit"]),
            created=_time(record["created"]),
            as_of=None if as_of is None else _time(as_of),
            root=_text(record["root"]),
            dataset=_object(members["dataset"]),
            schema=_schema(packed.unpacked(members["schema"])),
            partitions=tuple(_name(name) for name in record["partitions"]),
            field_ids=tuple((_name(name), _count(number)) for name, number in record["field_ids"]),
            tables=index_tables,
            segments=_segments(members["segments"], index_tables, packed),
            next_file=next_file,
            retired=packed.ranges(members["retired"]),
            num_files=_count(record["num_files"]),
            num_rows=_count(record["num_rows"]),
            builds=tuple(Build(_name(item["id"]), packed.ranges(item["files"])) for item in record["builds"]),
            long=tuple(held.items()),
        )
        if FILES not in index_tables:
            raise ValueError("the manifest lacks the table of files")
        _check_dataset(manifest.dataset, manifest.partitions, manifest.schema)
    except _MALFORMED as error:
        raise _damaged(url, str(error)) from error
    return manifest


def long_members(content: bytes, *, url: str | None = None) -> dict[str, Segment]:
    """Return the segments that store the long members of the manifest's JSON (those of :data:`LONG` that are too
    long for its object), by the member's name. Raises UnsupportedFeatureError or CorruptIndexError as :func:`decode`
    does."""
    record = _checked(content, url)
    try:
        packed = _Packed(len(content), _count(record["next_file"]))
        index_tables = tuple(_part(item) for item in record["parts"])
        return {
            _text(name): _segment(item, index_tables, packed) for name, item in record["long"].items() if name in LONG
        }
    except _MALFORMED as error:
        raise _damaged(url, str(error)) from error


#: What decoding malformed JSON members raises.
_MALFORMED: Final = (
    *(ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError),
    *(zlib.error, pa.ArrowException),
)


def _checked(content: bytes, url: str | None) -> dict[str, Any]:
    body, tail, checksum = content.rpartition(_TAIL)
    try:
        record = json.loads(content)
        if not isinstance(record, dict):
            raise ValueError(f"the JSON is a {type(record).__name__}, expected an object")
    except (ValueError, RecursionError) as error:
        raise _damaged(url, str(error)) from error
    version = record.get("asyncpq_index")
    if isinstance(version, int) and version > FORMAT:
        raise UnsupportedFeatureError(
            f"the index has format {version}; this version of asyncpq reads format {FORMAT}",
            url=url,
            hint="Update asyncpq, or build the index again with this version.",
        )
    if version != FORMAT:
        raise _damaged(url, f"the format is {version!r}, expected {FORMAT}")
    if not tail or checksum != b"%d}" % zlib.crc32(body):
        raise _damaged(url, "the checksum is wrong")
    return record


_SHOWN: Final = 200


def _damaged(url: str | None, why: str) -> CorruptIndexError:
    """Return the error of a damaged manifest. ``why`` may quote what the manifest says, so it is cut."""
    why = why if len(why) <= _SHOWN else f"{why[:_SHOWN]}..."
    return CorruptIndexError(f"the manifest of the index is damaged: {why}", url=url)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _member(manifest: Manifest, name: str) -> Any:
    if name == "schema":
        return _packed(manifest.schema.serialize().to_pybytes())
    if name == "dataset":
        return dict(manifest.dataset)
    if name == "retired":
        return _packed_ranges(manifest.retired)
    records: list[dict[str, Any]] = []
    first: dict[int, int] = {}
    for at, segment in enumerate(manifest.segments):
        same = first.setdefault(id(segment.files), at)
        records.append(_segment_record(segment, manifest.tables, None if same == at else same))
    return records


def _part_record(index_table: IndexTable) -> dict[str, Any]:
    return {"kind": index_table.kind, "columns": index_table.columns, "options": index_table.options}


def _part(record: Any) -> IndexTable:
    kind = _text(record["kind"])
    if kind not in TABLE_SCHEMAS:
        raise ValueError(f"{kind!r} is not a kind of index table")
    options = tuple((_text(name), _frozen(value)) for name, value in record["options"])
    index_table = IndexTable(kind, tuple(_name(name) for name in record["columns"]), options)
    _check_table(index_table)
    return index_table


def _frozen(value: Any) -> Any:
    """Return ``value`` with lists replaced by tuples, because index tables are hashed."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _segment_record(
    segment: Segment, index_tables: tuple[IndexTable, ...], same_files: int | None = None
) -> dict[str, Any]:
    index_table: Any = (
        index_tables.index(segment.table) if segment.table in index_tables else _part_record(segment.table)
    )
    record = {
        "name": segment.name,
        "part": index_table,
        "rows": segment.num_rows,
        "size": segment.size,
        "low": base64.b64encode(segment.low).decode(),
        "high": base64.b64encode(segment.high).decode(),
        "files": _packed_ranges(RowRanges(segment.files)) if same_files is None else same_files,
        "extra": dict(segment.extra),
    }
    if segment.table.kind == "bounds":
        record["bounds_version"] = BOUNDS_VERSION
    if segment.has_unknown:
        record["unknown"] = True
    if segment.data_bytes:
        record["data_bytes"] = segment.data_bytes
    return record


def _segments(records: Any, index_tables: tuple[IndexTable, ...], packed: _Packed) -> tuple[Segment, ...]:
    """Decode the JSON ``records`` of segments; those of kind "bounds" with an older ``BOUNDS_VERSION`` are left out."""
    segments: list[Segment] = []
    for record in records:
        segments.append(_segment(record, index_tables, packed, segments))
    if len({segment.name for segment in segments}) < len(segments):
        raise ValueError("two segments have the same name")
    return tuple(
        segment
        for segment, record in zip(segments, records, strict=True)
        if segment.table.kind != "bounds" or record.get("bounds_version", 0) >= BOUNDS_VERSION
    )


def _segment(
    record: Any, index_tables: tuple[IndexTable, ...], packed: _Packed, before: Sequence[Segment] = ()
) -> Segment:
    index_table, files = record["part"], record["files"]
    segment = Segment(
        name=_text(record["name"]),
        table=index_tables[_count(index_table)] if isinstance(index_table, int) else _part(index_table),
        num_rows=_count(record["rows"]),
        size=_count(record["size"]),
        low=base64.b64decode(record["low"], validate=True),
        high=base64.b64decode(record["high"], validate=True),
        files=before[_count(files)].files if isinstance(files, int) else tuple(packed.ranges(files)),
        has_unknown=bool(record.get("unknown", False)),
        data_bytes=_count(record.get("data_bytes", 0)),
        extra=_object(record["extra"]),
    )
    _check_segment(segment)
    return segment


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def _name(value: Any) -> str:
    """Return a string that is UTF-8. Only urls of local files may be something else."""
    text = _text(value)
    text.encode()
    return text


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"{value!r} is not a whole number from 0 to {_MAX_NUMBER}")
    return value


def _snapshot(value: Any) -> int:
    if _count(value) > MAX_SNAPSHOT:
        raise ValueError(f"{value} is above the greatest number of a snapshot, {MAX_SNAPSHOT}")
    return _count(value)


def _schema(data: bytes) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    # raise ValueError here if a name is not UTF-8
    list(schema.names)
    for type_ in schema.types:
        if type_.num_fields:
            str(type_)
    return schema


def _time(value: Any) -> datetime:
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError(f"the time {value!r} has no time zone")
    return time


def _packed(data: bytes) -> str:
    deflated = zlib.compress(data, 9)
    if len(data) > _SMALL_BYTES + _MAX_RATIO * len(deflated):
        deflated = zlib.compress(data, 0)  # readers bound what a manifest inflates to
    return base64.b64encode(deflated).decode()


def _packed_ranges(ranges: RowRanges) -> str:
    data, last = bytearray(), 0
    for start, stop in ranges:
        data += varint(start - last) + varint(stop - start)
        last = stop
    return _packed(bytes(data)) if data else ""


class _Packed:
    """Unpacks the members of one manifest, whose JSON has ``size`` bytes in all. Its methods raise ValueError or
    zlib.error if a member is malformed, if all of them inflate to more than is allowed, or if a set has ids that were
    never assigned: ``next_file`` and those after it."""

    def __init__(self, size: int, next_file: int) -> None:
        self._left = min(_MAX_BYTES, _FREE_BYTES + _MAX_RATIO * size)
        self._next_file = next_file

    def unpacked(self, text: Any) -> bytes:
        """Return what the member ``text`` inflates to."""
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"its deflated members have more than {_MAX_RATIO} times its own bytes, or {_MAX_BYTES}")
        if not inflate.eof:
            raise ValueError("a deflated member is cut off")
        return data

    def ranges(self, text: Any) -> RowRanges:
        """Return the set of ids that the member ``text`` holds."""
        if text == "":
            return RowRanges()
        starts: list[int] = []
        stops: list[int] = []
        at = number = shift = 0
        begins = True
        for byte in self.unpacked(text):
            number |= (byte & 0x7F) << shift
            if byte & 0x80:
                shift += 7
                if shift >= _VARINT_BITS:
                    raise ValueError("a set of file ids has a number of more than 9 bytes")
                continue
            if not number and (starts or not begins):
                raise ValueError("a set of file ids does not ascend")
            at += number
            if at > self._next_file:
                raise ValueError(f"a set of file ids has ids from {self._next_file} on, which were never assigned")
            (starts if begins else stops).append(at)
            begins, number, shift = not begins, 0, 0
        if not begins or shift or not starts:
            raise ValueError("a set of file ids is cut off")
        return RowRanges.from_parallel(starts, stops)


# -- what a decoded manifest may say; ValueErrors are a damaged manifest to decode() --------------

#: A segment's name is part of an object's name, which must not lead out of the index's folder.
_NAME: Final = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,200}")
_TEXTS: Final = ("footer", "whole", "digest", "directory")
_COUNTS: Final = ("tail", "packed")

#: By kind, how many columns a table has at least and at most.
_COLUMNS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("files", "footers", "pages", "manifest"), (0, 0)),
    **dict.fromkeys(("bounds", "set", "ngram", "text", "bloom"), (1, 1)),
    "keys": (1, 1 << 16),
}

_ANY_NUMBER: Final = ((int,), 1, (1 << 63) - 1)
#: By kind and name: types, least and greatest value of the options that lookups and builds use.
_OPTIONS: Final[Mapping[tuple[str, str], tuple[tuple[type, ...], float, float]]] = {
    ("ngram", "n"): ((int,), 1, MAX_GRAM_BYTES),
    ("ngram", "max_ngrams"): _ANY_NUMBER,
    ("set", "max_values"): _ANY_NUMBER,
    ("keys", "max_postings"): _ANY_NUMBER,
    ("bloom", "fpp"): ((int, float), 1e-6, 0.5),
}


def _check_table(index_table: IndexTable) -> None:
    """Check that a table has as many columns as its kind can have, and the options that lookups use."""
    least, most = _COLUMNS[index_table.kind]
    if not least <= len(index_table.columns) <= most:
        raise ValueError(f"a table of kind {index_table.kind!r} has {len(index_table.columns)} columns")
    if len({name for name, _ in index_table.options}) < len(index_table.options):
        raise ValueError(f"a table of kind {index_table.kind!r} has two options of one name")
    for name, value in index_table.options:
        types, lowest, highest = _OPTIONS.get((index_table.kind, name), ((), 0, 0))
        if types and not (type(value) in types and lowest <= value <= highest):
            raise ValueError(f"a table of kind {index_table.kind!r} has {name}={value!r}")
    if index_table.kind == "ngram" and "n" not in dict(index_table.options):
        raise ValueError("a table of n-grams does not say how long they are")


def _check_segment(segment: Segment) -> None:
    """Check a segment's name, and those members of its ``extra`` that backends use."""
    if not _NAME.fullmatch(segment.name):
        raise ValueError(f"{segment.name!r} is not the name of a segment")
    extra = segment.extra
    for name in _TEXTS:
        if name in extra and not isinstance(extra[name], str):
            raise ValueError(f"the member {name!r} of a segment's extra is {extra[name]!r}, expected a string")
    counts = [extra[name] for name in _COUNTS if name in extra]
    if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) > segment.size:
        raise ValueError(f"the footer of segment {segment.name} has other bytes than the segment")


def _check_dataset(dataset: Mapping[str, Any], partitions: Sequence[str], schema: pa.Schema) -> None:
    """Check the indexed dataset's description: the target of its files, and how their paths name partitions."""
    target, partitioning = dataset.get("target"), dataset.get("partitioning")
    is_list = isinstance(target, list) and target != [] and all(isinstance(url, str) and url for url in target)
    if (target is not None or dataset.get("kind") == "files" or partitioning is not None) and not (
        is_list or (isinstance(target, str) and target)
    ):
        raise ValueError(f"the dataset's target is {target!r}, expected a url or a list of urls")
    if partitioning not in (None, "hive") and not (
        isinstance(partitioning, list) and all(isinstance(name, str) for name in partitioning)
    ):
        raise ValueError(f"the dataset's partitioning is {partitioning!r}")
    if partitioning is not None:
        for name in partitions:
            if schema.get_field_index(name) < 0:
                raise ValueError(f"the partition column {name!r} is not in the dataset's schema once")

"""What the footers of files say, for engines that give columns types of their own.

:func:`read_footers` opens files ahead, a limited number at once, and yields their :class:`FooterFacts`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile, Opener
from asyncpq.errors import AsyncpqError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.parquet.calendars import written_calendars
from asyncpq.parquet.column_chunk import Codec, Encoding
from asyncpq.parquet.logical_types import (
    LogicalKind,
    LogicalType,
    PhysicalType,
    Repetition,
    from_converted,
    to_converted,
)
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.row_group import UnknownLeafError
from asyncpq.parquet.schema import SchemaElement
from asyncpq.parquet.thrift import CompactReader

_LOGICAL_TYPE: Final = 10  # SchemaElement.logicalType of parquet.thrift
_DEFAULT_CRS: Final = "OGC:CRS84"
_ALGORITHMS: Final = ("SPHERICAL", "VINCENTY", "THOMAS", "ANDOYER", "KARNEY")


class SchemaNode(NamedTuple):
    """A field of a file's Parquet schema, with its child fields.

    Attributes:
        name: name of the field.
        is_repeated: whether the field is repeated, as the elements of lists are.
        physical_type: the type's name in parquet.thrift, such as "INT64"; None for a group.
        type_length: bytes of a value of the type FIXED_LEN_BYTE_ARRAY; ignore it for other types.
        logical_type: the logical type; None without one. If it contradicts the deprecated converted type, the latter
            counts, as in parquet-java.
        children: the fields of a group; empty for a leaf.
        parameters: parameters of the logical types VARIANT (``version``), GEOMETRY (``crs``) and GEOGRAPHY (``crs``,
            ``algorithm``); empty for others.
    """

    name: str
    is_repeated: bool
    physical_type: str | None
    type_length: int | None
    logical_type: LogicalType | None
    parameters: Mapping[str, int | str]
    children: tuple[SchemaNode, ...]

    @property
    def annotation(self) -> str | None:
        """Name of the logical type, such as "TIMESTAMP"; None without one, "UNRECOGNISED" if unknown."""
        return None if self.logical_type is None else self.logical_type.kind.value


class FileCalendars(NamedTuple):
    """The calendars of a file's dates and timestamps, as its footer states them.

    Attributes:
        datetimes: whether DATE and TIMESTAMP are in the hybrid calendar of old Spark versions; None: it does not say.
        int96: the same of timestamps that are stored as INT96.
        zone: the writer's time zone.
        int96_fields, timestamp_fields: names of the top-level fields with INT96, and with other timestamps.
    """

    datetimes: bool | None
    int96: bool | None
    zone: str | None
    int96_fields: frozenset[str]
    timestamp_fields: frozenset[str]


class FooterFacts:
    """Facts from a file's footer, for methods of :class:`EngineRules`. :meth:`EngineDataset.footers` yields them."""

    def __init__(self, metadata: FileMetadata) -> None:
        self._metadata = metadata

    @property
    def num_rows(self) -> int:
        """Number of rows of the file."""
        return self._metadata.num_rows

    @property
    def created_by(self) -> str:
        """Name and version of the writer; empty if the footer does not have them."""
        return self._metadata.created_by or ""

    @property
    def key_values(self) -> Mapping[str, str | None]:
        """The key-value metadata, such as Spark's and Arrow's; a key without a value maps to None."""
        return self._metadata.key_value_metadata

    @cached_property
    def fields(self) -> tuple[SchemaNode, ...]:
        """The top-level fields of the schema."""
        elements = iter(self._metadata.schema.elements)
        return self._node(next(elements), elements).children

    def _node(self, element: SchemaElement, rest: Iterator[SchemaElement]) -> SchemaNode:
        physical = element.physical_type
        return SchemaNode(
            name=element.name,
            is_repeated=element.repetition is Repetition.REPEATED,
            physical_type=None if physical is None else physical.name,
            type_length=element.type_length,
            logical_type=_annotation(element),
            parameters=self._parameters(element),
            children=tuple([self._node(next(rest), rest) for _ in range(element.num_children)]),
        )

    def _parameters(self, element: SchemaElement) -> Mapping[str, int | str]:
        kind = None if element.logical_type is None else element.logical_type.kind
        if kind not in (LogicalKind.VARIANT, LogicalKind.GEOMETRY, LogicalKind.GEOGRAPHY):
            return {}
        union = CompactReader(self._metadata.data, element.raw_start).struct().get(_LOGICAL_TYPE)
        found = next(iter(union.values()), None) if isinstance(union, dict) else None
        values = found if isinstance(found, dict) else {}
        first = values.get(1)
        if kind is LogicalKind.VARIANT:
            return {"version": first} if isinstance(first, int) else {}
        crs = first.decode("utf-8", "replace") if isinstance(first, bytes) else _DEFAULT_CRS
        if kind is LogicalKind.GEOMETRY:
            return {"crs": crs}
        number = values.get(2, 0)
        is_known = isinstance(number, int) and 0 <= number < len(_ALGORITHMS)
        return {"crs": crs, "algorithm": _ALGORITHMS[number] if is_known else str(number)}  # type: ignore[index]

    @cached_property
    def calendars(self) -> FileCalendars:
        """The calendars in which the writer stored dates and timestamps, for
        :func:`asyncpq.engine.array_conversions.rebased`."""
        schema = self._metadata.schema
        names: dict[bool, set[str]] = {True: set(), False: set()}  # of fields with timestamps, by whether of INT96
        for leaf in schema.leaves:
            is_int96, logical = leaf.element.physical_type is PhysicalType.INT96, leaf.logical_type
            if is_int96 or (logical is not None and logical.kind is LogicalKind.TIMESTAMP):
                names[is_int96].add(schema.fields[leaf.field_index].name)
        written = written_calendars(self._metadata.key_value_metadata)
        return FileCalendars(*written[:3], frozenset(names[True]), frozenset(names[False]))

    def undecodable(self, codecs: Collection[str], encodings: Collection[str]) -> str:
        """Return why a reader with only these codecs and encodings, named as in parquet.thrift, cannot decode the first
        row group: the end of a sentence that begins with the file. "" if it can."""
        if not self._metadata.row_groups:
            return ""
        group = self._metadata.row_groups[0]
        codes = {Encoding[name] for name in encodings}
        for leaf in self._metadata.schema.leaves:
            try:
                chunk = group.parse_chunk(leaf.index)
            except UnknownLeafError:  # an index has other columns of the file
                continue
            except AsyncpqError as error:
                return f"cannot be examined: {error.message}"
            if chunk.has_crypto:
                return "is encrypted"
            if chunk.codec not in [Codec[name] for name in codecs] or not codes.issuperset(chunk.encodings):
                return "has a codec or an encoding that the reader lacks"
        return ""


def _annotation(element: SchemaElement) -> LogicalType | None:
    logical, converted = element.logical_type, element.converted_type
    if logical is None or converted is None or logical.kind is LogicalKind.UNRECOGNISED:
        return logical
    return (
        logical if converted is to_converted(logical) else from_converted(converted, element.precision, element.scale)
    )


class ReadFooter(NamedTuple):
    """A file that was opened, with its footer, and the Arrow schema that asyncpq reads.

    Attributes:
        file: the file, as it was listed.
        url: its url, without secrets.
        facts: what its footer says.
        schema: the Arrow schema of its columns.
        schema_bytes: equal for files with the same schema.
    """

    file: DataFile
    url: str
    facts: FooterFacts
    schema: pa.Schema
    schema_bytes: tuple[bytes, str | None]


async def read_footers(
    state: DatasetState, files: Sequence[DataFile], operation: Operation, *, first: bool = False
) -> AsyncGenerator[ReadFooter]:
    """Yield the footers of files in order, without those that the dataset leaves out.

    Args:
        first: only the first file that can be read.

    Raises:
        ObjectNotFoundError: all files are left out.
        AsyncpqError: a file cannot be read, and the dataset does not leave it out.
    """

    async def look(opened: OpenedFile) -> None:
        """Do nothing: the footer is there."""

    def skip(number: int, part: Operation, error: AsyncpqError) -> None:
        if first:
            operation.metrics.add_part(part.metrics)
        else:
            operation.part_ended(part, error, number + 1)

    opener = Opener(
        runtime=state.runtime,
        operation=operation,
        rounds=operation.metrics.rounds,
        tail_hint=state.url,
        scan=not first,
        few=first,
        restarts=state.runtime.options.limits.max_restarts,
        skip=skip if state.skips or state.skips_missing else None,
        leaves_out=state.leaves_out,
    )
    num_read = 0
    async with aclosing(opener.files(enumerate(files), look)) as opened_files:
        async for opened, _ in opened_files:
            await opened.close()
            if first:
                operation.metrics.add_part(opened.operation.metrics)
            else:
                operation.part_ended(opened.operation, None, opened.number + 1)
            num_read += 1
            metadata = opened.version.metadata
            yield ReadFooter(opened.file, opened.version.url, FooterFacts(metadata), opened.schema, opened.schema_bytes)
            if first:
                return
    if not num_read:
        raise ObjectNotFoundError(
            "the dataset has no file that can be read: all were skipped",
            url=state.url,
            hint='Pass on_bad_file="raise" to see the first error.',
        )

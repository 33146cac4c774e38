"""Avro object container files, in which Iceberg keeps manifests and manifest lists, read within their bytes.

pyiceberg has the schemas and the readers of records. In 0.12, its own decoder in C checks no bounds: a damaged length
makes it read memory outside of the file, or crash. Its loops take any count of a block on trust, and it takes a block
that is cut off, or an empty one, for the end of the file. Spec: Avro 1.11, "Object Container Files", "Binary Encoding".
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import pyarrow as pa
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.reader import BinaryReader, IntegerReader, ListReader, MapReader, OptionReader, Reader, StructReader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor, construct_reader
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.types import (
    BinaryType,
    FixedType,
    IcebergType,
    ListType,
    MapType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from asyncpq.datasets.model import MetadataBudget
from asyncpq.errors import UnsupportedFeatureError, shown
from asyncpq.options import LimitOptions

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_CRC_BYTES: Final = 4
#: Memory, about, that these take beside the bytes that they are decoded from: a record, a struct in a list, any other
#: element of a list, and a key or value of a map.
_RECORD_BYTES: Final = 2048
_STRUCT_BYTES: Final = 256
_ELEMENT_BYTES: Final = 32
_MAX_INT_BYTES: Final = 10  # of an integer of 64 bits
_MORE: Final = 0x80  # the bit of a byte that is not an integer's last
_SMALL: Final = tuple((byte >> 1) ^ -(byte & 1) for byte in range(_MORE))  # the integers of one byte
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_PIECE_BYTES: Final = 256 << 10
_VARINT_BYTES: Final = 5  # of a size below 4 GiB
_RAW: Final = -15  # zlib's code for deflate without header and checksum


def read_records(
    data: bytes,
    wanted: Schema,
    types: Mapping[int, Any],
    limits: LimitOptions,
    enums: Mapping[int, Callable[..., Any]] | None = None,
) -> Iterator[Any]:
    """Iterate over the records of an Avro file, in the form of ``wanted``; fields that the file lacks are None.

    Args:
        types: the classes of structs, by field id; -1 for the record itself.
        enums: the classes of enumerations, by field id.

    Raises:
        ValueError, or another error of pyiceberg: the file is malformed.
        UnsupportedFeatureError: the file is compressed by an unknown codec, or its schema has no field ids.
        ResourceLimitError: the blocks, records and elements of lists and maps exceed the file's
            :class:`MetadataBudget`.
    """
    budget = MetadataBudget(len(data), limits)
    decoder = BoundedDecoder(data, budget)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    if header.magic != _MAGIC:
        raise ValueError("the file is not an Avro file")
    written = _written_schema(header)
    _check_sizes(written.as_struct())
    resolver = _Resolver(dict(types), dict(enums or {}))

    def make() -> Reader:
        reader: Reader = visit_with_partner(written, wanted, resolver, SchemaPartnerAccessor())  # type: ignore[misc]
        return reader

    readers = [make()]
    if resolver.has_fixed:
        resolver.is_sized = True
        readers.append(make())
    blocks = _Blocks(header.meta.get("avro.codec", "null"), Inflater(budget))
    while not decoder.at_end:
        count = decoder.read_int()
        content = blocks.plain(decoder.read_bytes())
        if decoder.read(_SYNC_BYTES) != header.sync:
            raise ValueError(f"a block that ends at byte {decoder.tell()} has no sync marker behind it")
        try:
            records = _records(BoundedDecoder(content, budget), count, readers[0])
        except ValueError:
            if len(readers) == 1:
                raise
            records = _records(BoundedDecoder(content, budget), count, readers[-1])
            readers = readers[-1:]
        yield from records


def _records(block: BoundedDecoder, count: int, reader: Reader) -> list[Any]:
    """Decode a block of ``count`` records."""
    block.check_count(count)
    block.budget.spend(count * _RECORD_BYTES)
    records = [reader.read(block) for _ in range(count)]
    if not block.at_end:
        raise ValueError(f"a block has {count} records, but more bytes than they take")
    return records


class _Blocks:
    """Decompresses the blocks of one file."""

    def __init__(self, codec: str, inflater: Inflater) -> None:
        self._codec = codec
        self._inflater = inflater

    def plain(self, block: bytes) -> bytes:
        match self._codec:
            case "null":
                return block
            case "deflate":
                return self._inflater.deflate(block)
            case "zstandard":
                return self._inflater.stream(block, "zstd")
            case "bzip2":
                return self._inflater.stream(block, "bz2")
            case "snappy":
                content = self._inflater.snappy(block[:-_CRC_BYTES])
                if zlib.crc32(content) != int.from_bytes(block[-_CRC_BYTES:], "big"):
                    raise ValueError("a block does not match its CRC-32 checksum")
                return content
            case other:
                raise UnsupportedFeatureError(f"asyncpq does not support the Avro codec {shown(other)}")


def _written_schema(header: AvroFileHeader) -> Schema:
    """Return the schema of a file. Raises UnsupportedFeatureError if it has no field ids, which Iceberg requires and
    ClickHouse leaves out: names alone do not say which fields these are."""
    schema = json.loads(header.meta.get("avro.schema", "null"))
    try:
        return _SchemaConversion().avro_to_iceberg(schema)
    except ValueError as error:
        if not _has_ids(schema):
            raise UnsupportedFeatureError(
                "asyncpq does not support Iceberg metadata in Avro without field-id",
                hint="Rewrite the table's manifests with another writer, such as Spark's rewrite_manifests.",
            ) from error
        raise


class _SchemaConversion(AvroSchemaConversion):
    """pyiceberg's conversion, and the nanoseconds that its writers give partitions and version 0.12 does not read."""

    def _convert_logical_type(self, avro_logical_type: dict[str, Any]) -> IcebergType:
        if (avro_logical_type["logicalType"], avro_logical_type["type"]) != ("timestamp-nanos", "long"):
            return super()._convert_logical_type(avro_logical_type)
        return TimestamptzNanoType() if avro_logical_type.get("adjust-to-utc") is True else TimestampNanoType()


def _has_ids(schema: object) -> bool:
    """Return whether all fields of the records in an Avro schema have ids."""
    if isinstance(schema, list):
        return all(map(_has_ids, schema))
    if not isinstance(schema, dict):
        return True
    fields = schema.get("fields")
    named = fields if isinstance(fields, list) else []
    records = [field for field in named if isinstance(field, dict)]
    parts = [*(field.get("type") for field in records), *(schema.get(part) for part in ("type", "items", "values"))]
    return all("field-id" in field for field in records) and all(map(_has_ids, parts))


class _Resolver(ReadSchemaResolver):
    """Makes pyiceberg's readers; those of lists and maps count what they read, the decoder integers and bytes.

    Iceberg's Java library, up to 1.12.0, writes a partition of type fixed like bytes, with its size before it, although
    the file's schema says fixed (apache/iceberg#17501). ``is_sized`` makes readers of such files.
    """

    __slots__ = ("has_fixed", "is_sized")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.has_fixed = self.is_sized = False

    def visit_fixed(self, fixed_type: FixedType, partner: IcebergType | None) -> Reader:
        self.has_fixed = True
        return self.visit_binary(BinaryType(), None) if self.is_sized else super().visit_fixed(fixed_type, partner)

    def list(self, list_type: ListType, expected_list: IcebergType | None, element_reader: Reader) -> Reader:
        reader = super().list(list_type, expected_list, element_reader)
        assert isinstance(reader, ListReader)
        return reader if isinstance(reader.element, IntegerReader) else ListReader(_Counted(reader.element))

    def map(
        self, map_type: MapType, expected_map: IcebergType | None, key_reader: Reader, value_reader: Reader
    ) -> Reader:
        reader = super().map(map_type, expected_map, key_reader, value_reader)
        assert isinstance(reader, MapReader)
        if isinstance(reader.key, IntegerReader) and isinstance(reader.value, (IntegerReader, BinaryReader)):
            return reader
        return MapReader(_Counted(reader.key), _Counted(reader.value))


class _Counted(Reader):
    """Reads elements of a list or map, and counts them."""

    def __init__(self, element: Reader) -> None:
        self._element = element
        plain = element.option if isinstance(element, OptionReader) else element
        self._num_bytes = _STRUCT_BYTES if isinstance(plain, StructReader) else _ELEMENT_BYTES

    def read(self, decoder: BinaryDecoder) -> Any:
        assert isinstance(decoder, BoundedDecoder)
        decoder.budget.spend(self._num_bytes)
        return self._element.read(decoder)

    def skip(self, decoder: BinaryDecoder) -> None:
        self._element.skip(decoder)


def _check_sizes(iceberg_type: IcebergType) -> bool:
    """Return whether every value of the type takes at least one byte.

    Raises ValueError for a list or map of values that may take none: a few bytes would stand for any number of them.
    """
    match iceberg_type:
        case StructType():
            sizes = [_check_sizes(part.field_type) or not part.required for part in iceberg_type.fields]
            return any(sizes)
        case ListType():
            if not _check_sizes(iceberg_type.element_type) and iceberg_type.element_required:
                raise ValueError("a list has elements that take no bytes")
        case MapType():
            sizes = [_check_sizes(iceberg_type.key_type), _check_sizes(iceberg_type.value_type)]
            if not any(sizes) and iceberg_type.value_required:
                raise ValueError("a map has entries that take no bytes")
        case FixedType():
            return len(iceberg_type) > 0
        case UnknownType():
            return False
    return True


class BoundedDecoder(BinaryDecoder):
    """Decodes values from bytes in memory. Raises ValueError for a value that the bytes do not hold, and
    ResourceLimitError if the integers and bytes of lists and maps exceed ``budget``."""

    def __init__(self, data: bytes, budget: MetadataBudget) -> None:
        self.budget = budget
        self._data = data
        self._position = 0

    def tell(self) -> int:
        return self._position

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def check_count(self, n: int) -> None:
        """Raise ValueError if ``n`` values of at least one byte each cannot follow."""
        if not 0 <= n <= len(self._data) - self._position:
            raise ValueError(f"{n} values at byte {self._position} of {len(self._data)}")

    def read(self, n: int) -> bytes:
        start = self._position
        self.skip(n)
        return self._data[start : self._position]

    def skip(self, n: int) -> None:
        stop = self._position + n
        if not self._position <= stop <= len(self._data):
            raise ValueError(f"{n} bytes at byte {self._position} of {len(self._data)}")
        self._position = stop

    def read_int(self) -> int:
        position = self._position
        try:
            byte = self._data[position]
        except IndexError:
            raise _cut_off(position) from None
        if byte < _MORE:
            self._position = position + 1
            return _SMALL[byte]
        number, self._position = _long_int(self._data, position)
        return number

    def read_ints(self, n: int) -> tuple[int, ...]:
        self.check_count(n)
        self.budget.spend(n * _ELEMENT_BYTES)
        data, position = self._data, self._position
        numbers: list[int] = []
        try:
            for _ in range(n):
                byte = data[position]
                if byte < _MORE:
                    position += 1
                    numbers.append(_SMALL[byte])
                else:
                    number, position = _long_int(data, position)
                    numbers.append(number)
        except IndexError:
            raise _cut_off(position) from None
        self._position = position
        return tuple(numbers)

    def read_int_bytes_dict(self, n: int, dest: dict[int, bytes]) -> None:
        self.check_count(n)
        self.budget.spend(n * 2 * _ELEMENT_BYTES)
        for _ in range(n):
            key = self.read_int()
            dest[key] = self.read(self.read_int())

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())

    def read_float(self) -> float:
        (value,) = _FLOAT.unpack(self.read(4))
        return float(value)

    def read_double(self) -> float:
        (value,) = _DOUBLE.unpack(self.read(8))
        return float(value)

    def skip_int(self) -> None:
        self.read_int()


def _long_int(data: bytes, start: int) -> tuple[int, int]:
    """Decode the integer of several bytes at ``start``; return it and the position behind it."""
    number = shift = 0
    for position in range(start, min(start + _MAX_INT_BYTES, len(data))):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < _MORE:
            return (number >> 1) ^ -(number & 1), position + 1
        shift += 7
    raise _cut_off(start)


def _cut_off(position: int) -> ValueError:
    return ValueError(f"the integer at byte {position} has no end")


class Inflater:
    """Decompresses the parts of one file. All methods raise ValueError, OSError or zlib.error if the bytes are
    malformed, and ResourceLimitError if all parts together exceed ``budget``."""

    def __init__(self, budget: MetadataBudget) -> None:
        self._budget = budget

    def deflate(self, data: bytes) -> bytes:
        """Decompress raw deflate data."""
        decompressor = zlib.decompressobj(_RAW)
        content = self._kept(decompressor.decompress(data, self._budget.left + 1))
        if not decompressor.eof:
            raise ValueError("deflated bytes are cut off")
        return content

    def stream(self, data: bytes, codec: Literal["gzip", "zstd", "bz2"]) -> bytes:
        """Decompress a stream of a codec that marks its end."""
        pieces: list[bytes] = []
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while piece := stream.read(_PIECE_BYTES):
                pieces.append(self._kept(piece))
        return b"".join(pieces)

    def snappy(self, data: bytes) -> bytes:
        """Decompress a snappy block, which begins with its decompressed size as a varint."""
        size = 0
        for position, byte in enumerate(data[:_VARINT_BYTES]):
            size |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                break
        self._budget.spend(size)
        return bytes(pa.Codec("snappy").decompress(data, size))

    def _kept(self, content: bytes) -> bytes:
        self._budget.spend(len(content))
        return content

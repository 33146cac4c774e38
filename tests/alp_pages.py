"""ALP pages made here (parquet-format, AlpEncoding.md), which pyarrow does not write."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.parquet_files import I32, EditedFile, Items, RawPage

ALP = 10
_INTEGERS = {32: ("<i", "<f"), 64: ("<q", "<d")}
_CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4_raw": 7}


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def vector(values: Sequence[bytes], bits: int, exponent: int, factor: int) -> bytes:
    """One vector: those of ``values``, little-endian, that the pair does not give back are exceptions."""
    _, real = _INTEGERS[bits]
    rounded = _float32 if bits == 32 else float
    up, down = rounded(float(f"1e{exponent}")), rounded(float(f"1e-{factor}"))
    back, last = rounded(float(f"1e{factor}")), rounded(float(f"1e-{exponent}"))
    integers: list[int | None] = []
    for raw in values:
        value = struct.unpack(real, raw)[0]
        scaled = value * up * down
        integer = round(scaled) if abs(scaled) < 1 << bits - 2 else None
        if integer is not None and struct.pack(real, rounded(rounded(integer) * back) * last) != raw:
            integer = None
        integers.append(integer)
    kept = [integer for integer in integers if integer is not None]
    reference = min(kept, default=0)
    packed = 0
    width = (max(kept, default=0) - reference).bit_length()
    for position, integer in enumerate(integers):
        packed |= (0 if integer is None else integer - reference) << position * width
    excepted = [position for position, integer in enumerate(integers) if integer is None]
    return b"".join(
        (
            bytes((exponent, factor)),
            struct.pack("<H", len(excepted)),
            struct.pack(_INTEGERS[bits][0], reference),
            bytes((width,)),
            packed.to_bytes(len(values) * width + 7 >> 3, "little"),
            *(struct.pack("<H", position) for position in excepted),
            *(values[position] for position in excepted),
        )
    )


def assemble(vectors: Sequence[bytes], count: int, log: int = 10, mode: int = 0, integers: int = 0) -> bytes:
    """A page's values of ready vectors."""
    offsets: list[int] = []
    at = 4 * len(vectors)
    for each in vectors:
        offsets.append(at)
        at += len(each)
    head = struct.pack("<BBBi", mode, integers, log, count)
    return head + struct.pack(f"<{len(offsets)}I", *offsets) + b"".join(vectors)


def encoded(values: bytes, bits: int, *, log: int = 10, pairs: Sequence[tuple[int, int]] = ((8, 4),)) -> bytes:
    """A page's values from PLAIN ones. The vectors take the pairs of exponent and factor in turn."""
    size = bits >> 3
    items = [values[at : at + size] for at in range(0, len(values), size)]
    starts = range(0, len(items), 1 << log)
    vectors = [
        vector(items[at : at + (1 << log)], bits, *pairs[number % len(pairs)]) for number, at in enumerate(starts)
    ]
    return assemble(vectors, len(items), log)


def alp_page(page: RawPage, bits: int, num_levels: int, codec: str = "none", **options: Any) -> RawPage:
    """An uncompressed PLAIN page as one of ALP. ``num_levels``: how many kinds of levels stand before the values."""
    payload = page.payload
    header = page.header
    levels = 0
    if page.kind == 3:
        inner = header.value(8)
        levels = inner.value(5) + inner.value(6)
        inner.put(4, ALP, I32)
        if codec != "none":
            inner.put(7, None)  # is_compressed, which is true then
    else:
        inner = header.value(5)
        for _ in range(num_levels):
            levels += 4 + int.from_bytes(payload[levels : levels + 4], "little")
        inner.put(2, ALP, I32)
    head, values = payload[:levels], encoded(payload[levels:], bits, **options)
    if page.kind == 0:
        head, values = b"", head + values
    size = len(head) + len(values)
    if codec != "none":
        values = pa.Codec(codec).compress(values, asbytes=True)
    header.put(2, size, I32)
    header.put(3, len(head) + len(values), I32)
    if header.value(4) is not None:
        header.put(4, struct.unpack("<i", struct.pack("<I", zlib.crc32(head + values)))[0], I32)
    return RawPage(header, head + values)


def alp_file(
    table: pa.Table,
    columns: Sequence[int],
    *,
    codec: str = "none",
    index: bool = True,
    some: slice = slice(None),
    alp: dict[str, Any] | None = None,
    **options: Any,
) -> bytes:
    """A file whose leaf ``columns`` have the pages ``some`` of each chunk in ALP, the others PLAIN or of indices.

    pyarrow writes it uncompressed; with a ``codec``, all pages of these columns have to be of ALP, not of V1 with it.
    """
    options.setdefault("use_dictionary", False)
    file = EditedFile.of(table, compression="none", **options)
    leaves = pq.ParquetFile(io.BytesIO(file.data())).schema
    for group in range(len(file.footer.value(4))):
        for column in columns:
            leaf = leaves.column(column)
            bits = 32 if leaf.physical_type == "FLOAT" else 64
            num_levels = bool(leaf.max_definition_level) + bool(leaf.max_repetition_level)
            pages = file.pages(column, group)
            data = [page for page in pages if page.kind != 2]
            chosen = {id(page) for page in data[some] if _is_plain(page)}
            made = [
                alp_page(page, bits, num_levels, codec, **(alp or {})) if id(page) in chosen else page for page in pages
            ]
            meta = file.meta(column, group)
            meta.put(2, Items(I32, [*meta.value(2), ALP]))
            meta.put(13, None)  # encoding_stats
            meta.put(4, _CODECS[codec], I32)
            file.set_pages(made, column, group, index=index)
            if not index:
                file.set_column_index(None, column, group)
    return file.data()


def _is_plain(page: RawPage) -> bool:
    inner = page.header.value(5 if page.kind == 0 else 8)
    return bool(inner.value(2 if page.kind == 0 else 4) == 0)


def bits_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values with each float as the bytes that it has, since NaN is not equal to itself."""
    return list(_bits(array.to_pylist(), pa.types.is_float32(array.type)))


def _bits(values: Sequence[Any], single: bool) -> Iterator[Any]:
    for value in values:
        if isinstance(value, float):
            yield struct.pack("<f" if single else "<d", value)
        elif isinstance(value, list):
            yield list(_bits(value, single))
        elif isinstance(value, dict):
            yield dict(zip(value, _bits(list(value.values()), single), strict=True))
        else:
            yield value

"""Every file of apache/parquet-testing: equal to pyarrow where pyarrow reads it, else a typed error.

Files are read whole, leaf by leaf, and, where they have an OffsetIndex, page by page. A file without an
expectation here fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.errors import CorruptIndexError
from asyncpq.parquet.page_index import decode_offset_index, validate_offset_index
from asyncpq.parquet.schema import Leaf
from tests.parquet_samples import BAD_DATA, DATA, metadata_of, requires_corpus

CORRUPT, LIMIT, UNSUPPORTED = asyncpq.CorruptFileError, asyncpq.ResourceLimitError, asyncpq.UnsupportedFeatureError


class Refused(NamedTuple):
    """What a file ends in that cannot be read, and what the error says."""

    error: type[asyncpq.FormatError]
    says: str


_FOOTER = Refused(UNSUPPORTED, "footer is encrypted")
_COLUMN = Refused(UNSUPPORTED, "column is encrypted")
# pyarrow reads the flipped bits of these unless it is told to check CRCs; asyncpq checks by default.
_CRC = Refused(CORRUPT, "CRC")

REFUSED: dict[str, Refused] = {
    "data/aes256/encrypt_columns_and_footer.parquet.encrypted": _FOOTER,
    "data/aes256/encrypt_columns_and_footer_ctr.parquet.encrypted": _FOOTER,
    "data/aes256/encrypt_columns_and_footer_disable_aad_storage.parquet.encrypted": _FOOTER,
    "data/aes256/encrypt_columns_plaintext_footer.parquet.encrypted": _COLUMN,
    "data/aes256/uniform_encryption.parquet.encrypted": _FOOTER,
    "data/datapage_v1-corrupt-checksum.parquet": _CRC,
    "data/encrypt_columns_and_footer.parquet.encrypted": _FOOTER,
    "data/encrypt_columns_and_footer_aad.parquet.encrypted": _FOOTER,
    "data/encrypt_columns_and_footer_bloom_filter.parquet.encrypted": _FOOTER,
    "data/encrypt_columns_and_footer_ctr.parquet.encrypted": _FOOTER,
    "data/encrypt_columns_and_footer_disable_aad_storage.parquet.encrypted": _FOOTER,
    "data/encrypt_columns_plaintext_footer.parquet.encrypted": _COLUMN,
    "data/external_key_material_java.parquet.encrypted": _FOOTER,
    "data/large_string_map.brotli.parquet": Refused(LIMIT, "max_page_bytes"),
    "data/rle-dict-uncompressed-corrupt-checksum.parquet": _CRC,
    "data/uniform_encryption.parquet.encrypted": _FOOTER,
    "bad_data/ARROW-GH-41317.parquet": Refused(CORRUPT, "its metadata say 3"),
    "bad_data/ARROW-GH-41321.parquet": Refused(CORRUPT, "ends inside a page"),
    "bad_data/ARROW-GH-45185.parquet": Refused(CORRUPT, "repetition level"),
    "bad_data/ARROW-GH-47662.parquet": Refused(CORRUPT, "cannot be decoded"),
    "bad_data/ARROW-RS-GH-6229-DICTHEADER.parquet": Refused(CORRUPT, "outside the file's data"),
    "bad_data/ARROW-RS-GH-6229-LEVELS.parquet": Refused(CORRUPT, "21 values"),
    "bad_data/PARQUET-1481.parquet": Refused(CORRUPT, "physical type"),
}
EQUAL = {
    "bad_data/ARROW-GH-43605.parquet",
    "data/alltypes_dictionary.parquet",
    "data/alltypes_plain.parquet",
    "data/alltypes_plain.snappy.parquet",
    "data/alltypes_tiny_pages.parquet",
    "data/alltypes_tiny_pages_plain.parquet",
    "data/binary.parquet",
    "data/binary_truncated_min_max.parquet",
    "data/byte_array_decimal.parquet",
    "data/byte_stream_split.zstd.parquet",
    "data/byte_stream_split_extended.gzip.parquet",
    "data/column_chunk_key_value_metadata.parquet",
    "data/concatenated_gzip_members.parquet",
    "data/data_index_bloom_encoding_stats.parquet",
    "data/data_index_bloom_encoding_with_length.parquet",
    "data/datapage_v1-snappy-compressed-checksum.parquet",
    "data/datapage_v1-uncompressed-checksum.parquet",
    "data/datapage_v2.snappy.parquet",
    "data/datapage_v2_empty_datapage.snappy.parquet",
    "data/delta_binary_packed.parquet",
    "data/delta_byte_array.parquet",
    "data/delta_encoding_optional_column.parquet",
    "data/delta_encoding_required_column.parquet",
    "data/delta_length_byte_array.parquet",
    "data/dict-page-offset-zero.parquet",
    "data/fixed_length_byte_array.parquet",
    "data/fixed_length_decimal.parquet",
    "data/fixed_length_decimal_legacy.parquet",
    "data/float16_nonzeros_and_nans.parquet",
    "data/float16_zeros_and_nans.parquet",
    "data/floating_orders_nan_count.parquet",
    "data/geospatial/crs-arbitrary-value.parquet",
    "data/geospatial/crs-default.parquet",
    "data/geospatial/crs-geography.parquet",
    "data/geospatial/crs-projjson.parquet",
    "data/geospatial/crs-srid.parquet",
    "data/geospatial/geography-lines.parquet",
    "data/geospatial/geography-points.parquet",
    "data/geospatial/geography-polygons.parquet",
    "data/geospatial/geospatial-with-nan.parquet",
    "data/geospatial/geospatial.parquet",
    "data/hadoop_lz4_compressed.parquet",
    "data/hadoop_lz4_compressed_larger.parquet",
    "data/int32_decimal.parquet",
    "data/int32_with_null_pages.parquet",
    "data/int64_decimal.parquet",
    "data/int96_from_spark.parquet",
    "data/list_columns.parquet",
    "data/lz4_raw_compressed.parquet",
    "data/lz4_raw_compressed_larger.parquet",
    "data/map_no_value.parquet",
    "data/nan_in_stats.parquet",
    "data/nation.dict-malformed.parquet",
    "data/nested_lists.snappy.parquet",
    "data/nested_maps.snappy.parquet",
    "data/nested_structs.rust.parquet",
    "data/non_hadoop_lz4_compressed.parquet",
    "data/nonnullable.impala.parquet",
    "data/null_list.parquet",
    "data/nullable.impala.parquet",
    "data/nulls.snappy.parquet",
    "data/old_list_structure.parquet",
    "data/overflow_i16_page_cnt.parquet",
    "data/page_v2_empty_compressed.parquet",
    "data/plain-dict-uncompressed-checksum.parquet",
    "data/repeated_no_annotation.parquet",
    "data/repeated_primitive_no_list.parquet",
    "data/rle-dict-snappy-checksum.parquet",
    "data/rle_boolean_encoding.parquet",
    "data/single_nan.parquet",
    "data/sort_columns.parquet",
    "data/unknown-logical-type.parquet",
}
# pyarrow refuses the schema of these.
ONLY_HERE: dict[str, dict[str, list[object]]] = {
    "data/incorrect_map_schema.parquet": {"my_map": [[("parent", "another"), ("name", "report")]]}
}
# All other columns of these can be read.
ENCRYPTED_COLUMNS: dict[str, set[str]] = {
    "data/encrypt_columns_plaintext_footer.parquet.encrypted": {"float_field", "double_field"}
}
NO_PARQUET = {".bin", ".csv", ".json", ".md", ".txt"}


def files() -> list[str]:
    """All files of both folders, below the folder that holds them."""
    if not DATA.is_dir():
        return []
    found = [path for folder in (DATA, BAD_DATA) for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(DATA.parent)) for path in found if path.suffix not in NO_PARQUET)


FILES = files()
READABLE_FILES = [name for name in FILES if name in EQUAL]


def path_of(name: str) -> Path:
    return DATA.parent / name


def by_pyarrow(name: str, columns: list[str] | None = None) -> pa.Table:
    return pq.ParquetFile(path_of(name)).read(columns)


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Equal types and values; dictionaries may be ordered in another way, and NaN is NaN."""
    if not found.schema.equals(wanted.schema):
        return False
    if found.equals(wanted):
        return True
    return repr([column.to_pylist() for column in found.columns]) == repr(
        [column.to_pylist() for column in wanted.columns]
    )


@requires_corpus
def test_every_file_has_an_expectation() -> None:
    assert sorted(FILES) == sorted([*EQUAL, *REFUSED, *ONLY_HERE])


@requires_corpus
@pytest.mark.parametrize("name", READABLE_FILES)
async def test_whole_file(name: str) -> None:
    async with asyncpq.open_file(path_of(name)) as file:
        found = await file.read()
    assert same(found, by_pyarrow(name))


@requires_corpus
@pytest.mark.parametrize("name", [name for name in FILES if name in REFUSED])
async def test_file_that_cannot_be_read(name: str) -> None:
    wanted = REFUSED[name]
    with pytest.raises(wanted.error, match=wanted.says) as caught:
        async with asyncpq.open_file(path_of(name)) as file:
            await file.read()
    assert caught.value.url == str(path_of(name))


@requires_corpus
@pytest.mark.parametrize("name", ONLY_HERE)
async def test_file_that_pyarrow_refuses(name: str) -> None:
    with pytest.raises((pa.ArrowException, OSError)):
        by_pyarrow(name)
    async with asyncpq.open_file(path_of(name)) as file:
        assert (await file.read()).to_pydict() == ONLY_HERE[name]


@pytest.mark.sampled(6)
@requires_corpus
@pytest.mark.parametrize("name", READABLE_FILES)
async def test_every_leaf_alone(name: str) -> None:
    leaves = metadata_of(path_of(name).read_bytes()).schema.leaves
    names = [leaf.dotted for leaf in leaves]
    async with asyncpq.open_file(path_of(name)) as file:
        for leaf in leaves:
            if names.count(leaf.dotted) == 1:
                assert same(await file.read([leaf.dotted]), by_pyarrow(name, [leaf.dotted])), leaf.dotted
        for ordinal, field in enumerate(file.schema):
            if file.schema.names.count(field.name) > 1:
                table = by_pyarrow(name)
                wanted = pa.Table.from_arrays([table.column(ordinal)], schema=pa.schema([table.schema.field(ordinal)]))
                assert same(await file.read([ordinal]), wanted.replace_schema_metadata(table.schema.metadata))


def indexed_pages(data: bytes) -> Iterator[tuple[Leaf, int, int]]:
    """Leaf and rows of every page that an OffsetIndex tells of."""
    metadata = metadata_of(data)
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves:
            chunk = group.chunk(leaf.index)
            if chunk.offset_index_range is None:
                continue
            index = decode_offset_index(data[slice(*chunk.offset_index_range)])
            try:
                validate_offset_index(index, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=group.num_rows)
            except CorruptIndexError:
                continue
            for page in range(index.num_pages):
                start, stop = index.rows_of_page(page, group.num_rows)
                yield leaf, group.first_row + start, group.first_row + stop


HAVE_PAGES = [
    pytest.param(name, marks=pytest.mark.heavy if "tiny_pages" in name else ())
    for name in READABLE_FILES
    if next(indexed_pages(path_of(name).read_bytes()), None) is not None
]


@pytest.mark.sampled(2)
@requires_corpus
@pytest.mark.parametrize("name", HAVE_PAGES)
async def test_every_page_alone(name: str) -> None:
    wanted: dict[str, pa.Table] = {}
    async with asyncpq.open_file(path_of(name)) as file:
        for leaf, start, stop in indexed_pages(path_of(name).read_bytes()):
            column = leaf.dotted
            if column not in wanted:
                wanted[column] = by_pyarrow(name, [column])
            found = await file.take(range(start, stop), [column])
            assert same(found, wanted[column].slice(start, stop - start)), (column, start, stop)


@requires_corpus
@pytest.mark.parametrize("name", READABLE_FILES)
async def test_with_a_predicate(name: str) -> None:
    """Rows whose first comparable column equals one of its own values."""
    wanted = by_pyarrow(name)
    names = wanted.column_names
    for column_name in names:
        column = wanted.column(column_name) if names.count(column_name) == 1 else None
        if column is None or pa.types.is_nested(column.type):
            continue
        values = [value for value in column.drop_null().slice(0, 1).to_pylist() if value == value]
        if not values:
            continue
        try:
            rows = wanted.filter(pc.field(column_name) == values[0])
        except pa.ArrowException:
            continue  # no kernel compares this type
        async with asyncpq.open_file(path_of(name)) as file:
            found = await file.read(where=asyncpq.col(column_name) == values[0])
        assert rows.num_rows > 0
        assert same(found, rows)
        return
    pytest.skip("no column that pyarrow compares with ==")


@requires_corpus
@pytest.mark.parametrize("name", ENCRYPTED_COLUMNS)
async def test_plain_columns_beside_encrypted_ones(name: str) -> None:
    async with asyncpq.open_file(path_of(name)) as file:
        for column in file.schema.names:
            if column in ENCRYPTED_COLUMNS[name]:
                with pytest.raises(UNSUPPORTED, match="encrypted") as caught:
                    await file.take([0], [column])
                assert caught.value.column == column
            else:
                assert (await file.take([0, 49], [column])).num_rows == 2

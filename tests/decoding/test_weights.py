"""What caches are told that decoded dictionaries and pages weigh."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from asyncpq.decoding import splice
from asyncpq.decoding.page import DataPage, LeafArray
from asyncpq.decoding.splice import identity_dictionary
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from asyncpq.pruning.row_ranges import RowRanges
from tests.costs import python_calls
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import LIMITS, OpenFile


def many_pages() -> OpenFile:
    values = pa.array([f"{row % 400:01000d}" for row in range(8000)])
    return OpenFile(
        parquet_bytes(pa.table({"x": values}), data_page_size=1, write_batch_size=100, write_page_index=True)
    )


def test_kept_pages_hold_no_more_than_they_weigh() -> None:
    """Each page here was decoded with a copy of the dictionary of its own, which nobody keeps."""
    file = many_pages()
    _, pages = file.pages()
    assert len(pages) > 40
    kept: list[LeafArray] = []
    gc.collect()
    before = pa.total_allocated_bytes()

    def decode(page: DataPage) -> None:
        source = file.paged(keep=kept.append)
        source.add(page)
        source.select(RowRanges([(page.first_row, page.stop_row)]), LIMITS)

    for page in pages:
        decode(page)
    gc.collect()
    held = pa.total_allocated_bytes() - before
    assert len(kept) == len(pages)
    assert held <= sum(array.weight for array in kept) + 300 * len(kept)


def test_kept_pages_work_with_a_dictionary_decoded_anew() -> None:
    file = many_pages()
    _, pages = file.pages()
    kept: list[LeafArray] = []
    source = file.paged(keep=kept.append)
    for page in pages:
        source.add(page)
    everything = source.select(RowRanges.all(8000), LIMITS)
    again = file.paged()
    for array in kept:
        assert array.lacks_dictionary
        again.add(array)
    assert again.select(RowRanges.all(8000), LIMITS).equals(everything)
    assert again.pages_decoded == 0


def test_plain_pages_are_kept_as_they_are() -> None:
    array = LeafArray(0, pa.array([1, 2]), None)
    assert array.detached() is array
    assert array.attached(None, "x") is array


@pytest.mark.parametrize("codec", [0, 1, 2, 4, 6, 7])
@pytest.mark.parametrize("num_values", [0, 1, 8, 9, 1000, 65_536, 65_537, 100_000])
def test_identity_dictionary(codec: int, num_values: int) -> None:
    page = identity_dictionary(codec, num_values)
    header = decode_page_header(page, complete=True)
    assert isinstance(header, PageHeader)
    assert header.page_size == len(page)
    assert header.num_values >= max(1, num_values)
    assert header.uncompressed_size == 4 * header.num_values
    values = page[header.header_size :]
    if codec:
        name = splice.CODEC_NAMES[codec]
        values = pa.Codec(name).decompress(values, decompressed_size=header.uncompressed_size, asbytes=True)
    assert values == b"".join(number.to_bytes(4, "little") for number in range(header.num_values))


def test_shared_identity_dictionaries_are_small_and_few() -> None:
    splice._shared_identity.cache_clear()
    for num_values in [*range(0, 70_000, 500), 1 << 22]:
        identity_dictionary(1, num_values)
    info = splice._shared_identity.cache_info()
    sizes = [len(splice._shared_identity(1, 1 << power)) for power in range(3, 17)]
    assert info.currsize <= len(sizes)
    assert sum(sizes) < 530_000
    assert splice._shared_identity.cache_info().currsize == len(sizes)  # and none of another size


def test_large_identity_dictionary_is_not_made_number_by_number() -> None:
    assert python_calls(lambda: identity_dictionary(1, 1 << 22)) < 1000
    assert len(identity_dictionary(1, 1 << 22)) > 1 << 22


def test_large_identity_dictionary_is_made_once_and_weighed() -> None:
    values = pa.array(range(70_000), pa.int32())
    file = OpenFile(parquet_bytes(pa.table({"x": values}), dictionary_pagesize_limit=1 << 20))
    dictionary = file.dictionary()
    assert dictionary is not None
    assert len(dictionary.identity_page) > 4 * 70_000
    assert dictionary.weight == dictionary.values.nbytes + len(dictionary.identity_page)

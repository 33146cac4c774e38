"""Files packed into tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.distributed.packing import (
    FILE_COST_BYTES,
    LEAST_TASK_BYTES,
    MOST_TASK_BYTES,
    TaskPacker,
    group_pieces,
    with_payloads_that_fit,
)
from asyncpq.distributed.scan_tasks import PlannedFile, TaskPiece, decode_files, encode_files, pack_task, unpack_task
from asyncpq.options import KIB, MIB
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator


def file(num_bytes: int, url: str = "s3://b/k", payload: int = 0) -> PlannedFile:
    footers = {-1: b"x" * payload} if payload else {}
    return PlannedFile(url=url, validator=Validator(size=9, etag='"e"'), num_bytes=num_bytes, footers=footers)


def test_payloads_that_are_too_many_are_left_out() -> None:
    files = [file(1, f"s3://bucket/{number}", 9 * KIB) for number in range(12)]
    data = encode_files(with_payloads_that_fit(files))
    assert len(data) <= MOST_TASK_BYTES
    kept = [bool(found.footers) for found in decode_files(data)]
    assert kept == sorted(kept, reverse=True)
    assert 5 <= sum(kept) < 12


@given(st.lists(st.integers(0, 200 * MIB), max_size=60), st.integers(1, 64), st.sampled_from([4 * MIB, 64 * MIB]))
def test_packing(sizes: list[int], parallelism: int, split_bytes: int) -> None:
    pieces = packed(sizes, split_bytes)
    decoded = [decode_files(piece.encoded().data or b"") for piece in pieces]
    assert [found.num_bytes for files in decoded for found in files] == sizes  # order is kept
    assert [piece.num_bytes for piece in pieces] == [sum(found.num_bytes for found in files) for files in decoded]
    for piece, files in zip(pieces, decoded, strict=True):
        cost = sum(max(found.num_bytes, FILE_COST_BYTES) for found in files)
        assert cost <= split_bytes or piece.num_files == 1
    splits = group_pieces(pieces, task_bytes=split_bytes, most_tasks=10_000, parallelism=parallelism)
    assert [piece for split in splits for piece in split] == pieces
    for split in splits:
        assert sum(piece.num_bytes for piece in split) <= split_bytes or len(split) == 1
    total = sum(sizes)
    if total > 2 * parallelism * LEAST_TASK_BYTES and max(sizes) <= LEAST_TASK_BYTES:
        assert len(splits) >= min(parallelism, total // split_bytes)


@given(st.lists(st.integers(0, 300 * MIB), min_size=1, max_size=60), st.integers(1, 20))
def test_there_are_never_more_splits_than_allowed(sizes: list[int], most: int) -> None:
    pieces = packed(sizes, 64 * MIB)
    splits = group_pieces(pieces, task_bytes=64 * MIB, most_tasks=most)
    assert 1 <= len(splits) <= most
    assert [piece for split in splits for piece in split] == pieces
    if len(pieces) > most and max(sizes) < 10 * MIB:  # balanced by bytes
        sums = [sum(max(p.num_bytes, p.num_files * FILE_COST_BYTES) for p in split) for split in splits]
        assert max(sums) <= sum(sums) / most + 64 * MIB


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 300), st.integers(0, 40_000)), min_size=1, max_size=12),
    st.integers(1, 60),
    st.booleans(),
)
def test_splits_have_at_most_64_kib(shapes: list[tuple[int, int, int]], times: int, encoded: bool) -> None:
    """Whatever ranges, urls and payloads files have, and whether pieces are encoded before they are grouped."""
    packer, files = TaskPacker(1 << 40), []
    for number, (ranges, name, payload) in enumerate(shapes * times if max(shapes)[0] < 100 else shapes):
        rows = RowRanges([(at * 5, at * 5 + 2) for at in range(ranges)]) if ranges else None
        url = f"s3://{'é' * name}{number}"
        num_rows = 0 if rows is None else rows.num_rows
        files.append(replace(file(1000, url, payload), rows=rows, num_rows=num_rows))
    pieces = [piece for one in files for piece in packer.add(one)] + list(packer.finish())
    if encoded:
        pieces = [piece.encoded() for piece in pieces]
    splits = group_pieces(pieces, task_bytes=1 << 40, most_tasks=100_000)
    assert max(len(pack_task(split)) for split in splits) <= MOST_TASK_BYTES
    found: dict[str, list[PlannedFile]] = {}
    for split in splits:
        for data in unpack_task(pack_task(split)):
            assert isinstance(data, bytes)
            for one in decode_files(data):
                found.setdefault(one.url, []).append(one)
    assert [*found] == [one.url for one in files]
    for one in files:
        parts = found[one.url]
        assert [part.rows is None for part in parts] == [one.rows is None] * len(parts)
        assert sum(part.num_rows for part in parts) == one.num_rows
        if one.rows is not None:
            assert [pair for part in parts for pair in part.rows or ()] == [*one.rows]


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(("leaves", "size", "name"), [(40, 20, 0), (100, 8, 0), (200, 6, 0), (0, 0, 1024)])
def test_many_small_payloads_and_long_versions_fit(leaves: int, size: int, name: int, encoded: bool) -> None:
    payloads = dict.fromkeys(range(leaves), b"x" * size)
    version = Validator(size=9, version="v" * name)
    like = PlannedFile(url="", validator=version, num_bytes=1000, footers=payloads, pages=payloads)
    packer = TaskPacker(64 * MIB)
    pieces = [piece for number in range(400) for piece in packer.add(replace(like, url=f"s3://bucket/{number}"))]
    pieces += packer.finish()
    if encoded:
        pieces = [piece.encoded() for piece in pieces]
    splits = group_pieces(pieces, task_bytes=64 * MIB, most_tasks=999)
    assert max(len(pack_task(split)) for split in splits) <= MOST_TASK_BYTES


def packed(sizes: list[int], split_bytes: int) -> list[TaskPiece]:
    packer = TaskPacker(split_bytes)
    pieces = [piece for size in sizes for piece in packer.add(file(size))]
    return [*pieces, *packer.finish()]


def test_small_files_go_together_and_large_ones_alone() -> None:
    pieces = packed([100] * 30, 64 * MIB)
    assert sum(piece.num_files for piece in pieces) == 30
    assert len(group_pieces(pieces, task_bytes=64 * MIB, most_tasks=100)) == 1
    assert [piece.num_files for piece in packed([100, 200 * MIB, 100], 64 * MIB)] == [1, 1, 1]
    assert len(group_pieces(packed([100] * 1000, 64 * MIB), task_bytes=64 * MIB, most_tasks=100)) == 32
    few = group_pieces(packed([4 * MIB] * 8, 64 * MIB), task_bytes=64 * MIB, most_tasks=100, parallelism=4)
    assert [sum(piece.num_files for piece in split) for split in few] == [2, 2, 2, 2]
    assert group_pieces([], task_bytes=MIB, most_tasks=3) == []


def test_a_split_of_several_pieces_is_no_larger() -> None:
    packer = TaskPacker(64 * MIB)
    pieces = [piece for number in range(30) for piece in packer.add(file(1, f"s3://bucket/{number}", 5 * KIB))]
    pieces += packer.finish()
    (split,) = group_pieces(pieces, task_bytes=64 * MIB, most_tasks=9)
    assert len(split) == len(pieces) > 5
    assert len(pack_task(split)) <= MOST_TASK_BYTES
    kept = [bool(found.footers) for piece in split for found in decode_files(piece.encoded().data or b"")]
    assert 5 < sum(kept) < len(kept) == 30

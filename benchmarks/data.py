"""The benchmark's files: events sorted by id, with a page index, and the keys that are looked up in them.

12 columns of common types, row groups of a million rows, zstd, pages of 64 KiB or 20,000 rows. Everything
is drawn from fixed seeds, so each machine makes the same rows. A second file has the same rows in random order
and a bloom filter of the ids in each of its row groups; a folder has them, in order, in 500 files. One more file has
2,000 columns.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.datasets import BUCKET, KEY_STEP, LAKE_FILES, WIDE_COLUMNS, Dataset, Kind, file_name, lake_files, load

ROW_GROUP_ROWS = 1_000_000
BLOOM_ROW_GROUPS = 10  # at least
LOOKUPS = 1_200
WARM_UPS = 3
BATCH = 1_000  # keys that are looked up together

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("user", pa.string()),
        ("event", pa.string()),
        ("price", pa.float64()),
        ("score", pa.float64()),
        ("amount", pa.decimal128(18, 4)),
        ("qty", pa.int32()),
        ("tags", pa.list_(pa.int32())),
        ("flag", pa.bool_()),
        ("shard", pa.int32()),
        ("ref", pa.int64()),
    ]
)
DICTIONARY_COLUMNS = ["event", "qty", "shard"]
WRITE_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": DICTIONARY_COLUMNS,
    "write_page_index": True,
    "data_page_size": 64 * 1024,
    "max_rows_per_page": 20_000,
    "write_batch_size": 1024,
}


def ensure(folder: Path, rows: int, kind: Kind = "events") -> Dataset:
    """The dataset of ``rows`` rows, made below ``folder`` if it is not there yet."""
    file = folder / "objects" / BUCKET / file_name(rows, "events")
    answers = folder / f"keys-{rows}.json"
    if not (file.is_file() and answers.is_file()):
        _announce(file, rows)
        _write(file, rows)
        _write_keys(file, answers, rows)
    if not (reads := folder / f"reads-{rows}.json").is_file():
        _write_reads(file, reads, rows)
    if kind == "wide":
        wide = folder / "objects" / BUCKET / file_name(rows, kind)
        if not wide.is_file():
            _write_wide(wide)
    if kind == "events-bloom":
        shuffled = folder / "objects" / BUCKET / file_name(rows, kind)
        places = folder / f"places-{rows}.json"
        if not (shuffled.is_file() and places.is_file()):
            _announce(shuffled, rows)
            _write_shuffled(file, shuffled)
            _write_places(load(folder, rows), shuffled, places)
    if kind in ("lake", "lake-refs"):
        lake = folder / "objects" / BUCKET / file_name(rows, kind)
        if not lake.is_dir():
            _announce(lake, rows)
            _write_lake(file, lake)
    if kind == "lake-refs" and not (refs := folder / f"refs-{rows}.json").is_file():
        _write_refs(load(folder, rows), file, refs)
    return load(folder, rows, kind)


def _announce(file: Path, rows: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    print(f"writing {rows:,} rows to {file} ...", flush=True)


def _write(file: Path, rows: int) -> None:
    unfinished = file.with_suffix(".unfinished")
    with pq.ParquetWriter(unfinished, SCHEMA, sorting_columns=[pq.SortingColumn(0)], **WRITE_OPTIONS) as writer:
        for number, start in enumerate(range(0, rows, ROW_GROUP_ROWS)):
            stop = min(rows, start + ROW_GROUP_ROWS)
            writer.write_table(events(start, stop, seed=number), row_group_size=ROW_GROUP_ROWS)
    os.replace(unfinished, file)


def _write_shuffled(source: Path, file: Path) -> None:
    """The rows of ``source`` in random order: every row group of ``file`` has a share of each of the source's."""
    unfinished = file.with_suffix(".unfinished")
    random = np.random.default_rng(7)
    with pq.ParquetFile(source) as events:
        sizes = [events.metadata.row_group(group).num_rows for group in range(events.num_row_groups)]
        orders = [random.permutation(size) for size in sizes]
        count = max(BLOOM_ROW_GROUPS, len(sizes))
        filters = {"id": {"ndv": -(-sum(sizes) // count), "fpp": 0.01}}
        with pq.ParquetWriter(unfinished, SCHEMA, bloom_filter_options=filters, **WRITE_OPTIONS) as writer:
            for number in range(count):
                shares = [
                    events.read_row_group(group).take(pa.array(order[number::count]))
                    for group, order in enumerate(orders)
                ]
                rows = pa.concat_tables(shares)
                rows = rows.take(pa.array(random.permutation(len(rows))))
                writer.write_table(rows, row_group_size=len(rows))
    os.replace(unfinished, file)


def _write_lake(source: Path, lake: Path) -> None:
    """The rows of ``source``, in order, in files of equal size."""
    unfinished = lake.with_name(f"{lake.name}.unfinished")
    unfinished.mkdir(exist_ok=True)
    table = pq.read_table(source)
    rows = -(-len(table) // LAKE_FILES)
    for number, name in enumerate(lake_files()):
        pq.write_table(table.slice(number * rows, rows), unfinished / name, row_group_size=rows, **WRITE_OPTIONS)
    os.replace(unfinished, lake)


def _write_places(dataset: Dataset, file: Path, places: Path) -> None:
    ids = pq.read_table(file, columns=["id"])["id"].to_numpy()
    order = np.argsort(ids)
    found = order[np.searchsorted(ids, dataset.keys, sorter=order)]
    places.write_text(json.dumps(found.tolist()), encoding="utf-8")


def _write_refs(dataset: Dataset, file: Path, refs: Path) -> None:
    """The values of ``ref``, a column in random order, in the rows that are looked up."""
    column = pq.read_table(file, columns=["ref"])["ref"].to_numpy()
    wanted = {
        name: [int(column[key // KEY_STEP]) for key in keys]
        for name, keys in (("keys", dataset.keys), ("warm_up", dataset.warm_up))
    }
    refs.write_text(json.dumps(wanted), encoding="utf-8")


def events(start: int, stop: int, seed: int) -> pa.Table:
    """Rows ``[start, stop)`` of a file of events."""
    random = np.random.default_rng(seed)
    count = stop - start
    ids = np.arange(start, stop, dtype=np.int64) * KEY_STEP
    accounts = random.integers(0, 5_000_000, count).astype(np.uint64) * 2_654_435_761 % (1 << 40)
    kinds = pa.array([f"event_{number:02d}" for number in range(50)])
    list_offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, count))]).astype(np.int32)
    columns = {
        "id": pa.array(ids),
        "ts": pa.array(ids * 1000 + 1_700_000_000_000_000).cast(SCHEMA.field("ts").type),
        "user": pa.array([f"u-{account:013d}" for account in accounts.tolist()]),
        "event": kinds.take(pa.array(random.zipf(1.5, count) % 50)),
        "price": pa.array(random.gamma(2.0, 50.0, count).round(2)),
        "score": pa.array(random.random(count)),
        "amount": pa.array(random.integers(0, 10**9, count)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(18, 4)),
        "qty": pa.array(random.integers(0, 100, count).astype(np.int32), mask=random.random(count) < 0.1),
        "tags": pa.ListArray.from_arrays(
            pa.array(list_offsets), pa.array(random.integers(0, 10_000, list_offsets[-1]).astype(np.int32))
        ),
        "flag": pa.array(random.random(count) < 0.5),
        "shard": pa.array(random.integers(0, 1000, count).astype(np.int32)),
        "ref": pa.array(random.integers(0, 1 << 62, count)),
    }
    return pa.table(columns, schema=SCHEMA)


def _write_keys(file: Path, answers: Path, rows: int) -> None:
    random = np.random.default_rng(42)
    chosen = random.choice(rows, min(rows, LOOKUPS + WARM_UPS), replace=False)
    table = pq.read_table(file, columns=["id", "user"]).take(pa.array(chosen))
    ids, users = table["id"].to_pylist(), table["user"].to_pylist()
    answers.write_text(
        json.dumps({"keys": ids[WARM_UPS:], "users": users[WARM_UPS:], "warm_up": ids[:WARM_UPS]}), encoding="utf-8"
    )


def _write_reads(file: Path, reads: Path, rows: int) -> None:
    """A user with few rows in a column in random order, and a thousand keys."""
    users = pq.read_table(file, columns=["user"])["user"]
    user = users[rows // 8].as_py()
    batch = np.sort(np.random.default_rng(43).choice(rows, min(rows, BATCH), replace=False)) * KEY_STEP
    found = pc.sum(pc.equal(users, user)).as_py()
    reads.write_text(json.dumps({"user": user, "user_rows": found, "batch": batch.tolist()}), encoding="utf-8")


def _write_wide(file: Path) -> None:
    """Ten row groups of 1,000 rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    columns = {
        f"c{number:04d}": random.random(10_000) if number % 2 else random.integers(0, 10**6, 10_000)
        for number in range(WIDE_COLUMNS)
    }
    unfinished = file.with_suffix(".unfinished")
    pq.write_table(
        pa.table(columns),
        unfinished,
        row_group_size=1000,
        compression="zstd",
        use_dictionary=False,
        write_page_index=True,
    )
    os.replace(unfinished, file)

"""The benchmark's file: events sorted by id, with a page index, and the keys that are looked up in it.

12 columns of common types, row groups of a million rows, zstd, pages of 64 KiB or 20,000 rows. Everything
is drawn from fixed seeds, so each machine makes the same rows.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BUCKET = "bench"
ROW_GROUP_ROWS = 1_000_000
LOOKUPS = 1_200
WARM_UPS = 3
KEY_STEP = 3  # ids are multiples of it
WANTED = ("user", "event", "price")

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


@dataclass(frozen=True)
class Dataset:
    """Where the file is, and what a lookup of each key must give.

    ``keys[i]`` is looked up and has the user ``users[i]``; ``warm_up`` are other keys.
    """

    root: Path
    name: str
    rows: int
    keys: list[int]
    users: list[str]
    warm_up: list[int]

    @property
    def file(self) -> Path:
        return self.root / BUCKET / self.name

    @property
    def folder_key(self) -> str:
        """Key of the folder that holds nothing but the file."""
        return self.name.rpartition("/")[0]


def ensure(folder: Path, rows: int) -> Dataset:
    """The dataset of ``rows`` rows, made below ``folder`` if it is not there yet."""
    name = f"events-{rows}/events.parquet"
    file = folder / "objects" / BUCKET / name
    answers = folder / f"keys-{rows}.json"
    if not (file.is_file() and answers.is_file()):
        file.parent.mkdir(parents=True, exist_ok=True)
        print(f"writing {rows:,} rows to {file} ...", flush=True)
        _write(file, rows)
        _write_keys(file, answers, rows)
    return load(folder, rows)


def load(folder: Path, rows: int) -> Dataset:
    """The dataset that :func:`ensure` made."""
    stored = json.loads((folder / f"keys-{rows}.json").read_text())
    return Dataset(folder / "objects", f"events-{rows}/events.parquet", rows, **stored)


def _write(file: Path, rows: int) -> None:
    unfinished = file.with_suffix(".unfinished")
    with pq.ParquetWriter(
        unfinished,
        SCHEMA,
        compression="zstd",
        use_dictionary=DICTIONARY_COLUMNS,
        write_page_index=True,
        data_page_size=64 * 1024,
        max_rows_per_page=20_000,
        write_batch_size=1024,
        sorting_columns=[pq.SortingColumn(0)],
    ) as writer:
        for number, start in enumerate(range(0, rows, ROW_GROUP_ROWS)):
            stop = min(rows, start + ROW_GROUP_ROWS)
            writer.write_table(_events(start, stop, seed=number), row_group_size=ROW_GROUP_ROWS)
    os.replace(unfinished, file)


def _events(start: int, stop: int, seed: int) -> pa.Table:
    """Rows ``[start, stop)`` of the file."""
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

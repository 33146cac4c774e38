"""Random histories of Iceberg tables with equality deletes, against a brute-force reading of the table spec.

Appends, equality deletes of one partition or of all, position deletes, deletion vectors, upserts, columns renamed,
promoted, dropped and added.
"""

from __future__ import annotations

import itertools
import math
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

import asyncpq
from asyncpq import col
from tests.iceberg_tables import (
    add_files,
    deletion_vectors,
    equality_deletes,
    make_table,
    position_deletes,
    written_file,
)

_SCHEMA = pa.schema(
    [("n", pa.int64()), ("part", pa.string()), ("a", pa.int32()), ("b", pa.float32()), ("c", pa.string())]
)
_VALUES: dict[str, list[Any]] = {
    "int": [None, 0, 1, 2, -1],
    "long": [None, 0, 1, 2, 2**40],
    "float": [None, math.nan, 0.0, -0.0, 1.5],
    "double": [None, math.nan, 0.0, -0.0, 1.5, 1e300],
    "string": [None, "", "a", "b", "ä" * 20],
}


def _same(left: Any, right: Any) -> bool:
    """As Java's ``Double.compare`` and ``Objects.equals``."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or struct.pack("<d", left) == struct.pack("<d", right)
    return type(left) is type(right) and left == right


@dataclass
class _File:
    """A data file: its rows by field id, and which of them positions delete."""

    record: DataFile
    sequence: int
    rows: list[dict[int, Any]]
    gone: set[int] = field(default_factory=set)
    has_vector: bool = False


@dataclass
class _Delete:
    sequence: int
    scope: tuple[int, Any] | None  # spec and partition; None: every file
    keys: list[dict[int, Any]]


class _History:
    """A table, what is in it by brute force, and what may happen to it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.table: Table = make_table(folder, _SCHEMA)
        self.known: dict[int, NestedField] = {}  # every field there ever was, as it was last
        self.files: list[_File] = []
        self.deletes: list[_Delete] = []
        self.numbers = itertools.count()
        self.names = itertools.count()
        self._learn()

    def _learn(self) -> None:
        self.known |= {part.field_id: part for part in self.table.schema().fields}

    @property
    def _sequence(self) -> int:
        """Of the commit to come."""
        assert not isinstance(self.table.metadata, TableMetadataV1)
        return self.table.metadata.last_sequence_number + 1

    def _value(self, part: NestedField) -> Any:
        if part.name == "n":
            return next(self.numbers)
        if part.name == "part":
            return self.chance.choice("xy")
        return self.chance.choice(_VALUES[str(part.field_type)])

    def _new_file(self) -> _File:
        parts = self.table.schema().fields
        rows = [{part.field_id: self._value(part) for part in parts} for _ in range(self.chance.randrange(1, 12))]
        partition = Record()
        if self.table.spec().fields:
            for row in rows:
                row[2] = rows[0][2]
            partition = Record(rows[0][2])
        arrow = schema_to_pyarrow(self.table.schema())
        content = pa.Table.from_pylist(
            [{self.known[at].name: value for at, value in row.items()} for row in rows], arrow
        )
        record = written_file(self.table, content, partition, row_group_size=4, **self._statistics(rows))
        return _File(record, self._sequence, rows)

    def _new_delete(self) -> tuple[DataFile, _Delete]:
        candidates = [at for at in self.known if at != 1] if self.chance.random() < 0.9 else [1]
        ids = sorted(self.chance.sample(candidates, self.chance.randrange(1, min(3, len(candidates)) + 1)))
        seen = [row for file in self.files for row in file.rows]
        keys = [
            {at: row.get(at) for at in ids} if row is not None else {at: self._value(self.known[at]) for at in ids}
            for row in (self.chance.choice([None, *seen]) for _ in range(self.chance.randrange(1, 5)))
        ]
        kinds = Schema(*(self.known[at] for at in ids))
        content = pa.Table.from_pylist(
            [{str(at): value for at, value in key.items()} for key in keys],
            pa.schema([part.with_name(str(at)) for at, part in zip(ids, schema_to_pyarrow(kinds), strict=True)]),
        )
        like = self.chance.choice(self.files).record
        if self.chance.random() < 0.3:
            like = written_file(self.table, content.slice(0, 0))
            like.spec_id = 0
        scope = None if not len(like.partition) else (like.spec_id, like.partition[0])
        record = equality_deletes(self.table, content, like=like, field_ids=ids, **self._statistics(keys))
        return record, _Delete(self._sequence, scope, keys)

    def _statistics(self, rows: list[dict[int, Any]]) -> dict[str, Any]:
        """What a manifest says of the columns, or nothing."""
        if self.chance.random() < 0.3:
            return {}
        nulls: dict[int, int] = {}
        low: dict[int, bytes] = {}
        high: dict[int, bytes] = {}
        for at in rows[0]:
            kind = self.known[at].field_type
            values = [row[at] for row in rows if row[at] is not None]
            nulls[at] = len(rows) - len(values)
            if values and isinstance(kind, (IntegerType, LongType, StringType)):
                low[at], high[at] = to_bytes(kind, min(values)), to_bytes(kind, max(values))
        return {"null_value_counts": nulls, "lower_bounds": low, "upper_bounds": high}

    # -- what may happen --------------------------------------------------------------------------

    def append(self) -> None:
        made = [self._new_file() for _ in range(self.chance.randrange(1, 3))]
        add_files(self.table, [one.record for one in made], ManifestContent.DATA)
        self.files += made

    def delete(self) -> None:
        made = [self._new_delete() for _ in range(self.chance.randrange(1, 4))]
        add_files(self.table, [record for record, _ in made])
        self.deletes += [delete for _, delete in made]

    def upsert(self) -> None:
        (record, delete), file = self._new_delete(), self._new_file()
        add_files(self.table, [record], data=[file.record])
        self.files.append(file)
        self.deletes.append(delete)

    def positions(self) -> None:
        file = self.chance.choice(self.files)
        rows = set(self.chance.sample(range(len(file.rows)), self.chance.randrange(1, len(file.rows) + 1)))
        path = str(file.record.file_path)
        if file.has_vector:
            return
        if self.chance.random() < 0.5:
            add_files(self.table, deletion_vectors(self.table, {path: sorted(file.gone | rows)}, like=file.record))
            file.has_vector = True
        else:
            add_files(self.table, [position_deletes(self.table, {path: sorted(rows)}, like=file.record)])
        file.gone |= rows

    def evolve(self) -> None:
        parts = [part for part in self.table.schema().fields if part.name not in ("n", "part")]
        with self.table.update_schema(allow_incompatible_changes=True) as update:
            kind = self.chance.choice(["rename", "promote", "drop", "add"])
            part = self.chance.choice(parts) if parts else None
            if kind == "add" or part is None:
                update.add_column(f"new{next(self.names)}", self.chance.choice([StringType(), LongType()]))
            elif kind == "rename":
                update.rename_column(part.name, f"old{next(self.names)}")
            elif kind == "drop":
                update.delete_column(part.name)
            elif str(part.field_type) in ("int", "float"):
                update.update_column(part.name, LongType() if str(part.field_type) == "int" else DoubleType())
        self._learn()

    def partition(self) -> None:
        with self.table.update_spec() as update:
            if self.table.spec().fields:
                update.remove_field("part")
            else:
                update.add_field("part", IdentityTransform(), "part")

    # -- what is left -----------------------------------------------------------------------------

    def left(self) -> list[dict[str, Any]]:
        parts = self.table.schema().fields
        return [
            {part.name: row.get(part.field_id) for part in parts}
            for file in self.files
            for at, row in enumerate(file.rows)
            if at not in file.gone and not any(self._deletes(delete, file, row) for delete in self.deletes)
        ]

    @staticmethod
    def _deletes(delete: _Delete, file: _File, row: dict[int, Any]) -> bool:
        partition = file.record.partition[0] if len(file.record.partition) else None
        if delete.sequence <= file.sequence or delete.scope not in (None, (file.record.spec_id, partition)):
            return False
        return any(all(_same(row.get(at), value) for at, value in key.items()) for key in delete.keys)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(12))
async def test_rows_are_those_that_the_spec_leaves(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    history = _History(tmp_path, chance)
    history.append()
    steps = [history.append, history.delete, history.delete, history.upsert, history.positions, history.evolve]
    for _ in range(10):
        chance.choice([*steps, history.partition])()
        if chance.random() < 0.25:
            await _check(history)
    await _check(history)


async def _check(history: _History) -> None:
    chance, left = history.chance, history.left()
    expected = sorted((str(row) for row in left), key=str)
    async with asyncpq.open_dataset(history.table) as dataset:
        if chance.random() < 0.5:  # deletes that are computed, or found in memory
            assert sorted(str(row) for row in (await dataset.read()).to_pylist()) == expected
        assert await dataset.count() == len(left)
        assert sorted(str(row) for row in (await dataset.read()).to_pylist()) == expected
        number = chance.randrange(30)
        where = (col("n") > number) & (col("part") == "x")
        kept = {row["n"] for row in left if row["n"] > number and row["part"] == "x"}
        assert await dataset.count(where=where) == len(kept)
        assert set((await dataset.read(["n"], where=where)).column("n").to_pylist()) == kept
        found = await dataset.lookup({"n": list(range(20))}, columns=["part"])
        assert found.num_rows == len([row for row in left if row["n"] < 20])
        some = await dataset.read(["n"], limit=5)
        assert some.num_rows == min(5, len(left))
        assert set(some.column("n").to_pylist()) <= {row["n"] for row in left}

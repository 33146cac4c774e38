"""Damaged metadata of Iceberg tables: rows, or an error of asyncpq; never one of another library."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

import asyncpq
from asyncpq import col
from asyncpq.errors import AsyncpqError
from tests.iceberg_tables import add_files, data_files, equality_deletes, make_table, path_of, position_deletes, tagged

_VALUES: tuple[Any, ...] = (None, 0, -1, 2**63, 1.5, "", "x", [], {}, [None], True, "struct", {"type": "struct"})
_PLACE = pa.struct([("x", pa.float32()), ("tags", pa.list_(pa.int32()))])
_SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("place", _PLACE)])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """With partitions, nested columns, a name mapping, and deletes of both kinds."""
    made = make_table(tmp_path_factory.mktemp("iceberg"), _SCHEMA)
    with made.update_spec() as update:
        update.add_field("part", IdentityTransform(), "part")
    rows = [{"id": n, "part": "ab"[n % 2], "place": {"x": 1.0, "tags": [1]}} for n in range(10)]
    made.append(pa.Table.from_pylist(rows, made.schema().as_arrow()))
    like = data_files(made)[0]
    keys = tagged(pa.table({"id": pa.array([2], pa.int64())}), made.schema())
    positions = position_deletes(made, {like.file_path: [0]}, like=like)
    add_files(made, [equality_deletes(made, keys, like=like, field_ids=[1]), positions])
    with made.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": '[{"field-id": 1, "names": ["id"]}]'})
    return made


async def _ask(url: str) -> str:
    try:
        async with asyncpq.open_dataset(url, format="iceberg") as dataset:
            await dataset.read()
            await dataset.count(col("part") == "a")
            await dataset.read(where=col("id") > 3)
    except AsyncpqError as error:
        return type(error).__name__
    return "rows"


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(document, (dict, list)):
        parts = document.items() if isinstance(document, dict) else enumerate(document)
    for key, part in parts:
        yield from _paths(part, (*path, key))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:Encountered invalid snapshot summary")
async def test_table_metadata(table: Table, tmp_path: Path) -> None:
    document = json.loads(await asyncio.to_thread(Path(path_of(table.metadata_location)).read_text))
    every = [(path, value) for path in _paths(document) for value in ("(deleted)", *_VALUES)]
    a_key_with_the_id_of_a_list = (("schemas", 0, "fields", 2, "type", "fields", 1, "id"), True)
    assert a_key_with_the_id_of_a_list in every
    seen = set()
    for number, (path, value) in enumerate([a_key_with_the_id_of_a_list, *random.Random(7).sample(every, 150)]):
        changed = copy.deepcopy(document)
        part = changed
        for key in path[:-1]:
            part = part[key]
        if value == "(deleted)":
            del part[path[-1]]
        else:
            part[path[-1]] = value
        file = tmp_path / f"{number}.metadata.json"
        await asyncio.to_thread(file.write_text, json.dumps(changed))
        seen.add(await _ask(str(file)))
    assert {"rows", "CorruptFileError", "UnsupportedFeatureError"} <= seen


@pytest.mark.heavy
async def test_manifests(table: Table) -> None:
    files = sorted(await asyncio.to_thread(lambda: list(Path(path_of(table.location()), "metadata").glob("*.avro"))))
    chance = random.Random(8)
    seen = set()
    for _ in range(150):
        file = chance.choice(files)
        good = await asyncio.to_thread(file.read_bytes)
        bad = bytearray(good)
        for _ in range(chance.choice((1, 1, 3))):
            at = chance.randrange(len(bad))
            bad[at] = chance.choice((bad[at] ^ (1 << chance.randrange(8)), chance.randrange(256), 0, 255))
        await asyncio.to_thread(file.write_bytes, bad)
        try:
            seen.add(await _ask(path_of(table.metadata_location)))
        finally:
            await asyncio.to_thread(file.write_bytes, good)
    assert {"rows", "CorruptFileError"} <= seen

"""Leaves in structs are read like flat columns: dictionaries decoded once, pages kept decoded, rows picked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.decoding import field_source, leaf
from asyncpq.decoding.leaf import leaf_decoder
from asyncpq.decoding.nested import NestedLeaf
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import OpenFile
from tests.reads import ask

ROWS = 2000


class Counted:
    """How often something was called."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            return original(*args, **options)

        patch.setattr(owner, name, call)


def rows_of(nulls: bool) -> list[Any]:
    return [
        None
        if nulls and row % 7 == 3
        else {"a": f"value {row:08d}", "b": {"c": None if nulls and row % 5 == 0 else row}}
        for row in range(ROWS)
    ]


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_what_is_decoded_for_one_row_after_another(
    nulls: bool, indexed: bool, dictionary: bool, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(nulls)
    table = pa.table({"s": pa.array(rows)})
    options: dict[str, Any] = {"use_dictionary": dictionary, "data_page_version": version, "compression": "zstd"}
    data = parquet_bytes(table, write_page_index=indexed, data_page_size=4000, write_batch_size=100, **options)
    dictionaries = Counted(monkeypatch, leaf.LeafDecoder, "decode_dictionary")
    nested = Counted(monkeypatch, field_source, "read_leaves")
    spliced = Counted(monkeypatch, leaf, "read_column")

    async def question(file: asyncpq.File) -> int:
        for wanted in ([5], [1203], [5, 1203], [3, 5, 10, 1999]):
            found = await file.take(wanted)
            found.validate(full=True)
            assert found.column("s").to_pylist() == [rows[row] for row in wanted]
        for _ in range(2):  # pages are kept decoded from their second use on
            await file.take([3, 5, 10, 1203, 1999])
        before = spliced.calls
        assert (await file.take([10, 1203])).column("s").to_pylist() == [rows[10], rows[1203]]
        return spliced.calls - before

    assert ask(data, question) == 0
    assert dictionaries.calls == (2 if dictionary else 0)
    assert nested.calls == 0
    if not nulls:  # rows are picked, or pages are Arrow's buffers already
        assert spliced.calls == (1 if dictionary else 0)  # the strings' dictionary
    whole = ask(data, lambda file: file.read())
    assert whole.equals(table)


def test_which_leaves_read_alone() -> None:
    inner = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.string())), ("d", pa.dictionary(pa.int32(), pa.string()))])
    table = pa.table(
        {
            "flat": pa.array([1]),
            "s": pa.array([{"x": 1, "l": ["a"], "d": "b"}], inner),
            "required": pa.array([{"r": 1}], pa.struct([pa.field("r", pa.int64(), nullable=False)])),
            "l": pa.array([[{"x": 1}]]),
        }
    )
    file = OpenFile(parquet_bytes(table))
    alone = {
        x.dotted: leaf_decoder(file.version, x.index, frozenset()) is not None for x in file.metadata.schema.leaves
    }
    assert alone == {
        "flat": True,
        "s.x": True,
        "s.l.list.element": False,
        "s.d": False,
        "required.r": False,  # pyarrow makes up values where the struct is null
        "l.list.element.x": False,
    }
    assert isinstance(file.leaf_source(3, paged=True), NestedLeaf)


def test_alone_and_together_in_one_field() -> None:
    kind = pa.struct(
        [
            ("x", pa.int64()),
            ("l", pa.list_(pa.string())),
            pa.field("r", pa.int32(), nullable=False),
            ("y", pa.large_string()),
            ("t", pa.timestamp("us", "Europe/Berlin")),
        ]
    )
    values = [
        None if row % 6 == 2 else {"x": row, "l": ["a"] * (row % 3), "r": row, "y": f"y{row % 9}", "t": row}
        for row in range(500)
    ]
    table = pa.table({"s": pa.array(values, kind)})
    data = parquet_bytes(table, write_page_index=True, data_page_size=200, write_batch_size=10)
    assert ask(data, lambda file: file.read()).equals(table)
    for rows in ([8], [2, 7, 499], list(range(100, 300))):
        found = ask(data, lambda file, rows=rows: file.take(rows))  # type: ignore[misc]
        assert found.equals(table.take(rows))
    for part in ("s.r", "s.y", "s.l"):
        found = ask(data, lambda file, part=part: file.take([1, 2, 3], [part]))  # type: ignore[misc]
        name = part[2:]
        assert found.column("s").to_pylist() == [
            row and {name: row[name]} for row in table["s"].take([1, 2, 3]).to_pylist()
        ]

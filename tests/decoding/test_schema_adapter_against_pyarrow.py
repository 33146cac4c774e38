"""A file read in the terms of its dataset equals ``pyarrow.dataset``'s read of it: evolving schemas, missing and
partition columns, predicates, projections, limits, keys and rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.datasets.schemas import SchemaUnifier
from asyncpq.expressions import Expression
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.scan.request import ScanRequest
from tests.predicates import COLUMNS, array, atoms, oracle, trees
from tests.random_tables import WriterOptions, writer_options
from tests.reads import ask, count, lookup, read, view

_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)
# Kinds of columns that go together, one file's with another's.
_FAMILIES = [
    ["int8", "int32", "int64", "uint8", "uint32"],
    ["float32", "float64", "int8", "int32"],
    ["decimal", "wide_decimal", "int8", "int32"],
    ["timestamp_ms", "timestamp_us"],
    ["timestamp_utc", "timestamp_zone"],
    ["string", "large_string", "dictionary"],
    ["time32", "time64"],
    ["fixed", "binary"],
    ["date32"],
    ["bool"],
]
_CONSTANTS: dict[str, list[Any]] = {
    "string": ["x", "ab", None],
    "int32": [3, -1, None],
    "date32": [None],
    "float64": [1.5, float("nan")],
}


class Made:
    """A file of a dataset.

    Attributes:
        data: the file.
        schema: the dataset's.
        partition: the file's constants.
        kinds: of the columns, by name, as some file has them.
    """

    def __init__(
        self, data: bytes, schema: pa.Schema, partition: dict[str, Any], kinds: dict[str, str], writer: WriterOptions
    ) -> None:
        self.data, self.schema, self.partition, self.kinds, self.writer = data, schema, partition, kinds, writer

    def __repr__(self) -> str:
        return f"{self.schema.to_string()} {self.partition} {self.writer}"

    def table(self) -> pa.Table:
        """What pyarrow makes of it: its dataset casts, and a partition's values stand before the file's."""
        guarantee = ds.scalar(True)
        for name, value in self.partition.items():
            field = ds.field(name)
            kind = self.schema.field(name).type
            guarantee &= field.is_null() if value is None else field == pa.scalar(value, kind)
        fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(self.data), partition_expression=guarantee)
        return ds.FileSystemDataset([fragment], self.schema, ds.ParquetFileFormat()).to_table(use_threads=False)

    def predicates(self) -> st.SearchStrategy[Expression]:
        return trees(st.one_of([atoms(name, kind) for name, kind in self.kinds.items()]))


@st.composite
def files(draw: st.DrawFn) -> Made:
    """One file of a dataset of two, and the schema of both."""
    num_rows = draw(st.integers(0, 40))
    here: dict[str, pa.Array] = {}
    there: dict[str, pa.DataType] = {}
    kinds: dict[str, str] = {}
    for at in range(draw(st.integers(1, 4))):
        name, family = f"c{at}", draw(st.sampled_from(_FAMILIES))
        kind, other = draw(st.sampled_from(family)), draw(st.sampled_from(family))
        place = draw(st.sampled_from(["both", "both", "both", "here", "there"]))
        kinds[name] = kind
        if place != "there":
            few = draw(st.lists(st.none() | COLUMNS[kind][1], min_size=1, max_size=8))
            here[name] = array(kind, [few[row * len(few) // max(1, num_rows)] for row in range(num_rows)])
        if place != "here":
            there[name] = COLUMNS[other][0]
            kinds[name] = draw(st.sampled_from([kind, other]))
    assume(here)
    partition: dict[str, Any] = {}
    fields: list[pa.Field] = []
    if draw(st.booleans()):
        kind = draw(st.sampled_from(list(_CONSTANTS)))
        name = draw(st.sampled_from(["part", "c0"]))  # perhaps a column of the file, too
        partition[name] = draw(st.sampled_from(_CONSTANTS[kind]))
        kinds[name] = kind
        fields.append(pa.field(name, COLUMNS[kind][0]))
    table = pa.table(here) if here else pa.table({"c": pa.nulls(num_rows)})
    names = draw(st.permutations(table.column_names))
    unifier = SchemaUnifier("permissive", pa.schema(fields))
    unifier.add("a", pa.schema(there))
    unifier.add("b", table.schema)
    schema = unifier.schema
    writer = draw(writer_options)
    return Made(writer.write(table.select(names)), schema, partition, kinds, writer)


def same(found: pa.Table, wanted: pa.Table) -> None:
    assert found.schema.equals(wanted.schema), (found.schema, wanted.schema)
    found.validate(full=True)
    for name in wanted.column_names:
        assert repr(found.column(name).to_pylist()) == repr(wanted.column(name).to_pylist()), name


LATE = st.builds(asyncpq.RequestOptions, late_materialization=st.sampled_from(["auto", "always", "never"]))


@pytest.mark.heavy
@settings(max_examples=max(20, settings().max_examples // 2))
@given(files(), LATE, st.data())
def test_reads_equal_pyarrows(made: Made, requests: asyncpq.RequestOptions, data: st.DataObject) -> None:
    where = data.draw(st.none() | made.predicates())
    names = made.schema.names
    columns = data.draw(st.none() | st.permutations(names).map(lambda some: some[: len(some) // 2 + 1]))
    limit = data.draw(st.none() | st.integers(0, 20))
    dictionaries = data.draw(st.lists(st.sampled_from(names), max_size=1))
    try:
        whole = made.table()
        wanted = whole if where is None else whole.filter(oracle(where))
    except _REFUSALS:
        assume(False)
        raise
    if columns is not None:
        wanted = wanted.select(columns)

    async def question(file: asyncpq.File) -> tuple[pa.Table, int]:
        seen = view(file, made.schema, None, made.partition)
        asked = ScanRequest(columns=columns, where=where, limit=limit, view=seen)
        table = (await read(file, asked)).table
        encoded = (await read(file, asked._replace(read_dictionary=dictionaries))).table
        plain = [column.cast(field.type) for column, field in zip(encoded.columns, table.schema, strict=True)]
        assert repr([column.to_pylist() for column in plain]) == repr([column.to_pylist() for column in table.columns])
        return table, await count(file, asked._replace(limit=None))

    try:
        found, matching = ask(made.data, question, requests=requests)
    except asyncpq.PredicateTypeError:
        assume(False)  # held to pyarrow in tests/file/test_file.py; a constant is judged as a column of its type is
        raise
    assert matching == wanted.num_rows
    same(found.slice(0, limit), wanted.slice(0, limit))


@settings(max_examples=max(20, settings().max_examples // 2))
@given(files(), st.data())
def test_lookups_and_rows_equal_pyarrows(made: Made, data: st.DataObject) -> None:
    try:
        wanted = made.table()
    except _REFUSALS:
        assume(False)
        raise
    rows = data.draw(st.lists(st.integers(0, max(0, wanted.num_rows - 1)), unique=True, max_size=8).map(sorted))
    rows = rows if wanted.num_rows else []
    names = data.draw(st.lists(st.sampled_from(made.schema.names), min_size=1, max_size=2, unique=True))
    held = {name: wanted.column(name).to_pylist() for name in names}
    picked = data.draw(st.lists(st.integers(0, max(0, wanted.num_rows - 1)), min_size=1, max_size=4))
    keys = {name: [values[at] if values else None for at in picked] for name, values in held.items()}

    async def question(file: asyncpq.File) -> None:
        seen = view(file, made.schema, None, made.partition)
        same(
            (await read(file, ScanRequest(access=AccessPlan.rows(rows), view=seen))).table,
            wanted.take(pa.array(rows, pa.int64())),
        )
        found = await lookup(file, seen, keys, with_keys=True)
        expected = [
            (row, position)
            for row in range(wanted.num_rows)
            for position in range(len(picked))
            if all(_equal(held[name][row], keys[name][position]) for name in names)
        ]
        assert found.column("key_position").to_pylist() == [position for _, position in expected]
        same(found.drop_columns(["key_position"]), wanted.take(pa.array([row for row, _ in expected], pa.int64())))

    ask(made.data, question)


def _equal(value: Any, key: Any) -> bool:
    return value is not None and key is not None and bool(value == key)

"""Lakes whose files have columns in ways of their own: fields that come and go, other cases of names, wider types."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_NOON = dt.datetime(2024, 5, 1, 12)
#: For each of Spark's types those of files that Spark reads as it, by name.
LEAVES: dict[str, list[pa.DataType]] = {
    "smallint": [pa.int16(), pa.int8(), pa.uint8(), pa.int32()],
    "int": [pa.int32(), pa.int16(), pa.uint16()],
    "bigint": [pa.int64(), pa.int32(), pa.uint32(), pa.int8()],
    "float": [pa.float32()],
    "double": [pa.float64(), pa.float32(), pa.int32(), pa.int16()],
    "decimal(20,2)": [pa.decimal128(20, 2), pa.decimal128(5, 2), pa.decimal128(10, 2), pa.decimal128(9, 1)],
    "string": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "binary": [pa.binary(), pa.large_binary()],
    "boolean": [pa.bool_()],
    "date": [pa.date32()],
    "timestamp": [pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.timestamp("us")],
    "timestamp_ntz": [pa.timestamp("us"), pa.timestamp("ms"), pa.date32()],
}


@dataclass
class Shape:
    """A type of Spark's.

    Attributes:
        kind: "struct", "array", "map" or the name of a leaf's type.
        children: of a struct by name; else the element, or the values.
    """

    kind: str
    children: list[tuple[str, Shape]]

    @property
    def ddl(self) -> str:
        if self.kind == "struct":
            return f"struct<{', '.join(f'{name}: {child.ddl}' for name, child in self.children)}>"
        inner = [child.ddl for _, child in self.children]
        return {"array": "array<{}>", "map": "map<string, {}>"}[self.kind].format(*inner) if inner else self.kind

    def leaves(self, path: str) -> list[tuple[str, str]]:
        """Paths of leaves that are in structs only, with their types."""
        if self.kind == "struct":
            return [found for name, child in self.children for found in child.leaves(f"{path}.{name}")]
        return [] if self.children else [(path, self.kind)]


def shape(rng: random.Random, depth: int = 2) -> Shape:
    kind = rng.choice(["struct", "struct", "array", "map", "leaf", "leaf"]) if depth else "leaf"
    if kind == "leaf":
        return Shape(rng.choice(list(LEAVES)), [])
    if kind == "struct":
        return Shape("struct", [(name, shape(rng, depth - 1)) for name in "abcd"[: rng.randrange(1, 4)]])
    return Shape(kind, [("element", shape(rng, depth - 1))])


def cased(rng: random.Random, name: str) -> str:
    return rng.choice([name, name, name.upper()])


def file_type(rng: random.Random, asked: Shape, *, cases: bool, same_leaves: bool) -> pa.DataType:
    """How one file has a column: some fields are missing, some are more, in any order and spelling."""
    if asked.kind == "struct":
        kept = [item for item in asked.children if rng.random() < 0.7] or [rng.choice(asked.children)]
        rng.shuffle(kept)
        fields = [
            pa.field(cased(rng, name) if cases else name, file_type(rng, child, cases=cases, same_leaves=same_leaves))
            for name, child in kept
        ]
        if rng.random() < 0.3:
            fields.insert(rng.randrange(len(fields) + 1), pa.field("more", pa.int32()))
        return pa.struct(fields)
    if asked.children:
        inner = file_type(rng, asked.children[0][1], cases=cases, same_leaves=same_leaves)
        return pa.list_(inner) if asked.kind == "array" else pa.map_(pa.string(), inner)
    return LEAVES[asked.kind][0] if same_leaves else rng.choice(LEAVES[asked.kind])


def value(rng: random.Random, kind: pa.DataType) -> Any:
    """A random one: few distinct ones, so that conditions find some; beyond what narrower types hold, too."""
    if rng.random() < 0.15:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: value(rng, field.type) for field in kind}
    if isinstance(kind, pa.MapType):
        return [(key, value(rng, kind.item_type)) for key in "xyz"[: rng.randrange(3)]]
    if isinstance(kind, pa.ListType):
        return [value(rng, kind.value_type) for _ in range(rng.randrange(3))]
    number = rng.randrange(6)
    if pa.types.is_integer(kind):
        wide = {16: 1 << 8, 32: 1 << 16, 64: 1 << 33}.get(kind.bit_width, 0)  # cut to 16 bits it is another number
        return number + wide * rng.choice([0, 0, 1])
    if pa.types.is_floating(kind):
        return rng.choice([float(number), 0.1, float("nan")])
    if pa.types.is_decimal(kind):
        return Decimal(number) + rng.choice([Decimal(0), Decimal("0.5")])
    if pa.types.is_boolean(kind):
        return number % 2 == 0
    if pa.types.is_date(kind):
        return _NOON.date() + dt.timedelta(days=number)
    if pa.types.is_timestamp(kind):
        return (_NOON + dt.timedelta(hours=12 * number)).replace(tzinfo=None if kind.tz is None else dt.UTC)
    text = f"v{number}"
    return text.encode() if kind in (pa.binary(), pa.large_binary()) else text


_SPOKEN = {
    "boolean": ["true"],
    "date": ["DATE '2024-05-03'"],
    "timestamp": ["TIMESTAMP '2024-05-03 00:00:00'", "TIMESTAMP '2024-05-01 12:00:00'"],
    "timestamp_ntz": ["TIMESTAMP_NTZ '2024-05-03 00:00:00'", "TIMESTAMP_NTZ '2024-05-01 12:00:00'"],
    "string": ["'v3'", "'v1'"],
    "binary": ["X'7633'"],
    "double": ["3", "0.1D", "double('NaN')", "0.1"],
    "float": ["3", "0.1D", "float('NaN')", "0.1"],
    "decimal(20,2)": ["3", "2.5"],
    "bigint": ["3", "8589934593", "65537"],
}


def condition(rng: random.Random, leaves: Sequence[tuple[str, str]]) -> str:
    """A comparison of a leaf, or two."""
    path, kind = rng.choice(leaves)
    literal = rng.choice(_SPOKEN.get(kind, ["3", "1", "65537"]))
    one = f"{path} {rng.choice(['=', '=', '<', '>', '<=', '<>'])} {literal}"
    if rng.random() < 0.2:
        one = f"{path} IS {rng.choice(['', 'NOT '])}NULL"
    if rng.random() < 0.2:
        one = f"{path} IN ({literal})"
    if rng.random() < 0.3:
        return f"{rng.choice(['NOT ', ''])}({one}) {rng.choice(['AND', 'OR'])} {condition(rng, leaves)}"
    return one


def write_files(
    rng: random.Random, folder: Path, types: Sequence[dict[str, pa.DataType]], rows: int, *, int96: bool
) -> None:
    """One file of each of ``types``.

    Args:
        int96: some of them have timestamps as INT96.
    """
    folder.mkdir(parents=True)
    for number, columns in enumerate(types):
        arrays = [pa.array([value(rng, kind) for _ in range(rows)], kind) for kind in columns.values()]
        pq.write_table(
            pa.table(arrays, names=list(columns)),
            folder / f"{number}.parquet",
            row_group_size=7,
            max_rows_per_page=3,
            write_page_index=True,
            store_schema=rng.random() < 0.5,
            use_deprecated_int96_timestamps=int96 and rng.random() < 0.3,
        )

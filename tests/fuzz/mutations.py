"""Damaged files, each made from a seed: bytes changed, or one field of one Thrift struct."""

from __future__ import annotations

import copy
import functools
import random
from typing import NamedTuple

from asyncpq.parquet.thrift import BINARY, BYTE, DOUBLE, I32, LIST, STRUCT, TRUE
from tests.fuzz import bases
from tests.fuzz.parquet_parts import ParquetParts
from tests.fuzz.thrift_trees import INTEGERS, Field, Items, Struct, nodes

_EDGES = (0, 1, -1, 2, 7, 8, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))


class Case(NamedTuple):
    """One damaged file.

    Attributes:
        base: name of the good file.
        data: the damaged one.
        says_other: bounds, counts or types may have become other valid ones, or values without a CRC
            others, which no reader can notice: what is pruned by them, or read as another type, need not
            be what the good file holds.
        what: the damage, in words.
    """

    base: str
    data: bytes
    says_other: bool
    what: str


@functools.cache
def _parts(name: str) -> ParquetParts:
    return ParquetParts(bases.data(name))


def make(seed: int) -> Case:
    """The damaged file of a seed."""
    rng = random.Random(seed)
    base = rng.choice(bases.names() if rng.random() < 0.3 else bases.WRITTEN)
    how = rng.choice(["bytes", "bytes", "footer", "footer", "index", "page", "page", "body"])
    if how == "bytes":
        return _bytes(rng, base)
    parts = copy.deepcopy(_parts(base))
    said: list[str] = []
    says_other = False
    if how == "page":
        chunk = rng.choice([chunk for chunk in parts.chunks if chunk.pages])
        says_other = not bases.has_crc(base)
        times = rng.choice([1, 1, 1, 2])
        said += [f"page header {_change(rng, rng.choice(chunk.pages).header)}" for _ in range(times)]
    elif how == "body":
        page = rng.choice(rng.choice([chunk for chunk in parts.chunks if chunk.pages]).pages)
        page.body = changed_bytes(rng, page.body)
        says_other = not bases.has_crc(base)
        if rng.random() < 0.5:
            page.header.set(3, len(page.body), I32)
        if rng.random() < 0.3:
            page.header.drop(4)  # some pages have a CRC and this has none, which a read of it alone cannot know
            says_other = True
        said.append("page body")
    parts.place_pages()
    indexes = [index for chunk in parts.chunks for index in (chunk.offset_index, chunk.column_index) if index]
    if how == "index" and indexes:
        index = rng.choice(indexes)
        says_other |= isinstance(index.get(2), Items)  # a ColumnIndex
        said.append(f"index {_change(rng, index)}")
    parts.place_indexes()
    if how == "footer" or not said:
        tree: Struct = parts.footer
        if rng.random() < 0.6:  # most of the footer's nodes are statistics, which are the least interesting
            tree = rng.choice([*(chunk.struct for chunk in parts.chunks), *(chunk.meta for chunk in parts.chunks)])
        said += [f"footer {_change(rng, tree)}" for _ in range(rng.choice([1, 1, 1, 2]))]
        says_other = True
    return Case(base, parts.file(), says_other, "; ".join(said))


def _bytes(rng: random.Random, base: str) -> Case:
    good = bases.data(base)
    end_of_pages = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for chunk in _parts(base).chunks:
        for place in (chunk.struct.get(4), chunk.struct.get(6), chunk.meta.get(14)):  # indexes, bloom filter
            if isinstance(place, int):
                end_of_pages = min(end_of_pages, place)
    data = bytearray(good)
    for _ in range(rng.choice([1, 1, 2, 5])):
        region = rng.choice([(4, end_of_pages), (end_of_pages, len(good)), (0, len(good))])
        at = rng.randrange(*region)
        if at >= len(data):
            continue
        if rng.random() < 0.7:
            data[at] ^= 1 << rng.randrange(8)
        else:
            data[at] = rng.choice([0, 1, 0x15, 0x19, 0x7F, 0x80, 0xFF])
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)) :]
    elif rng.random() < 0.1:
        at = rng.randrange(len(data))
        del data[at : at + rng.randrange(1, 40)]
    changed = [at for at, (old, new) in enumerate(zip(good, data, strict=False)) if old != new]
    beyond = len(data) != len(good) or any(at >= end_of_pages for at in changed) or not bases.has_crc(base)
    return Case(base, bytes(data), beyond, f"bytes {changed[:8]}, {len(data)} of {len(good)}")


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """``data`` with one of a few changes."""
    out = bytearray(data)
    how = rng.randrange(5)
    at = rng.randrange(len(out)) if out else 0
    if how == 0 and out:
        out[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        del out[at : at + rng.randrange(1, 9)]
    elif how == 2:
        out[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif how == 3:
        out += out[: rng.randrange(1, 50)]
    elif out:
        out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    return bytes(out)


def _change(rng: random.Random, tree: Struct) -> str:
    """Change one node of the tree in place; says which and how."""
    owner, position, path = rng.choice(list(nodes(tree)))
    how = rng.random()
    where = ".".join(map(str, path))
    if how < 0.08:
        _entries(owner).pop(position)
        return f"{where} dropped"
    if how < 0.14:
        _entries(owner).insert(position, copy.deepcopy(_entries(owner)[position]))
        return f"{where} doubled"
    if how < 0.20 and len(_entries(owner)) > 1 and isinstance(owner, Items):
        other = rng.randrange(len(owner.values))
        owner.values[position], owner.values[other] = owner.values[other], owner.values[position]
        return f"{where} swapped with {other}"
    if how < 0.26 and isinstance(owner, Struct):
        owner.fields.append(_unknown(rng))
        return f"{where} beside an unknown field"
    if isinstance(owner, Struct):
        field = owner.fields[position]
        if how < 0.30:
            field.id = rng.choice([field.id + 1, 99, -3, 1 << 14])
            return f"{where} has the id {field.id}"
        if how < 0.34 and field.kind in INTEGERS:
            field.kind = rng.choice(INTEGERS)
            return f"{where} has the type {field.kind}"
        kind, value = field.kind, field.value
        field.value = _other(rng, kind, value)
        return f"{where}: {_shown(value)} -> {_shown(field.value)}"
    value = owner.values[position]
    owner.values[position] = _other(rng, owner.kind, value)
    return f"{where}: {_shown(value)} -> {_shown(owner.values[position])}"


def _entries(owner: Struct | Items) -> list[object]:
    return owner.fields if isinstance(owner, Struct) else owner.values  # type: ignore[return-value]


def _unknown(rng: random.Random) -> Field:
    deep = Struct()
    for _ in range(rng.choice([1, 3, 70])):
        deep = Struct([Field(1, STRUCT, deep)])
    return rng.choice(
        [
            Field(120, STRUCT, deep),
            Field(121, LIST, Items(STRUCT, [Struct(), Struct()])),
            Field(122, BINARY, b"x" * 50),
            Field(123, DOUBLE, bytes(8)),
            Field(124, LIST, Items(BYTE, [b"x"] * 20)),
        ]
    )


def _other(rng: random.Random, kind: int, value: object) -> int | bool | bytes | Struct | Items:
    if kind == TRUE or isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(
            [value + 1, value - 1, 2 * value, -value, *rng.sample(_EDGES, 4), value ^ 1 << rng.randrange(8)]
        )
    if isinstance(value, bytes):
        return rng.choice(
            [b"", value[:-1], value + b"\xff", changed_bytes(rng, value), value * 3, b"\xff" * len(value)]
        )
    if isinstance(value, Struct):
        return rng.choice([Struct(), Struct(value.fields[::-1]), Struct(value.fields[:1])])
    assert isinstance(value, Items)
    if rng.random() < 0.5:
        length = len(value.values)
        return Items(
            value.kind, value.values, claimed=rng.choice([0, length + 1, length - 1, 1 << 20, 1 << 40]) % (1 << 63)
        )
    return rng.choice(
        [Items(value.kind, []), Items(value.kind, value.values[:-1]), Items(value.kind, value.values[::-1])]
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."

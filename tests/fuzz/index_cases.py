"""Damaged indexes in an object store: manifests, the pointer ``latest``, and the objects of segments."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import random
import uuid
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.indexing import Bloom, Bounds, Footers, Keys, NGrams, Pages, Text, ValueSet, commits
from asyncpq.testing import ObjectServer
from tests.fuzz.json_mutations import change
from tests.fuzz.mutations import changed_bytes
from tests.parquet_bytes import parquet_bytes

ROWS = 40  # of a file
FILES = 5
BUCKET = "lake"
DATA = f"{BUCKET}/data/"
#: Places of good indexes, each built in another way.
INDEXES = ("folder", "long", "small.json")

_ALL = (
    *(Bounds(), ValueSet("word"), Bloom("id"), Keys("id"), Keys("word", "id"), NGrams("text"), Text("text")),
    *(Footers(), Pages()),
)
_KINDS = {"folder": _ALL, "long": _ALL, "small.json": (Bounds(), ValueSet("word"))}


class Case(NamedTuple):
    """One damaged index.

    Attributes:
        place: name of the good one.
        changed: the objects that are other than in the good store, by path; None for a removed one.
        says_other: the damage has right checksums, so that the index may say other things of the files; which rows
            it then hides, no reader can notice.
        what: the damage, in words.
    """

    place: str
    changed: Mapping[str, bytes | None]
    says_other: bool
    what: str


def table(file: int) -> pa.Table:
    """The rows of a file."""
    rows = range(file * ROWS, (file + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "word": [f"word {row % 5}" for row in rows],
            "text": [f"some text {row} of {row % 7}" for row in rows],
            "real": [row / 4 for row in rows],
        }
    )


def good() -> pa.Table:
    """The rows of all files that are there at the end."""
    return pa.concat_tables([table(file) for file in range(1, FILES + 1)])


def put(server: ObjectServer, file: int) -> str:
    """Write a file; returns its path."""
    data = parquet_bytes(table(file), row_group_size=ROWS // 2)
    server.put(f"{DATA}part-{file}.parquet", data, modified=1_700_000_000 + file)
    return f"{DATA}part-{file}.parquet"


async def build(server: ObjectServer) -> None:
    """Put the files and the good indexes on a server. Each index has several snapshots, retired files and files that
    were replaced."""
    for file in range(FILES):
        put(server, file)
    numbers = random.Random(7)
    # a seed must damage the same segment in every process
    with mock.patch("uuid.uuid4", side_effect=lambda: uuid.UUID(int=numbers.getrandbits(128), version=4)):
        async with asyncpq.Session(server.storage_options) as session:
            for name in INDEXES:
                with mock.patch.object(commits, "ROOT_BYTES", 500 if name == "long" else 64 * 1024):
                    index = await session.build_index(f"s3://{DATA}", _KINDS[name], at=f"s3://{BUCKET}/{name}")
                    put(server, FILES)
                    server.delete(f"{DATA}part-0.parquet")
                    await index.refresh()
                    put(server, 0)
                    server.delete(f"{DATA}part-{FILES}.parquet")
    server.delete(f"{DATA}part-0.parquet")
    put(server, FILES)


def make(seed: int, objects: Mapping[str, bytes]) -> Case:
    """The damaged index of a seed, made of the good ``objects``."""
    rng = random.Random(seed)
    index = rng.choice(INDEXES)
    how = rng.choice(["manifest"] * 5 + ["latest", "bytes", "segment", "names", "loop"])
    return _MAKERS[how](rng, index, objects)


def _paths(index: str, folder: str, objects: Mapping[str, bytes]) -> list[str]:
    return sorted(path for path in objects if path.startswith(f"{BUCKET}/{index}/{folder}"))


def _sealed(record: dict[str, Any]) -> bytes:
    """A manifest with the right checksum."""
    record = {name: value for name, value in record.items() if name != "crc32"}
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")[:-1]
    return body + b',"crc32":%d}' % zlib.crc32(body)


def _with_manifest(index: str, number: int, content: bytes) -> dict[str, bytes | None]:
    return {
        f"{BUCKET}/{index}/manifests/{number:020d}.json": content,
        f"{BUCKET}/{index}/latest": b"%020d\n%b" % (number, content),
    }


def _newest(index: str, objects: Mapping[str, bytes]) -> tuple[int, dict[str, Any]]:
    path = _paths(index, "manifests/", objects)[-1]
    return int(path.rpartition("/")[2][:20]), json.loads(objects[path])


def _manifest(rng: random.Random, index: str, objects: Mapping[str, bytes]) -> Case:
    number, record = _newest(index, objects)
    record = copy.deepcopy(record)
    tree: Any = record
    if rng.random() < 0.5 and isinstance(record.get("segments"), list):
        tree = rng.choice([record["segments"], record["parts"]])
    said = [change(rng, tree) for _ in range(rng.choice([1, 1, 1, 2]))]
    return Case(index, _with_manifest(index, number, _sealed(record)), True, "; ".join(said))


def _latest(rng: random.Random, index: str, objects: Mapping[str, bytes]) -> Case:
    path = f"{BUCKET}/{index}/latest"
    content = objects[path]
    other = rng.choice(
        [
            b"",
            b"9" * 20,
            b"9" * 5000 + b"\n" + content[21:],
            b"9" * 20 + b"\n" + content[21:],
            b"%020d\n" % ((1 << 63) - 1) + content[21:],
            b"%020d\n" % 1 + content[21:],
            b"-%019d\n" % 1 + content[21:],
            content[:21],
            content[:40],
            content[21:],
            content + bytes(1 << 20),
            changed_bytes(rng, content[:21]) + content[21:],
            None,
        ]
    )
    return Case(index, {path: other}, False, f"latest: {other[:40] if other is not None else None!r}")


def _bytes(rng: random.Random, index: str, objects: Mapping[str, bytes]) -> Case:
    path = rng.choice(_paths(index, "", objects))
    data = objects[path]
    at = rng.randrange(max(1, len(data) - 200))
    changed = data[:at] + changed_bytes(rng, data[at : at + 200]) + data[at + 200 :]
    return Case(index, {path: rng.choice([changed] * 5 + [data[:at], None])}, False, f"bytes of {path} from {at}")


def _segment(rng: random.Random, index: str, objects: Mapping[str, bytes]) -> Case:
    """A segment with other content, of which the manifest has the right size and digests."""
    number, record = _newest(index, objects)
    record = copy.deepcopy(record)
    held = [*record["long"].values(), *(record["segments"] if isinstance(record.get("segments"), list) else ())]
    segment = rng.choice(held)
    suffix = ".json" if index.endswith(".json") else ".parquet"
    path = f"{BUCKET}/{index}/segments/{segment['name']}{suffix}"
    data = objects[path]
    if suffix == ".json":
        content = json.loads(data)
        said = change(rng, content)
        data = json.dumps(content, ensure_ascii=True).encode()
        segment["extra"]["digest"] = _digest(data)
    else:
        data, said = _other_rows(rng, data) if rng.random() < 0.6 else _other_bytes(rng, data)
        if "whole" in segment["extra"]:
            segment["extra"]["whole"] = _digest(data)
        tail = int.from_bytes(data[-8:-4], "little") + 8
        segment["extra"] |= {"footer": _digest(data[-tail:-8]), "tail": tail}
        segment["extra"].pop("packed", None)
    segment["size"] = len(data)
    return Case(index, {**_with_manifest(index, number, _sealed(record)), path: data}, True, f"{path}: {said}")


def _other_bytes(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(len(data) // 2, len(data))
    return data[:at] + changed_bytes(rng, data[at : at + 100]) + data[at + 100 :], f"from byte {at} on"


_EDGES = (0, 1, -1, -2, 2, 7, 255, 1 << 15, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))


def _other_rows(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """A segment's file in which one value of one column is another."""
    rows = pq.read_table(io.BytesIO(data))
    name, at = rng.choice(rows.column_names), rng.randrange(rows.num_rows)
    values = rows.column(name).to_pylist()
    old, type_ = values[at], rows.schema.field(name).type
    if isinstance(old, bytes):
        values[at] = rng.choice([b"", old[:-1], old + b"\xff", changed_bytes(rng, old), b"\xff" * 12, bytes(3000)])
    elif pa.types.is_integer(type_):
        edges = [edge for edge in _EDGES if abs(edge) < 1 << type_.bit_width - 1 or edge == -(1 << type_.bit_width - 1)]
        values[at] = rng.choice([*edges, None])
    else:
        values[at] = rng.choice(
            [
                None,
                values[rng.randrange(len(values))],
                *(["x", "../../elsewhere/secret.parquet"] if isinstance(old, str) else []),
            ]
        )
    if values[at] is None and not rows.schema.field(name).nullable:
        values[at] = old
    changed = rows.set_column(rows.column_names.index(name), rows.schema.field(name), pa.array(values, type_))
    bounded = [column for column in ("key", "max") if column in rows.column_names]
    data = parquet_bytes(changed, use_dictionary=False, write_statistics=bounded, write_page_checksum=True)
    return data, f"{name}.{at}: {repr(old)[:40]} -> {repr(values[at])[:40]}"


def _names(rng: random.Random, index: str, objects: Mapping[str, bytes]) -> Case:
    """Objects beside the index's own, with names that look like numbers."""
    number, _ = _newest(index, objects)
    content = objects[_paths(index, "manifests/", objects)[-1]]
    names = (
        *(f"manifests/{'9' * 20}.json", f"manifests/{'9' * 5000}.json", f"manifests/{(1 << 63) - 1:020d}.json"),
        *(f"manifests/{'²' * 20}.json", f"manifests/{number + 2:020d}.json", "manifests/x.json", "manifests/.json"),
        *("builds/x", "builds/", f"segments/{'x' * 900}.parquet", "segments/../x.parquet", "_heartbeat"),
    )
    chosen = rng.sample(names, 3)
    return Case(index, {f"{BUCKET}/{index}/{name}": content for name in chosen}, False, f"new: {chosen!r}"[:200])


def _loop(rng: random.Random, index: str, objects: Mapping[str, bytes]) -> Case:
    """Manifests that refer to each other, or have another's number."""
    number, record = _newest(index, objects)
    other = rng.choice([number + 1, number + 2, 1, (1 << 63) - 2, (1 << 63) - 1, 10**19])
    content = _sealed({**record, "snapshot": other}) if rng.random() < 0.7 else _sealed(record)
    at = rng.choice([other, number + 1])
    name = f"{BUCKET}/{index}/manifests/{at:020d}.json"
    changed: dict[str, bytes | None] = {name: content}
    if rng.random() < 0.5:
        changed |= _with_manifest(index, at, content)
    return Case(index, changed, True, f"snapshot {other} as number {at}")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


_MAKERS = {
    "manifest": _manifest,
    "latest": _latest,
    "bytes": _bytes,
    "segment": _segment,
    "names": _names,
    "loop": _loop,
}

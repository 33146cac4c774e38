"""Damaged metadata of tables, each case made from a seed: Delta's logs, and Iceberg's JSON, manifests and vectors.

``python -m tests.fuzz.table_metadata 123`` asks one seed again, in this process.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import random
import shutil
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import MetadataBudget
from asyncpq.tables.iceberg.avro import BoundedDecoder
from tests.avro_files import packed, text, varint
from tests.delta_tables import DeltaWriter, column, inline_vector, metadata, protocol
from tests.fuzz.judge import WrongAnswerError
from tests.fuzz.mutations import changed_bytes
from tests.fuzz.worker import resident, serve
from tests.iceberg_tables import (
    add_files,
    data_files,
    deletion_vectors,
    equality_deletes,
    make_table,
    path_of,
    position_deletes,
    tagged,
)

#: Small, so that a case that ignores them takes more than a worker may.
LIMITS = asyncpq.LimitOptions(
    max_footer_bytes=1 << 20, max_page_bytes=4 << 20, max_decoded_bytes=32 << 20, decode_threads=0
)
RESIDENT_GROWTH = 300 << 10  # KiB over the whole life of a worker
_INTEGERS = (0, -1, 1, 7, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**30, -(10**30))
_TEXTS = ("", "x", "9" * 5000, "1e999999999", "1e-100000000", "NaN", "-1", "\ud800", "\0", "a" * 70_000, "%ff", "..")
_TYPES = ("decimal(38,1000000)", "decimal(99999999999,0)", "fixed[2147483647]", "bucket[0]", "truncate[0]", "void")
_VALUES: tuple[Any, ...] = (None, True, 1.5, -0.0, float("inf"), float("nan"), [], {}, [None], {"type": "struct"})
_RAW = ("9" * 5000, "1e999", "-1e999", "1" * 4301, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 100_000)


class Case(NamedTuple):
    """One damaged table.

    Attributes:
        base: name of the good table.
        files: bytes by path below the table's folder; None for a file that is removed.
        says_other: the damage may say other things of other rows, which no reader can notice.
        what: the damage, in words.
    """

    base: str
    files: dict[str, bytes | None]
    says_other: bool
    what: str


# -- the good tables ------------------------------------------------------------------------------

_SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("price", pa.decimal128(9, 2)), ("day", pa.date32())])
_ROWS = 12


def _rows(first: int, part: str | None = None) -> pa.Table:
    numbers = range(first, first + _ROWS)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "part": pa.array([part or "ab"[number % 2] for number in numbers]),
            "price": pa.array([Decimal(number) for number in numbers], pa.decimal128(9, 2)),
            "day": pa.array(numbers, pa.int32()).cast(pa.date32()),
        }
    )
    return table.cast(_SCHEMA)


def _delta(folder: Path) -> str:
    """A partitioned table with vectors in a file and inline, and a checkpoint of two parts."""
    writer = DeltaWriter(folder / "delta")
    fields = [column("id", "long"), column("part", "string"), column("price", "decimal(9,2)"), column("day", "date")]
    stats = {"minValues": {"id": 0, "price": 0.0, "day": "1970-01-01"}, "nullCount": {"id": 0}}
    (vector,) = writer.vector_file([0, 3, 4])
    adds = []
    for number, deletes in enumerate((vector, inline_vector([1, 5]), None)):
        part = "abc"[number]
        (writer.folder / f"part={part}").mkdir()
        table = _rows(number * _ROWS, part).drop_columns(["part"])
        path = f"part={part}/f.parquet"
        adds.append(writer.file(path, table, partition={"part": part}, stats=stats, vector=deletes))
    writer.commit(protocol("deletionVectors"), metadata(*fields, partition_columns=["part"]))
    writer.commit(*adds[:2])
    _checkpoint(writer, adds[:2])
    writer.commit(adds[2])
    (writer.log / "_last_checkpoint").write_text('{"version":1,"size":4,"parts":2}')
    return "delta"


def _checkpoint(writer: DeltaWriter, adds: list[dict[str, Any]]) -> None:
    """Write the checkpoint of version 1."""
    actions = [json.loads(line) for line in (writer.log / f"{0:020}.json").read_text().splitlines()]
    for part, found in enumerate((actions, adds), 1):
        rows: list[dict[str, Any]] = []
        for action in found:
            said = json.loads(json.dumps(action))
            if "add" in said:
                said["add"]["partitionValues"] = list(said["add"]["partitionValues"].items())
            if "metaData" in said:
                said["metaData"]["configuration"] = []
                said["metaData"]["format"].pop("options")
            rows.append(said)
        names = sorted({name for row in rows for name in row})
        columns = {name: pa.array([row.get(name) for row in rows], _ACTIONS[name]) for name in names}
        pq.write_table(pa.table(columns), writer.log / f"{1:020}.checkpoint.{part:010}.0000000002.parquet")


_TEXT_MAP = pa.map_(pa.string(), pa.string())
_ACTIONS = {
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(pa.string())),
            ("writerFeatures", pa.list_(pa.string())),
        ]
    ),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("format", pa.struct([("provider", pa.string())])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _TEXT_MAP),
        ]
    ),
    "add": pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", _TEXT_MAP),
            ("size", pa.int64()),
            ("stats", pa.string()),
            (
                "deletionVector",
                pa.struct(
                    [
                        ("storageType", pa.string()),
                        ("pathOrInlineDv", pa.string()),
                        ("offset", pa.int32()),
                        ("sizeInBytes", pa.int32()),
                        ("cardinality", pa.int64()),
                    ]
                ),
            ),
        ]
    ),
}


def _iceberg(folder: Path, with_vectors: bool) -> str:
    """A partitioned table with deletes: positions and keys, or vectors."""
    table = make_table(folder, _SCHEMA)
    with table.update_spec() as update:
        update.add_field("part", IdentityTransform(), "part")
    table.append(_rows(0))
    table.append(_rows(_ROWS))
    like = data_files(table)[0]
    if with_vectors:
        add_files(table, deletion_vectors(table, {like.file_path: [0, 2]}, like=like))
    else:
        keys = tagged(pa.table({"id": pa.array([2], pa.int64())}), table.schema())
        add_files(table, [equality_deletes(table, keys, like=like, field_ids=[1])])
        add_files(table, [position_deletes(table, {like.file_path: [0]}, like=like)])
    return str(_newest(table, folder))


def _newest(table: Table, folder: Path) -> Path:
    """Leave only the newest metadata file, gzipped as ``v1.gz.metadata.json``, and return the table's folder."""
    path = Path(path_of(table.metadata_location))
    text = path.read_bytes()
    for other in path.parent.glob("*.metadata.json"):
        other.unlink()
    (path.parent / "v1.gz.metadata.json").write_bytes(gzip.compress(text))
    (path.parent / "version-hint.text").write_text("1")
    return path.parent.parent.relative_to(folder)


class Base(NamedTuple):
    """A good table: its folder, which holds all its files, and its format."""

    folder: Path
    format: Any
    files: dict[str, bytes]


@functools.cache
def bases() -> dict[str, Base]:
    """The good tables of this process, in a folder that lasts as long."""
    folder = Path(tempfile.mkdtemp(prefix="asyncpq-tables-"))
    found: dict[str, Base] = {}
    rng = random.Random(0)  # of the names of files, for a seed to mean the same damage in each process

    def _uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    made: dict[str, Callable[[], str]] = {
        "delta": lambda: _delta(folder),
        "iceberg": lambda: _iceberg(folder, with_vectors=False),
        "vectors": lambda: _iceberg(folder, with_vectors=True),
    }
    for name, make_ in made.items():
        with mock.patch("uuid.uuid4", _uuid4):
            place = folder / make_()
        files = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        found[name] = Base(place, "delta" if name == "delta" else "iceberg", files)
    return found


def remove_bases() -> None:
    """Delete the tables of this process."""
    if bases.cache_info().currsize:
        for base in bases().values():
            shutil.rmtree(base.folder, ignore_errors=True)


# -- damage ---------------------------------------------------------------------------------------


def make(seed: int) -> Case:
    """The damaged table of a seed."""
    rng = random.Random(seed)
    name = rng.choice(["delta", "delta", "iceberg", "iceberg", "vectors"])
    good = bases()[name].files
    damage = rng.choice(_DELTA if name == "delta" else _ICEBERG)
    files, says_other, what = damage(rng, good)
    return Case(name, files, says_other, f"{name}: {what}")


Damage = tuple[dict[str, bytes | None], bool, str]


def _pick(rng: random.Random, good: dict[str, bytes], *ends: str) -> str:
    return rng.choice(sorted(path for path in good if path.endswith(ends)) or sorted(good))


def _commit_values(rng: random.Random, good: dict[str, bytes]) -> Damage:
    """A value inside of an action, or inside of the JSON that it holds as text."""
    path = f"_delta_log/{rng.choice((0, 2)):020}.json"
    actions = [json.loads(line) for line in good[path].splitlines()]
    for action in actions:
        for key, inner in (("metaData", "schemaString"), ("add", "stats")):
            if key in action:
                action[key][inner] = json.loads(action[key][inner])
    where, text = _changed_json(rng, actions)
    again = json.loads(text) if "§" not in text else None
    if again is None:
        raw = rng.choice(_RAW)
        lines = text[1:-1].replace('"§"', raw)
        return {path: lines.encode("utf-8", "surrogatepass")}, True, f"{where} of {path} is {raw[:20]}"
    for action in again if isinstance(again, list) else []:
        for key, inner in (("metaData", "schemaString"), ("add", "stats")):
            if isinstance(action, dict) and isinstance(action.get(key), dict) and inner in action[key]:
                action[key][inner] = json.dumps(action[key][inner])
    lines = "\n".join(map(json.dumps, again if isinstance(again, list) else [again]))
    return {path: lines.encode()}, True, f"{where} of {path}"


def _bytes_of(*ends: str) -> Callable[[random.Random, dict[str, bytes]], Damage]:
    def damage(rng: random.Random, good: dict[str, bytes]) -> Damage:
        path = _pick(rng, good, *ends)
        data = good[path]
        for _ in range(rng.choice([1, 1, 2, 4])):
            data = changed_bytes(rng, data)
        return {path: data}, not path.endswith((".gz.metadata.json", ".bin", ".puffin")), f"bytes of {path}"

    return damage


def _log_names(rng: random.Random, good: dict[str, bytes]) -> Damage:
    """Files that are not there in a good log: of huge versions, parts of huge counts, other digits, compactions."""
    number = rng.choice([3, 4, 9, 1 << 31, 1 << 60, (1 << 63) - 1, 10**20 - 1])
    part, parts = rng.choice([(1, 9_999_999_999), (0, 0), (2, 2), (9_999_999_999, 9_999_999_999), (1, 1 << 31)])
    name = rng.choice(
        [
            f"{number:020}.json",
            f"{number:020}.checkpoint.parquet",
            f"{number:020}.checkpoint.{part:010}.{parts:010}.parquet",
            f"{1:020}.checkpoint.{part:010}.{parts:010}.parquet",
            f"{number:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
            f"{0:020}.{number:020}.compacted.json",
            f"{number:025}.json",
            f"{number:020}.json".replace("0", "\u0660"),  # Arabic digits
            f"{number:020}.crc",
            f"_sidecars/{number}.parquet",
        ]
    )
    content = rng.choice([b"{}", b"", good[f"_delta_log/{2:020}.json"], b'{"sidecar":{"path":"x"}}', b"PAR1"])
    return {f"_delta_log/{name}": content}, number < 5 or "checkpoint" in name, f"a file {name}"


def _last_checkpoint(rng: random.Random, good: dict[str, bytes]) -> Damage:
    said = {"version": _value(rng), "size": _value(rng), "parts": _value(rng)}
    return {"_delta_log/_last_checkpoint": json.dumps(said).encode()}, False, f"_last_checkpoint {str(said)[:200]}"


def _missing(rng: random.Random, good: dict[str, bytes]) -> Damage:
    path = rng.choice(sorted(path for path in good if not path.endswith(("_last_checkpoint", "version-hint.text"))))
    return {path: None}, path.startswith("_delta_log"), f"no {path}"


def _deep_schema(rng: random.Random, good: dict[str, bytes]) -> Damage:
    """A column of many levels, of a huge name above many others, or of an odd type."""
    kind: Any = rng.choice(["long", *_TYPES, *_TEXTS])
    for _ in range(rng.choice([0, 1, 60, 70, 200, 400])):
        kind = rng.choice(
            [
                {"type": "struct", "fields": [column("s" * rng.choice([1, 1, 1000]), kind)]},
                {"type": "array", "elementType": kind, "containsNull": True},
                {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True},
            ]
        )
    if rng.random() < 0.1:
        kind = {"type": "struct", "fields": [column(str(number), "long") for number in range(2000)]}
    added = column("n" * rng.choice([1, 100_000]), kind)
    path = f"_delta_log/{0:020}.json"
    said, held = (json.loads(line) for line in good[path].splitlines())
    schema = json.loads(held["metaData"]["schemaString"])
    schema["fields"].append(added)
    held["metaData"]["schemaString"] = _dumps(schema)
    files: dict[str, bytes | None] = {path: (json.dumps(said) + "\n" + json.dumps(held)).encode()}
    files |= dict.fromkeys((name for name in good if ".checkpoint." in name), None)
    return files, True, "a column more"


def _dumps(document: Any) -> str:
    try:
        return json.dumps(document)
    except RecursionError:  # the test's own
        return "{" * 5000


def _metadata_values(rng: random.Random, good: dict[str, bytes]) -> Damage:
    document = json.loads(gzip.decompress(good[_METADATA]))
    where, text = _changed_json(rng, document)
    text = text.replace('"§"', rng.choice(_RAW))
    return {_METADATA: gzip.compress(text.encode("utf-8", "surrogatepass"))}, True, f"metadata, {where}"


def _inflated(rng: random.Random, good: dict[str, bytes]) -> Damage:
    """Metadata that are much longer than the file."""
    text = gzip.decompress(good[_METADATA])
    filler = rng.choice([b" ", b"[],", b"{},", b"0,", b"[[[", b"\0"])
    count = rng.choice([100, 1 << 20, 4 << 20]) // len(filler)
    says_json = filler != b" " and rng.random() < 0.7
    more = b',"x":[' + filler * count + b"0]}" if says_json else filler * count
    changed = text.rstrip()[:-1] + more if says_json else text + more
    return {_METADATA: gzip.compress(changed)}, False, f"metadata with {count} times {filler!r}"


def _other_name(rng: random.Random, good: dict[str, bytes]) -> Damage:
    """Metadata under other names and numbers, and other hints."""
    number = rng.choice(["0", "2", str(1 << 31), "9" * 18, "9" * 30, "-1", "٣"])
    name = rng.choice([f"v{number}.metadata.json", f"v{number}.gz.metadata.json", f"{number}-a.metadata.json"])
    plain = gzip.decompress(good[_METADATA])
    content = good[_METADATA] if ".gz." in name else plain
    hint = rng.choice([b"1", b"9" * 5000, b"\xff\xfe", b"", b" 2\n", number.encode()])
    return (
        {f"metadata/{name}": content, "metadata/version-hint.text": hint},
        False,
        f"metadata {name}, hint {hint[:9]!r}",
    )


def _avro(rng: random.Random, good: dict[str, bytes]) -> Damage:
    """One block of a manifest or manifest list: other counts, sizes and codecs, and integers that are other ones."""
    path = _pick(rng, good, ".avro")
    head, count, block, sync = _container(good[path])
    codec, says_other, what = "null", False, ""
    how = rng.randrange(6)
    if how == 0:
        count = rng.choice([0, -1, 2, 1 << 31, (1 << 63) - 1, -(1 << 63), count + 1])
        what = f"{count} records"
    elif how == 1:
        at = rng.randrange(len(block))
        number = varint(rng.choice(_INTEGERS[:10]))
        block = block[:at] + number + block[at + rng.choice([0, 1, len(number)]) :]
        says_other, what = True, f"an integer at {at}"
    elif how == 2:
        block, says_other, what = changed_bytes(rng, block), True, "bytes of the block"
    elif how == 3:
        what = "another codec"
    elif how == 4:
        size = rng.choice([1 << 20, 4 << 20])
        block, what = block + bytes(size), f"{size} bytes behind the records"
    if how >= 3 or rng.random() < 0.3:
        codec = rng.choice(["deflate", "zstandard", "bzip2", "snappy", "lzma", "x" * 5000])
    if how == 5:
        count, block, what = 1 << 20, block * 500, "many records"
        says_other = True
    content = packed(block, codec)
    if rng.random() < 0.2:
        content, what = changed_bytes(rng, content), f"{what}, packed bytes"
        says_other = True
    body = varint(count) + varint(rng.choice([len(content)] * 5 + [1 << 40, -1])) + content + sync
    if rng.random() < 0.2:
        body, what = body[: -rng.randrange(1, len(sync) + len(content))], f"{what}, cut off"
    head = head.replace(_CODEC, text("avro.codec") + text(codec))
    return {path: head + body}, says_other, f"{path}: {what}, {codec[:9]}"


_METADATA = "metadata/v1.gz.metadata.json"
_DELTA: tuple[Callable[[random.Random, dict[str, bytes]], Damage], ...] = (
    _commit_values,
    _commit_values,
    _commit_values,
    _bytes_of(".json"),
    _bytes_of(".checkpoint.0000000001.0000000002.parquet", ".checkpoint.0000000002.0000000002.parquet"),
    _bytes_of(".bin"),
    _log_names,
    _log_names,
    _last_checkpoint,
    _missing,
    _deep_schema,
)
_ICEBERG: tuple[Callable[[random.Random, dict[str, bytes]], Damage], ...] = (
    _metadata_values,
    _metadata_values,
    _bytes_of(_METADATA),
    _inflated,
    _other_name,
    _bytes_of(".avro"),
    _bytes_of(".puffin"),
    _avro,
    _avro,
    _avro,
    _missing,
)


def _value(rng: random.Random) -> Any:
    return rng.choice(rng.choice((_INTEGERS, _TEXTS, _TYPES, _VALUES)))


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(document, (dict, list)):
        for key, part in document.items() if isinstance(document, dict) else enumerate(document):
            yield from _paths(part, (*path, key))


def _changed_json(rng: random.Random, document: Any) -> tuple[str, str]:
    """Change one value of ``document``, which is changed too; return where, and the JSON text. The value "§" stands
    for JSON that Python would not write."""
    path = rng.choice(list(_paths(document)))
    part = document
    for key in path[:-1]:
        part = part[key]
    how = rng.random()
    if how < 0.1:
        del part[path[-1]]
    elif how < 0.2:
        part[path[-1]] = "§"
    elif how < 0.3 and isinstance(part, list):
        part.append(part[path[-1]])
    elif how < 0.5 and isinstance(part[path[-1]], int):
        part[path[-1]] = rng.choice(_INTEGERS)
    elif how < 0.6 and isinstance(part[path[-1]], str):
        part[path[-1]] = rng.choice((*_TEXTS, *_TYPES))
    else:
        part[path[-1]] = _value(rng)
    return ".".join(map(str, path)), json.dumps(document)


# -- Avro -----------------------------------------------------------------------------------------


_CODEC = text("avro.codec") + text("null")


def _container(data: bytes) -> tuple[bytes, int, bytes, bytes]:
    """The parts of an Avro file: a header for uncompressed blocks; the records' count and bytes; the sync marker."""
    decoder = BoundedDecoder(data, MetadataBudget(len(data), LIMITS))
    decoder.read(4)
    meta: dict[str, str] = {}
    while (count := decoder.read_int()) != 0:
        for _ in range(count):
            key = decoder.read_utf8()
            meta[key] = decoder.read_utf8()
    sync = decoder.read(16)
    records, block = 0, b""
    while not decoder.at_end:
        records += decoder.read_int()
        content = decoder.read_bytes()
        block += zlib.decompress(content, -15) if meta.get("avro.codec", "null") == "deflate" else content
        decoder.read(16)
    meta["avro.codec"] = "null"
    fields = b"".join(text(key) + text(value) for key, value in meta.items())
    return b"Obj\x01" + varint(len(meta)) + fields + b"\0" + sync, records, block, sync


# -- judging --------------------------------------------------------------------------------------


async def judge(case: Case) -> None:
    """Ask a damaged table of everything. The good table's files are put back.

    Raises:
        WrongAnswerError: it gives other rows than the good table, or raises an error that is not asyncpq's.
    """
    base = bases()[case.base]
    try:
        for path, content in case.files.items():
            file = base.folder / path
            file.parent.mkdir(exist_ok=True, parents=True)
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
        found = await _ask(base)
    finally:
        for path in case.files:
            if path in base.files:
                (base.folder / path).write_bytes(base.files[path])
            else:
                (base.folder / path).unlink(missing_ok=True)
    if not case.says_other and not isinstance(found, asyncpq.AsyncpqError) and found != await _good(case.base):
        raise WrongAnswerError(f"{case.what}: {len(found[0])} rows, which are not the good table's")


_GOOD: dict[str, Any] = {}


async def _good(name: str) -> Any:
    if name not in _GOOD:
        _GOOD[name] = found = await _ask(bases()[name])
        assert not isinstance(found, Exception), found
    return _GOOD[name]


async def _ask(base: Base) -> Any:
    """The rows, a count and the rows of a condition; or the typed error."""
    try:
        async with (
            asyncpq.Session(limits=LIMITS) as session,
            await session.open_dataset(str(base.folder), format=base.format) as dataset,
        ):
            rows = (await dataset.read()).to_pylist()
            count = await dataset.count(col("part") == "a")
            some = await dataset.read(where=(col("id") > 3) & (col("day").is_valid()))
            str(await dataset.plan(where=col("price") > 3))
            return sorted(map(repr, rows)), count, sorted(map(repr, some.to_pylist()))
    except asyncpq.AsyncpqError as error:
        if len(str(error)) > _ERROR_CHARACTERS:
            raise WrongAnswerError(f"an error of {len(str(error))} characters") from error
        return error


_ERROR_CHARACTERS = 5000
_CASES_PER_PROCESS = 1000


# -- running --------------------------------------------------------------------------------------


def run(seconds: float, first: int | None) -> int:
    """Judge cases in a worker for ``seconds``, from seed ``first`` on; return how many failed."""
    from tests.fuzz.run import Worker

    seed = random.randrange(1 << 40) if first is None else first
    sys.stdout.write(f"damaged tables, from seed {seed}\n")
    stop = time.monotonic() + seconds
    worker = Worker("tests.fuzz.table_metadata")
    failures = done = 0
    try:
        while time.monotonic() < stop:
            wrong = worker.judge(seed)
            if wrong is not None:
                failures += 1
                sys.stdout.write(f"\n{wrong}\nagain: python -m tests.fuzz.table_metadata {seed}\n")
                sys.stdout.flush()
            seed += 1
            done += 1
            if done % _CASES_PER_PROCESS == 0:  # the heap of a process that reads thousands of them is in fragments
                worker.close()
    finally:
        worker.close()
    sys.stdout.write(f"{done} damaged tables, {failures} failures, at most {worker.peak_kib >> 10} MiB more\n")
    return failures


def main() -> None:
    """Serve seeds, or ask one again."""
    try:
        if len(sys.argv) > 1:
            case = make(int(sys.argv[1]))
            sys.stdout.write(f"{case.what}\n")
            sys.stdout.flush()
            asyncio.run(judge(case))
        else:
            for name in bases():
                asyncio.run(_good(name))
            serve(lambda seed: asyncio.run(judge(make(seed))), RESIDENT_GROWTH, resident())
    finally:
        remove_bases()


if __name__ == "__main__":
    main()

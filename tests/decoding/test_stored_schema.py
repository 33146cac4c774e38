"""A footer's ``ARROW:schema`` that is not used: reads, plans and events say so, and an option refuses the file.

pyarrow raises for most of these files. For each mutation of a good schema, the types are pyarrow's own, or the file is
refused, or a fallback says why they are not.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import blocking
from asyncpq.errors import FormatError
from asyncpq.parquet.metadata import set_key_values
from tests.costs import cost_of
from tests.parquet_bytes import parquet_bytes

TABLE = pa.table(
    {
        "id": pa.array(range(10)),
        "word": pa.array(["a", "b"] * 5).dictionary_encode(),
        "at": pa.array(range(10), pa.timestamp("us", "Europe/Berlin")),
        "long": pa.array(["x"] * 10, pa.large_string()),
        "nested": pa.array([[{"x": "a"}]] * 10, pa.large_list(pa.struct([("x", pa.large_string())]))),
    }
)
BARE = ["int64", "string", "timestamp[us, tz=UTC]", "string", "list<element: struct<x: string>>"]
MESSAGE = TABLE.schema.serialize().to_pybytes()
TEXT = base64.b64encode(MESSAGE).decode()


def encoded(message: bytes) -> str:
    return base64.b64encode(message).decode()


def of(schema: pa.Schema) -> str:
    return encoded(schema.serialize().to_pybytes())


def _good() -> bytes:
    return parquet_bytes(TABLE)


GOOD = _good()


def with_schema(text: str) -> bytes:
    """The file with another value of ``ARROW:schema``."""
    assert TEXT.endswith("="), "padded"
    length = int.from_bytes(GOOD[-8:-4], "little")
    footer = set_key_values(GOOD[-8 - length : -8], {"ARROW:schema": text}, max_elements=1 << 20)
    return GOOD[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


DAMAGED = {
    "not base64": "%%%",
    "one wrong character": f"{TEXT[:100]}%{TEXT[101:]}",
    "a new line": f"{TEXT}\n",
    "without padding": TEXT.rstrip("="),
    "empty": "",
    "not a message": encoded(b"garbage" * 20),
    "another message": encoded(pa.record_batch({"a": [1]}).serialize().to_pybytes()),
    "cut off": encoded(MESSAGE[: len(MESSAGE) // 2]),
    "no flatbuffer": encoded(MESSAGE[:8] + bytes(len(MESSAGE) - 8)),
    "names that are not UTF-8": encoded(MESSAGE.replace(b"word", b"\xff\xfe\xff\xfe")),
    "a field too few": of(TABLE.schema.remove(0)),
    "a field too many": of(TABLE.schema.append(pa.field("more", pa.int8()))),
    "other names": of(pa.schema([field.with_name(field.name.upper()) for field in TABLE.schema])),
    "another order": of(pa.schema(list(TABLE.schema)[::-1])),
}


def newer_type() -> str:
    """The schema with a number of a type that no Arrow has yet, in the place of one that pyarrow knows."""
    for at in range(len(MESSAGE)):
        message = MESSAGE[:at] + b"\x45" + MESSAGE[at + 1 :]
        try:
            pa.ipc.read_schema(pa.py_buffer(message))
        except pa.ArrowInvalid as error:
            if str(error).startswith("Unrecognized type"):
                return encoded(message)
        except (pa.ArrowException, OSError, ValueError):
            pass
    raise AssertionError("no byte is the number of a type")


class Hook:
    def __init__(self) -> None:
        self.told: list[asyncpq.ArrowSchemaIgnored] = []

    def __call__(self, event: object) -> None:
        if isinstance(event, asyncpq.ArrowSchemaIgnored):
            self.told.append(event)


def types_of(schema: pa.Schema) -> list[str]:
    return [str(kind) for kind in schema.types]


@pytest.mark.parametrize("how", DAMAGED)
async def test_damaged_schemas_are_named_in_fallbacks_and_events(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(with_schema(DAMAGED[how]))
    hook = Hook()
    with caplog.at_level(logging.WARNING, "asyncpq.reads"):
        async with asyncpq.Session(on_event=hook) as session:
            file = await session.open_file(path)
            assert types_of(file.schema) == BARE
            assert file.opening is not None
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "open": lambda: session.open_file(path),
                "lookup": lambda: file.lookup({"id": 1}),
                "read": file.read,
                "count": file.count,
                "take": lambda: file.take([1]),
                "plan": file.plan,
                "refresh": file.refresh,
                "inspect": file.inspect,
                "lint": file.lint,
            }
            reasons = set(file.opening.fallbacks)
            for name, call in calls.items():
                hook.told.clear()
                cost = await cost_of(call())
                (event,) = hook.told
                assert (event.operation, event.url) == (name, file.url)
                assert event.reason in cost.fallbacks
                reasons.add(event.reason)
            (reason,) = {reason for reason in reasons if "ARROW:schema" in reason}
            assert "damaged" in reason
            assert reason in (await file.plan(lookup={"id": 1})).fallbacks
            assert f"fallback: {reason}" in (await file.plan()).explain()
            assert reason in (await file.inspect())["fallbacks"]
            async with file.scan() as scan:
                assert sum([batch.num_rows async for batch in scan]) == 10
            assert reason in scan.metrics.fallbacks
    (record,) = [record for record in caplog.records if "ARROW:schema" in record.message]
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize("how", DAMAGED)
async def test_damaged_schemas_are_refused_on_request(how: str, tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(with_schema(DAMAGED[how]))
    async with asyncpq.Session(read=asyncpq.ReadOptions(validate_arrow_schema=True)) as session:
        with pytest.raises(asyncpq.CorruptFileError, match="ARROW:schema is damaged") as caught:
            await session.open_file(path)
        assert caught.value.url == str(path)
        assert "validate_arrow_schema=False" in (caught.value.hint or "")


async def test_a_file_that_is_damaged_later_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(GOOD)
    read = asyncpq.ReadOptions(validate_arrow_schema=True)
    async with asyncpq.Session(read=read, cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file(path)
        assert (await file.read()).schema.types == TABLE.schema.types
        path.write_bytes(with_schema("%%%"))
        for call in (file.count, file.refresh):
            with pytest.raises(asyncpq.CorruptFileError, match="ARROW:schema is damaged"):
                await call()


HEALTHY = {
    "its own": TEXT,
    "bytes after the message": encoded(MESSAGE + b"abc"),
    "the framing before Arrow 0.15": encoded(MESSAGE[4:]),
    "an extension type that is not registered": of(
        TABLE.schema.set(0, TABLE.schema.field(0).with_metadata({"ARROW:extension:name": "some.type"}))
    ),
}


@pytest.mark.parametrize("how", HEALTHY)
def test_healthy_schemas_are_used_in_silence(how: str, tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(with_schema(HEALTHY[how]))
    hook, read = Hook(), asyncpq.ReadOptions(validate_arrow_schema=True)
    with blocking.Session(on_event=hook, read=read) as session, session.open_file(path) as file:
        assert file.schema.types == pq.read_schema(io.BytesIO(with_schema(HEALTHY[how]))).types == TABLE.schema.types
        assert file.read().equals(TABLE)
    assert hook.told == []


def test_a_file_without_a_stored_schema_is_healthy(tmp_path: Path) -> None:
    path, hook = tmp_path / "file.parquet", Hook()
    pq.write_table(TABLE, path, store_schema=False)
    read = asyncpq.ReadOptions(validate_arrow_schema=True)
    with asyncpq.measure() as cost, blocking.Session(on_event=hook, read=read) as session:
        assert types_of(session.open_file(path).schema) == BARE
    assert (cost.requests > 0, cost.fallbacks) == (True, [])
    assert hook.told == []


def test_a_newer_type_is_not_damage_but_named(tmp_path: Path) -> None:
    path, hook = tmp_path / "file.parquet", Hook()
    path.write_bytes(with_schema(newer_type()))
    read = asyncpq.ReadOptions(validate_arrow_schema=True)
    with asyncpq.measure() as cost, blocking.Session(on_event=hook, read=read) as session:
        assert types_of(session.open_file(path).schema) == BARE
    (reason,) = cost.fallbacks
    assert "not understood (Unrecognized type" in reason
    assert [event.reason for event in hook.told] == [reason]


# -- datasets -------------------------------------------------------------------------------------


def _lake(folder: Path, bad: int) -> str:
    """Three files, of which number ``bad`` has a damaged schema; in other respects they are equal."""
    for number in range(3):
        (folder / f"{number}.parquet").write_bytes(with_schema("%%%") if number == bad else GOOD)
    return f"{folder}/"


@pytest.mark.parametrize("bad", [0, 1])
async def test_datasets_say_it_of_the_file(tmp_path: Path, bad: int) -> None:
    hook = Hook()
    schema = None if bad == 0 else pa.schema([(name, TABLE.schema.field(name).type) for name in ("id", "at")])
    lake = _lake(tmp_path, bad)
    for number in (1, 2) if bad == 0 else ():  # the first file sets the columns
        (tmp_path / f"{number}.parquet").write_bytes(with_schema("%%%"))
    url = str(tmp_path / f"{bad}.parquet")
    async with asyncpq.Session(on_event=hook) as session:
        dataset = await session.open_dataset(lake, schema=schema)
        if bad == 0:
            assert types_of(dataset.schema) == BARE
            assert [event.operation for event in hook.told] == ["open"]
        for call in (dataset.read, lambda: dataset.lookup({"id": 1}), lambda: dataset.count("id > 3")):
            hook.told.clear()
            cost = await cost_of(call())
            told = {event.url: event.reason for event in hook.told}
            assert len(told) == len(hook.told) == (3 if bad == 0 else 1)
            assert told[url] in cost.fallbacks
        plan = await dataset.plan()
        assert any("ARROW:schema is damaged" in reason for reason in plan.to_dict()["fallbacks"])
        assert "ARROW:schema is damaged" in plan.explain()


async def test_datasets_refuse_or_skip_the_file(tmp_path: Path) -> None:
    lake = _lake(tmp_path, 1)
    async with asyncpq.Session(read=asyncpq.ReadOptions(validate_arrow_schema=True)) as session:
        dataset = await session.open_dataset(lake)
        with pytest.raises(asyncpq.CorruptFileError, match="ARROW:schema is damaged"):
            await dataset.read()
        tolerant = await session.open_dataset(lake, on_bad_file="skip")
        assert (await tolerant.read()).num_rows == 20
        assert [file.url for file in tolerant.skipped] == [str(tmp_path / "1.parquet")]
        with pytest.raises(asyncpq.CorruptFileError, match="ARROW:schema is damaged"):
            await session.open_dataset([str(tmp_path / "1.parquet")])


# -- the types of every mutation ------------------------------------------------------------------


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A good ``ARROW:schema`` with a few changed, missing or added bytes, before or after the base64."""
    data = bytearray(MESSAGE if (inner := draw(st.booleans())) else TEXT.encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["set", "cut", "drop", "add"])):
            case "set":
                data[at : at + 1] = bytes([draw(st.integers(0, 255 if inner else 127))])
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + draw(st.integers(1, 8))]
            case _:
                data[at:at] = draw(st.binary(min_size=1, max_size=8)) if inner else b"A" * draw(st.integers(1, 8))
    return encoded(bytes(data)) if inner else data.decode()


@pytest.mark.heavy
@settings(max_examples=300, deadline=None)
@given(text=mutations())
def test_types_are_those_of_pyarrow_or_a_fallback_says_why(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("mutated") / "file.parquet"
    data = with_schema(text)
    path.write_bytes(data)
    try:
        expected: list[str] | None = types_of(pq.read_schema(io.BytesIO(data)))
    except (pa.ArrowException, OSError, ValueError):
        expected = None
    hook = Hook()
    with blocking.Session(on_event=hook) as session:
        try:
            with asyncpq.measure() as cost, session.open_file(path) as file:
                types, said = types_of(file.schema), list(cost.fallbacks)
        except FormatError:
            assert expected is None
            return
    assert [event.reason for event in hook.told] == said
    if said:
        assert types == BARE
    else:
        assert types == expected

"""Keys have the types of their columns, so that lookups find what is there; the shared options make the session."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli.arguments import SessionArguments, parse_columns, parse_keys, with_session
from asyncpq.cli.commands import group_of
from asyncpq.cli.output import write_line
from asyncpq.cli.parameters import Argument, Group, Option
from asyncpq.cli.running import PROCESS, CommandExit
from asyncpq.cli.url_targets import ReadSource, opened
from asyncpq.errors import AccessDeniedError, InvalidOptionError
from asyncpq.session import Session

UTC = dt.UTC
VALUES: list[tuple[pa.DataType, str, Any]] = [
    (pa.int64(), "-42", -42),
    (pa.uint64(), str(2**64 - 1), 2**64 - 1),
    (pa.float32(), "0.1", 0.1),
    (pa.float64(), "1e300", 1e300),
    (pa.bool_(), "true", True),
    (pa.string(), "a=b, c", "a=b, c"),
    (pa.string(), "", ""),
    (pa.dictionary(pa.int32(), pa.string()), "red", "red"),
    (pa.binary(), "text", b"text"),
    (pa.binary(), "0x00ff", b"\x00\xff"),
    (pa.binary(2), "0x00ff", b"\x00\xff"),
    (pa.decimal128(10, 2), "-1.25", Decimal("-1.25")),
    (pa.date32(), "2024-02-29", dt.date(2024, 2, 29)),
    (pa.time64("us"), "12:30:00.25", dt.time(12, 30, 0, 250_000)),
    (pa.timestamp("us"), "2024-02-29 12:00:00", dt.datetime(2024, 2, 29, 12)),
    (pa.timestamp("ns"), "2024-02-29T12:00:00.000000001", 1_709_208_000_000_000_001),
    (pa.timestamp("ms", "UTC"), "2024-02-29T12:00:00Z", dt.datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (pa.timestamp("us", "Europe/Paris"), "2024-02-29T12:00:00", dt.datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (pa.uuid(), "12345678-1234-5678-1234-567812345678", uuid.UUID(int=0x12345678123456781234567812345678).bytes),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES, ids=lambda part: str(part)[:30])
async def test_a_key_finds_the_row_of_its_value(kind: pa.DataType, text: str, value: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"key": pa.array([None, value], kind), "row": [0, 1]}), url)
    async with asyncpq.Session() as session, await session.open_file(url) as file:
        table = await file.lookup(parse_keys([f"key={text}"], file.schema), columns=["row"])
    assert table.to_pydict() == {"row": [1]}


def test_several_values_of_a_column_are_a_list_and_paths_name_leaves() -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.struct([("b", pa.string())])), ("a.c", pa.int32())])
    keys = parse_keys(["id=1", "a.b=x", "id=2", "a.b=y", "a.c=3"], schema)
    assert {name: [str(one) for one in value] for name, value in keys.items() if name != "a.c"} == {
        "id": ["1", "2"],
        "a.b": ["x", "y"],
    }
    assert keys["a.c"].as_py() == 3


@pytest.mark.parametrize("argument", ["id", "id=x", "id=", "at=yesterday", "raw=0xzz", "wait=3 s"])
def test_what_does_not_fit_is_wrong_usage(argument: str) -> None:
    kinds: list[tuple[str, pa.DataType]] = [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("wait", pa.duration("s")),
    ]
    with pytest.raises(asyncpq.InvalidOptionError, match=f"--key {argument}"):
        parse_keys([argument], pa.schema(kinds))


def test_an_unknown_column_is_named_with_those_that_are_there() -> None:
    with pytest.raises(asyncpq.ColumnNotFoundError, match="'nr'") as caught:
        parse_keys(["nr=1"], pa.schema([("id", pa.int64())]))
    assert "id" in str(caught.value.hint)


def test_columns() -> None:
    schema = pa.schema([(name, pa.int64()) for name in ("a", "b", "a b", "user", "price")])
    assert parse_columns(None, schema) is None
    assert parse_columns("a, b.c,", schema) == ["a", "b.c"]
    assert parse_columns("a b,no such", schema) == ["a b", "no such"]
    for nothing in ("", " ,"):  # an empty variable of a shell, not a wish for rows without columns
        with pytest.raises(InvalidOptionError, match="has no column name"):
            parse_columns(nothing, schema)
    with pytest.raises(InvalidOptionError, match=r"separated by commas\. Write --columns user,price\."):
        parse_columns("a,user  price", schema)


GROUP = Group("commands", "Commands of the tests.")


@GROUP.command
@with_session
async def count(session: Session, source: ReadSource, times: Annotated[int, Option("--times")] = 1) -> None:
    """Count rows."""
    async with opened(session, source) as target:
        write_line(f"{type(target).__name__} {await target.count() * times}")


ERRORS = {
    "usage": InvalidOptionError("wrong"),
    "rights": AccessDeniedError("no"),
    "bug": KeyError("x"),
    "exit": CommandExit(5),
}


@GROUP.command
@with_session
async def fail(session: Session, error: Annotated[str, Argument()]) -> None:
    """Fail."""
    raise ERRORS[error]


app = group_of(GROUP)
run = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / f"{name}.parquet")
    return tmp_path


def test_a_url_names_one_file_or_many(folder: Path) -> None:
    assert run.invoke(app, ["count", str(folder / "a.parquet")]).stdout == "File 3\n"
    assert run.invoke(app, ["count", str(folder)]).stdout == "Dataset 6\n"
    assert run.invoke(app, ["count", f"{folder}/*.parquet", "--times", "2"]).stdout == "Dataset 12\n"
    assert run.invoke(app, ["count", f"{folder}/c.parquet"]).exit_code == 3


def test_the_cost_is_printed_to_stderr(folder: Path) -> None:
    done = run.invoke(app, ["count", str(folder / "a.parquet"), "--stats", "--disk-cache", str(folder / "cache")])
    assert done.stdout == "File 3\n"
    assert done.stderr.startswith("1 request in 1 round")
    assert (folder / "cache").is_dir()


def test_the_cost_of_a_lake_counts_its_files_once(folder: Path) -> None:
    assert " ruled out of 2; " in run.invoke(app, ["count", str(folder), "--stats"]).stderr


def test_each_kind_of_error_has_its_exit_code() -> None:
    codes = {error: run.invoke(app, ["fail", error]).exit_code for error in ERRORS}
    assert codes == {"usage": 2, "rights": 4, "bug": 1, "exit": 5}
    assert run.invoke(app, ["fail", "usage"]).stderr == "asyncpq: wrong\n"
    assert "bug of asyncpq" in run.invoke(app, ["fail", "bug"]).stderr


def test_debug_shows_the_traceback_and_keeps_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROCESS, "debug", True)
    done = run.invoke(app, ["fail", "usage"])
    assert "Traceback" in done.stderr
    assert done.exit_code == 2


def test_the_help_has_the_commands_own_options_and_the_shared_ones() -> None:
    text = run.invoke(app, ["count", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    for option in (
        "--times",
        "--profile",
        "--endpoint-url",
        "--region",
        "--no-sign-request",
        "--disk-cache",
        "--stats",
    ):
        assert option in text
    assert "Count rows." in text
    assert "context" not in text


def test_options_of_s3_do_not_concern_other_stores() -> None:
    assert SessionArguments().storage_options() == {}
    options = SessionArguments(profile="p", endpoint_url="http://h", region="r", no_sign_request=True).storage_options()
    expected = {"profile": "p", "endpoint_url": "http://h", "client_kwargs": {"region_name": "r"}, "anon": True}
    assert options == {"s3": expected, "s3a": expected}

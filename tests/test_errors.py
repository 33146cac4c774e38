"""Errors say what happened, where, and what to do; and are caught by the names that Python users expect."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq import errors
from asyncpq.errors import (
    AsyncpqError,
    FormatError,
    Hint,
    command_words,
    counted,
    first_columns,
    nearest,
    nearest_column,
    plural,
    seconds_text,
    shown,
    size_text,
)

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, AsyncpqError)]


def test_all_are_public() -> None:
    assert {kind.__name__ for kind in CLASSES} <= set(asyncpq.__all__)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_an_error_says(kind: type[AsyncpqError]) -> None:
    error = kind("It broke", url="s3://b/k\n", byte_range=(3, 9), column="a\t", hint="Mend it.")
    assert str(error) == "It broke; column 'a\\\\t'; bytes 3-8; s3://b/k\\n. Mend it."
    assert str(kind("It broke")) == (f"It broke. {kind.default_hint}" if kind.default_hint else "It broke")


def test_a_hint_takes_the_place_of_the_one_of_the_class() -> None:
    damaged = asyncpq.CorruptIndexError("broken")
    assert damaged.hint == "Drop the index and build it again."
    assert asyncpq.CorruptIndexError("broken", hint="Look twice.").hint == "Look twice."
    assert asyncpq.CorruptFileError("broken").hint != damaged.hint
    assert pickle.loads(pickle.dumps(damaged)).hint == damaged.hint
    assert asyncpq.ColumnNotFoundError("gone").hint is None


def test_what_a_lower_layer_did_not_know_is_filled_in() -> None:
    error = asyncpq.CorruptFileError("broken", column="a")
    assert error.locate(url="s3://b/k", byte_range=(1, 2), column="b") is error
    assert (error.url, error.byte_range, error.column) == ("s3://b/k", (1, 2), "a")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (asyncpq.InvalidOptionError, ValueError),
        (asyncpq.ColumnNotFoundError, KeyError),
        (asyncpq.RowIndexError, IndexError),
        (asyncpq.ObjectNotFoundError, FileNotFoundError),
        (asyncpq.AccessDeniedError, PermissionError),
        (asyncpq.TransportError, ConnectionError),
        (asyncpq.DeadlineExceededError, TimeoutError),
        (asyncpq.UnsupportedFeatureError, NotImplementedError),
        (asyncpq.ResourceLimitError, MemoryError),
    ],
)
def test_the_builtins_catch_them(kind: type[AsyncpqError], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_hints_of_names() -> None:
    assert nearest("Uzer", ["user", "day"]) == "Did you mean 'user'?"
    assert nearest("x", ["user"], "Look there.") == "Look there."
    assert nearest_column("x", ["user", "day"]) == "Its columns are 'user', 'day'."
    assert nearest_column("usr", ["user", "day"]) == "Did you mean 'user'?"
    assert first_columns([]) is None
    assert (first_columns([str(number) for number in range(20)]) or "").endswith("'7', ... 20 in all.")
    assert len(shown("x" * 1000)) < 80


def test_a_very_long_message_is_shortened() -> None:
    text = str(FormatError("a" * 1_000_000 + "!", url="s3://" + "u" * 1_000_000, column="c" * 1_000_000))
    assert len(text) < 6100
    assert "aaa...aaa" in text
    assert "a!; column" in text


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        ({"dir_info": {}, "url": "file:///src/my%20copy"}, "pip install '/src/my copy[cli]'."),
        (
            {"vcs_info": {"vcs": "git", "commit_id": "abc"}, "url": "https://user:hidden@example.com/a.git"},
            "pip install 'asyncpq-parquet[cli] @ git+https://example.com/a.git@abc'.",
        ),
        (
            {"archive_info": {}, "url": "https://example.com/a.whl?token=hidden"},
            "pip install 'asyncpq-parquet[cli] @ https://example.com/a.whl'.",
        ),
        (None, "Install rich: pip install 'asyncpq-parquet[cli]'."),
    ],
)
def test_what_to_install_follows_how_this_copy_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, says: str
) -> None:
    about = tmp_path / "asyncpq_parquet-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: asyncpq-parquet\nVersion: 1.0\n")
    if origin is not None:
        (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "asyncpq" / "errors.py"))
    assert says in errors.install_hint("rich", "cli")


def test_what_to_install_in_a_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "asyncpq" / "errors.py"))
    assert errors.install_hint("rich", "cli") == f"Install rich: pip install -e '{tmp_path}[cli]'."


def test_hints_are_joined_in_both_wordings() -> None:
    hint = "Either " + Hint("pass x=", "give --x") + Hint("; or y=1", " or --y") + "."
    assert (str(hint), command_words(hint)) == ("Either pass x=; or y=1.", "Either give --x or --y.")
    again = pickle.loads(pickle.dumps(hint))
    assert (str(again), command_words(again)) == (str(hint), command_words(hint))


def test_counts() -> None:
    assert [plural(number, "file") for number in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]
    assert [counted(number, "file") for number in (1, 1234)] == ["1 file", "1234 files"]


def test_the_command_line_names_an_option_only_where_the_message_begins_with_its_argument() -> None:
    spelled = {"sort_by": "--sort-by"}
    named = errors.InvalidOptionError("sort_by=3: must be names", option="sort_by")
    assert named.command_text(spelled) == "--sort-by=3: must be names"
    assert named.command_text() == str(named) == "sort_by=3: must be names"
    other = errors.InvalidOptionError("there is no such column", option="sort_by")
    assert other.command_text(spelled) == "there is no such column"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (640 * 1024, "640 KiB"),
        (1023.9 * 1024, "1 MiB"),
        (1 << 30, "1 GiB"),
        (1 << 40, "1 TiB"),
        (1 << 60, "1.02e+03 PiB"),
    ],
)
def test_sizes(num_bytes: float | None, text: str) -> None:
    assert size_text(num_bytes) == text


def test_durations() -> None:
    assert [seconds_text(seconds) for seconds in (0.0, 0.01234, 1.234)] == ["0.0 ms", "12.3 ms", "1.23 s"]

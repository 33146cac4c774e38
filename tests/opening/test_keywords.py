"""The keyword arguments that type checkers see are those that the options have."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import asyncpq
from asyncpq import blocking
from asyncpq.errors import InvalidOptionError
from asyncpq.opening import keywords
from asyncpq.opening.datasets import DatasetOptions
from asyncpq.options import SessionOptions


@pytest.mark.parametrize(
    ("spelled", "options", "others"),
    [
        (keywords.SessionOptionKeywords, SessionOptions, {"disk_cache", "shared_cache"}),
        (keywords.DatasetKeywords, DatasetOptions, set()),
    ],
)
def test_keywords_are_the_fields_of_the_options(spelled: type, options: Any, others: set[str]) -> None:
    wanted = {field.name: field.type for field in fields(options) if field.name not in others}
    assert {name: hint.__forward_arg__ for name, hint in spelled.__annotations__.items()} == wanted


@pytest.mark.parametrize("session", [asyncpq.Session, blocking.Session])
def test_the_signature_of_a_session_shows_every_option_with_its_default(session: type) -> None:
    parameters = inspect.signature(session).parameters
    assert parameters.keys() == keywords.SessionKeywords.__annotations__.keys()
    defaults = SessionOptions()
    for name, parameter in parameters.items():
        assert parameter.default == getattr(defaults, name, None)
    assert [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD] == ["storage_options"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("key", 'storage_options={"key": ...}'),
        ("endpoint_url", 'storage_options={"endpoint_url": ...}'),
        ("AWS_ENDPOINT_URL", 'storage_options={"endpoint_url": ...}'),
        ("region", 'storage_options={"client_kwargs": {"region_name": ...}}'),
        ("anon", 'storage_options={"anon": ...}'),
        ("account_name", 'storage_options={"account_name": ...}'),
        ("retries", "retry=asyncpq.RetryOptions(max_attempts=...)"),
        ("max_attempts", "retry=asyncpq.RetryOptions(max_attempts=...)"),
        ("timeout", "retry=asyncpq.RetryOptions(read_timeout_s=...)"),
        ("max_connections", "limits=asyncpq.LimitOptions(max_connections=...)"),
        ("verify_crc", "read=asyncpq.ReadOptions(verify_crc=...)"),
        ("tail_bytes", "requests=asyncpq.RequestOptions(tail_bytes=...)"),
        ("cache_dir", "Write disk_cache=...."),
        ("profile", 'Write storage_options={"profile": ...}.'),
        ("storage_option", "Did you mean 'storage_options'"),
        ("memory_cache_byte", "Did you mean 'memory_cache_bytes'"),
        ("partitioning", "Pass partitioning= to open_dataset()."),
        ("filesystem", "Name the store by its protocol, such as s3://, and pass storage_options= to the Session."),
        ("xyzzy", "Its arguments: "),
    ],
)
def test_an_unknown_argument_of_a_session(name: str, hint: str) -> None:
    given: Any = {name: "hidden"}
    for call in asyncpq.Session, blocking.Session:
        with pytest.raises(InvalidOptionError, match=rf"^Session\(\) has no argument {name}\b") as caught:
            call(**given)
        assert hint in str(caught.value)
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("partition", "Did you mean 'partitioning'"),
        ("as_of", "Write version=...."),
        ("filesystem", "Name the store by its protocol, such as s3://, and pass storage_options= to the Session."),
        ("endpoint_url", 'Pass storage_options={"endpoint_url": ...} to the Session.'),
        ("storage_options", "Pass storage_options= to the Session."),
        ("retries", "Pass retry=asyncpq.RetryOptions(max_attempts=...) to the Session."),
        ("filters", "Pass where= to read(), scan() or another read."),
        ("columns", "Pass columns= to read(), scan() or another read."),
    ],
)
async def test_an_unknown_argument_of_a_dataset(name: str, hint: str) -> None:
    given: Any = {name: "hidden"}
    async with asyncpq.Session() as session:
        with pytest.raises(InvalidOptionError, match=rf"^open_dataset\(\) has no argument {name}\b") as caught:
            await session.open_dataset("memory://lake/", **given)
        assert hint in str(caught.value)
        with pytest.raises(InvalidOptionError, match=f"has no argument {name}"):
            await session.build_index("memory://lake/", [], **given)
        if name != "columns":
            with pytest.raises(InvalidOptionError, match=f"has no argument {name}"):
                await session.optimize("memory://lake/", "memory://other/", **given)


async def test_an_unknown_argument_of_a_one_off_dataset() -> None:
    given: Any = {"endpoint_url": "hidden"}
    with pytest.raises(InvalidOptionError, match=r"has no argument endpoint_url.* Write storage_options="):
        async with asyncpq.open_dataset("memory://lake/", **given):
            pass

"""Typing of the public names, as their users see it: mypy checks this file, and pytest imports it."""

from __future__ import annotations

from typing import assert_type

import asyncpq.options
from asyncpq.errors import AsyncpqError, ObjectNotFoundError


def test_options_keep_their_types() -> None:
    assert_type(asyncpq.options.SessionOptions().memory_cache_bytes, int)
    assert_type(asyncpq.options.RequestOptions().max_requests, int | None)


def test_errors_have_both_parents() -> None:
    error: FileNotFoundError = ObjectNotFoundError("no such object", url="s3://bucket/key")
    both: AsyncpqError = ObjectNotFoundError("no such object", url="s3://bucket/key")
    assert str(error) == str(both)

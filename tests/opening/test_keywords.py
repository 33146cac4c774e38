"""The keyword arguments that type checkers see are those that the options have."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import asyncpq
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


def test_all_arguments_of_a_session_are_its_keywords() -> None:
    parameters = inspect.signature(asyncpq.Session).parameters
    named = {name for name in parameters if name != "keywords"} | {*keywords.SessionOptionKeywords.__annotations__}
    assert named == {*keywords.SessionKeywords.__annotations__}

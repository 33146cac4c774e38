"""Assertions of the shipped contracts say what is wrong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import asyncpq.testing
from asyncpq.testing.assertions import equal


@pytest.mark.parametrize("module", ["cache_contract", "catalog_contract", "backend_contract", "store_contract"])
def test_a_check_that_fails_says_what(module: str) -> None:
    """No test runner explains an assertion of an installed package."""
    source = Path(asyncpq.testing.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    silent = [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert) and node.msg is None]
    assert not silent


def test_what_it_says_names_both_values() -> None:
    with pytest.raises(AssertionError, match=r"^the bytes: got b'one', expected b'two'$"):
        equal(b"one", b"two", "the bytes")
    with pytest.raises(AssertionError) as caught:
        equal(bytes(100_000), b"", "the bytes")
    assert len(str(caught.value)) < 500

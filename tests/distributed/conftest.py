"""Processes for tasks, for all tests of the room. Tests that use them are heavy: the processes import all of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER) and "workers" in getattr(item, "fixturenames", ()):
            item.add_marker("heavy")


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    """Processes that know nothing of this one."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool

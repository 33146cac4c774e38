"""Settings that calls need which run at once: as wanted while one of them runs, and as they were afterwards."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.spark.driver import described_jobs, held_settings


class _Context:
    """As much of a SparkContext as is asked for."""

    def __init__(self) -> None:
        self.properties: dict[str, str | None] = {}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.properties[name] = value


@pytest.mark.parametrize("before", [None, "a report"])
def test_jobs_are_described_for_a_while(before: str | None) -> None:
    context = _Context()
    context.properties["spark.job.description"] = before
    spark: Any = SimpleNamespace(sparkContext=context)
    with described_jobs(spark, "asyncpq plans"):
        assert context.properties == {"spark.job.description": "asyncpq plans"}
    assert context.properties == {"spark.job.description": before}
    with described_jobs(SimpleNamespace(), "a session of Connect has no context"):  # type: ignore[arg-type]
        pass


class _Session:
    """As much of a SparkSession as is asked for; several objects may be of one session."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.conf = self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]


_BEFORE = ({"a": "1"}, {"a": "yes", "other": "2"})
_WANTED: tuple[dict[str, str], ...] = ({"a": "yes"}, {"a": "yes", "b": "yes"}, {})


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(_WANTED)), max_size=8), st.data())
def test_whoever_is_inside_has_what_it_wants(calls: list[tuple[int, dict[str, str]]], data: st.DataObject) -> None:
    sessions = [dict(one) for one in _BEFORE]
    objects: list[Any] = [_Session(sessions[at % 2]) for at in range(4)]
    waiting, inside = list(calls), list[tuple[AbstractContextManager[None], int, dict[str, str]]]()
    while waiting or inside:
        if waiting and (not inside or data.draw(st.booleans())):
            number, wanted = waiting.pop()
            call = held_settings(objects[number], wanted)
            call.__enter__()
            inside.append((call, number, wanted))
        else:
            inside.pop(data.draw(st.integers(0, len(inside) - 1)))[0].__exit__(None, None, None)
        for _, number, wanted in inside:
            assert wanted.items() <= sessions[number % 2].items()
    assert sessions == list(_BEFORE)

"""Settings that calls need which run at once: as wanted while one of them runs, and as they were afterwards."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncpq.spark.driver import described_jobs, held_settings


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


class _Context:
    """As much of a SparkContext as is asked for."""

    def __init__(self) -> None:
        self.properties: dict[str, str | None] = {}
        self.sparkContext = self

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.properties[name] = value


def test_jobs_have_a_description_unless_the_caller_has_given_one() -> None:
    name, session = "spark.job.description", _Context()
    spark: Any = session
    with described_jobs(spark, "a build"):
        assert session.properties == {name: "a build"}
    assert session.properties == {name: None}
    session.properties[name] = "mine"
    with described_jobs(spark, "a build"):
        assert session.properties == {name: "mine"}
    assert session.properties == {name: "mine"}


def test_spark_connect_has_no_descriptions() -> None:
    connect: Any = object()
    with described_jobs(connect, "a build"):
        pass

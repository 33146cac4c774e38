"""Settings of a Spark session, as they must be while something runs; calls may run at once, and end in any order."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(eq=False)
class _Hold:
    """A setting as it was in a session before the first of its users."""

    spark: SparkSession
    name: str
    before: str | None
    users: int = 0


_holds: list[_Hold] = []
_lock = threading.Lock()


@contextmanager
def held_settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings are so inside, for all threads of the session; behind the last one who wants that, as they were.

    Whoever holds a setting wants the same value: Spark has one for all. Nobody can tell whether two objects are of one
    session: who finds a value as it should be takes part in all holds of that setting.
    """
    mine: list[_Hold] = []
    try:
        with _lock:
            for name, value in wanted.items():
                mine += _held(spark, name, value)
        yield
    finally:
        with _lock:
            for hold in mine:
                hold.users -= 1
                if not hold.users:
                    _holds.remove(hold)
                    _restore(hold)


def _held(spark: SparkSession, name: str, value: str) -> list[_Hold]:
    before = spark.conf.get(name, None)
    found = [hold for hold in _holds if hold.name == name]
    if before != value:
        found = [_Hold(spark, name, before)]
        spark.conf.set(name, value)
        _holds.extend(found)
    for hold in found:
        hold.users += 1
    return found


def _restore(hold: _Hold) -> None:
    if hold.before is None:
        hold.spark.conf.unset(hold.name)
    else:
        hold.spark.conf.set(hold.name, hold.before)

"""Slots of requests: of a token, and of all."""

from __future__ import annotations

import pytest

from asyncpq.serve.configuration import Limits, Token
from asyncpq.serve.limits import Slots
from asyncpq.serve.problems import Problem


def test_a_slot_is_taken_until_it_is_freed() -> None:
    slots = Slots()
    one, two = (Token(name=name, sha256=None, limits=Limits(concurrent=2)) for name in ("one", "two"))
    first, second = slots.take(one, 3), slots.take(one, 3)
    with pytest.raises(Problem) as raised:
        slots.take(one, 3)
    assert raised.value.status == 429
    assert raised.value.headers == {"retry-after": "1"}
    third = slots.take(two, 3)
    assert slots.taken == 3
    with pytest.raises(Problem, match="the service has"):
        slots.take(two, 3)
    first()
    first()  # does nothing
    assert slots.taken == 2
    slots.take(one, 3)()
    second()
    third()
    assert slots.taken == 0

"""Slots of requests: of a token, and of all."""

from __future__ import annotations

import pytest

from asyncpq.serve.configuration import Limits, Token
from asyncpq.serve.limits import Slots
from asyncpq.serve.problems import Problem


def test_a_slot_is_free_again_however_its_request_ends() -> None:
    slots = Slots()
    one, two = (Token(name=name, sha256=None, limits=Limits(concurrent=2)) for name in ("one", "two"))
    with slots.taken_by(one, 3), slots.taken_by(one, 3):
        with pytest.raises(Problem) as raised, slots.taken_by(one, 3):
            pass
        assert raised.value.status == 429
        assert raised.value.headers == {"retry-after": "1"}
        with slots.taken_by(two, 3):
            assert slots.taken == 3
            with pytest.raises(Problem, match="the service has"), slots.taken_by(two, 3):
                pass
    with pytest.raises(ZeroDivisionError), slots.taken_by(one, 3):
        raise ZeroDivisionError
    with slots.taken_by(one, 3) as free:
        free()
        assert slots.taken == 0
    assert slots.taken == 0

"""Tokens and columns: what is refused, and that nothing tells why."""

from __future__ import annotations

import hmac

import pyarrow as pa
import pytest

from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError
from asyncpq.serve import access
from asyncpq.serve.access import (
    Grant,
    Limits,
    Slots,
    Token,
    authenticate,
    check_columns,
    check_verb,
    grant_of,
    token_digest,
    visible_schema,
)
from asyncpq.serve.problems import Problem

TOKENS = [Token(name=name, sha256=token_digest(name)) for name in ("first", "second", "third")]
ANONYMOUS = Token(name="anonymous", sha256=None)


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return hmac.compare_digest(left, right)

    class Recording:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(access, "hmac", Recording)
    assert authenticate(TOKENS, "Bearer first").name == "first"
    assert authenticate(TOKENS, "bearer third").name == "third"
    with pytest.raises(Problem):
        authenticate(TOKENS, "Bearer none")
    assert compared == [token.sha256 for token in TOKENS] * 3


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "first", "Basic first", "Bearer first second", "Bearer \xff"]
)
def test_other_headers_are_refused_even_where_none_is_needed(header: str) -> None:
    with pytest.raises(Problem) as raised:
        authenticate([*TOKENS, ANONYMOUS], header)
    assert raised.value.status == 401


def test_without_a_header_a_request_is_anonymous() -> None:
    assert authenticate([*TOKENS, ANONYMOUS], None) is ANONYMOUS
    with pytest.raises(Problem):
        authenticate(TOKENS, None)


def test_no_right_is_no_dataset() -> None:
    with pytest.raises(Problem) as absent:
        grant_of(Token(name="a", sha256=None, grants={"*": Grant()}), "b", exists=False)
    with pytest.raises(Problem) as refused:
        grant_of(TOKENS[0], "b", exists=True)
    assert absent.value.body == refused.value.body
    with pytest.raises(Problem, match="does not allow scan"):
        check_verb(Grant(verbs=frozenset({"count"})), "scan")


SCHEMA = pa.schema(
    [
        ("a", pa.struct([("b", pa.int64()), ("c", pa.int64())])),
        ("a.b", pa.int64()),
        ("d", pa.int64()),
        ("e", pa.int64()),
        ("e", pa.int64()),
    ]
)


def test_columns_that_exist_for_a_token() -> None:
    grant = Grant(columns=("a", "d", "e", "absent"))
    assert visible_schema(SCHEMA, grant).names == ["a", "d", "e", "e"]
    check_columns(SCHEMA, grant, ["a", "d", "a.c", "d"])
    for hidden in ("a.b", "a.x", "x", "d.x", "A", ""):
        with pytest.raises(ColumnNotFoundError):
            check_columns(SCHEMA, grant, [hidden])
    with pytest.raises(AmbiguousColumnError):
        check_columns(SCHEMA, grant, ["e"])
    with pytest.raises(ColumnNotFoundError):  # a leaf of a hidden column
        check_columns(SCHEMA, Grant(columns=("a.b",)), ["a.c"])
    check_columns(SCHEMA, Grant(columns=("a.b",)), ["d"][:0])
    check_columns(SCHEMA, Grant(), ["a.b", "d"])


def test_hints_name_visible_columns_alone() -> None:
    for name in ("a.b", "x", "a.x"):
        with pytest.raises(ColumnNotFoundError) as raised:
            check_columns(SCHEMA, Grant(columns=("a",)), [name])
        assert "'d'" not in str(raised.value)


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

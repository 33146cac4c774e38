"""Questions and formats of requests. tests/serve/test_app.py sends malformed ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import InvalidOptionError
from asyncpq.serve.access import Limits
from asyncpq.serve.problems import Problem
from asyncpq.serve.requests import FORMATS, RowsRequest, chosen_format, from_body, from_query

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "ok": pa.bool_(), "limit": pa.float64()})


def plain(keys: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {
        name: [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
        for name, values in keys.items()
    }


def test_a_query_and_a_body_ask_the_same() -> None:
    query = from_query("lookup", [("id", "1"), ("columns", "id, name"), ("id", "2"), ("limit", "5"), ("format", "x")])
    body = from_body("lookup", b'{"keys": {"id": ["1", "2"]}, "columns": ["id", "name"], "limit": 5}', Limits())
    assert query == body == RowsRequest(verb="lookup", keys={"id": ["1", "2"]}, columns=("id", "name"), limit=5)
    assert query.canonical() == body.canonical()
    scan = from_query("scan", [("where", "id > 1")])
    body = from_body("scan", b'{"where": "id > 1", "limit": null}', Limits())
    assert scan == body == RowsRequest(verb="scan", where="id > 1")


@pytest.mark.parametrize(
    ("text", "key"),
    [("1.0", 1), ("2e3", 2000), ("-0.0", 0), ("9007199254740993.0", 2**53 + 1), ("9.223372036854775807e18", 2**63 - 1)],
)
def test_a_whole_number_is_a_key_of_integers_however_it_is_written(text: str, key: int) -> None:
    """As in JSON Schema, and as ``lookup({"id": 1.0})`` takes it."""
    body = f'{{"keys": {{"id": {text}, "limit": {text}}}, "limit": 3.0}}'
    request = from_body("lookup", body.encode(), Limits())
    keys = request.typed_keys(SCHEMA, Limits())
    assert (plain(keys)["id"], request.limit) == ([key], 3)
    assert repr(plain(keys)["limit"]) == repr([float(text) + 0.0])


@pytest.mark.parametrize("text", ["0", "-0", "-0.0", "0e99", "-0e-99"])
def test_a_zero_is_a_key_of_unsigned_integers_however_it_is_written(text: str) -> None:
    request = from_body("lookup", f'{{"keys": {{"id": {text}}}}}'.encode(), Limits())
    assert plain(request.typed_keys(pa.schema([("id", pa.uint8())]), Limits())) == {"id": [0]}


@pytest.mark.parametrize(
    "text", ["1.5", "1.00000000000000000001", "1e19", "1e999999999", f"1e{'9' * 30}", "-0.1", "1E-2"]
)
def test_any_other_number_is_no_key_of_integers(text: str) -> None:
    request = from_body("lookup", f'{{"keys": {{"id": {text}}}}}'.encode(), Limits())
    with pytest.raises(InvalidOptionError):
        request.typed_keys(SCHEMA, Limits())


def test_values_of_a_body_have_the_types_of_their_columns() -> None:
    body = {
        "keys": {"id": [1, "2", None], "name": ["1", "a", "b"], "ok": [True, "false", None], "limit": [1, 2.5, "3"]}
    }
    keys = from_body("lookup", json.dumps(body).encode(), Limits()).typed_keys(SCHEMA, Limits())
    assert plain(keys) == {
        "id": [1, 2, None],
        "name": ["1", "a", "b"],
        "ok": [True, False, None],
        "limit": [1.0, 2.5, 3.0],
    }


def test_a_large_integer_keeps_its_digits() -> None:
    request = from_body("lookup", b'{"keys": {"id": 9223372036854775807}}', Limits())
    assert request.typed_keys(SCHEMA, Limits())["id"][0].as_py() == 2**63 - 1


def test_different_requests_differ_as_text() -> None:
    bodies = [
        b'{"keys": {"id": [1]}}',
        b'{"keys": {"id": ["1"]}}',
        b'{"keys": {"id": [1, 1]}}',
        b'{"keys": {"a": [1]}}',
        b'{"keys": {"id": [null]}}',
        b'{"keys": {"id": ["null"]}}',
        b'{"keys": {"id": [1]}, "limit": 1}',
        b'{"keys": {"id": [1]}, "columns": ["a", "b"]}',
        b'{"keys": {"id": [1]}, "columns": ["a, b"]}',
    ]
    assert len({from_body("lookup", body, Limits()).canonical() for body in bodies}) == len(bodies)


NAMES = st.sampled_from(["keys", "where", "columns", "limit", "id"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=8,
)


@given(st.binary(max_size=60) | DOCUMENTS.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_request_or_a_problem(body: bytes) -> None:
    for verb in ("lookup", "scan", "count", "explain"):
        status = 0
        try:
            from_body(verb, body, Limits())
        except Problem as problem:
            status = problem.status
        assert status in (0, 400)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "json"),
        ("", "json"),
        ("*/*", "json"),
        ("application/*", "json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "json"),
        ("application/x-ndjson", "ndjson"),
        ("application/json;q=0.5, application/vnd.apache.arrow.stream", "arrow"),
        ("application/vnd.apache.parquet;q=0.9, */*;q=0.1", "parquet"),
        ("*/*, application/json;q=0", "ndjson"),
        ("APPLICATION/X-NDJSON; q=1.0", "ndjson"),
        ("application/json;q=x, application/x-ndjson;q=0.2", "ndjson"),
    ],
)
def test_the_format_that_the_client_likes_most(accept: str | None, expected: str) -> None:
    assert chosen_format([], accept) == expected
    assert chosen_format([("format", "parquet")], accept) == "parquet"


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*"])
def test_no_format_is_406(accept: str) -> None:
    with pytest.raises(Problem) as raised:
        chosen_format([], accept)
    assert raised.value.status == 406
    assert all(media_type in str(raised.value.document["hint"]) for media_type in FORMATS.values())

"""One token's work never takes another's: threads, slots, the event loop, and the end of the process."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.engine.foreign_predicates import lookup_condition, parse_condition
from asyncpq.expressions.tree import MAX_WILDCARDS
from asyncpq.serve import Service, requests
from asyncpq.serve.access import Limits, token_digest
from asyncpq.serve.configuration import parse_configuration
from asyncpq.serve.problems import Problem
from asyncpq.serve.requests import MAX_COMPARISONS, MAX_KEY_COLUMNS, MAX_PARAMETERS, MAX_VALUES, SMALL, from_body
from tests.serve.services import TOKEN, bearer, client_of, configuration, problem, service_of, settings, write_lake
from tests.serve.test_server import free_port, process, says

GREEDY = "a token that asks for much"
# Of texts of two letters, each character makes this pattern follow about fifty ways: a millisecond for each text.
ENDLESS = f"txt LIKE '%a{'_' * (MAX_WILDCARDS - 2)}{'b' * 30}%'"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 60,000 texts of two letters: :data:`ENDLESS` takes a minute to be compared with all."""
    draw = random.Random(1)
    rows = ["".join(draw.choices("ab", k=300)) for _ in range(3000)] * 20
    path = tmp_path_factory.mktemp("texts") / "texts.parquet"
    table = pa.table({"id": range(len(rows)), "txt": rows})
    pq.write_table(table, path, row_group_size=30_000, use_dictionary=False, write_page_index=True)
    return str(path)


def greedy_settings(url: str, seconds: float, **more: Any) -> dict[str, Any]:
    values = settings(url, **more)
    values["tokens"]["greedy"] = {
        "sha256": token_digest(GREEDY).hex(),
        "datasets": {"trips": {}},
        "limits": {"seconds": seconds, "concurrent": 4},
    }
    return values


async def taken(service: Service, count: int) -> None:
    """Wait until so many slots are taken."""
    while service._slots.taken != count:  # noqa: ASYNC110  # nothing announces it
        await asyncio.sleep(0.01)


@pytest.mark.heavy
async def test_one_tokens_long_work_leaves_threads_and_slots_to_others(texts: str) -> None:
    given = parse_configuration(greedy_settings(texts, 5.0))
    async with client_of(given) as client:
        greedy = [
            asyncio.create_task(
                client.post("/v1/trips/count", json={"where": f"{ENDLESS} AND id >= {n}"}, headers=bearer(GREEDY))
            )
            for n in range(4)
        ]
        await taken(service_of(client), 4)
        refused = await client.post("/v1/trips/count", json={"where": ENDLESS}, headers=bearer(GREEDY))
        problem(refused, 429)
        for _ in range(3):
            assert (await client.get("/v1/trips/count", params={"where": "id > 59990"})).json()["rows"] == 9
            assert len((await client.get("/v1/trips/scan", params={"limit": 3})).json()["rows"]) == 3
            assert (await client.get("/v1/trips/lookup", params={"id": 7})).json()["rows"][0]["id"] == 7
        assert not any(task.done() for task in greedy)
        for response in await asyncio.gather(*greedy):
            problem(response, 504)
        await taken(service_of(client), 0)
        response = await client.get("/v1/trips/count", headers=bearer(GREEDY))
        assert response.json()["rows"] == 60_000


async def test_a_slot_is_free_when_its_work_has_ended(texts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when its client was answered: else a token would have more work than slots."""
    from asyncpq.serve import app
    from asyncpq.serve.datasets import BoundRequest

    begun, goes_on = threading.Event(), threading.Event()

    def stuck() -> int:  # has no checkpoint
        begun.set()
        goes_on.wait(60)
        return 1

    async def count(self: BoundRequest, dataset: Any) -> int:
        return await dataset._runtime.in_thread(stuck)  # type: ignore[no-any-return]

    monkeypatch.setattr(BoundRequest, "count", count)
    monkeypatch.setattr(app, "GRACE_S", 0.05)
    async with client_of(parse_configuration(greedy_settings(texts, 1.5))) as client:  # enough to begin
        problem(await client.get("/v1/trips/count", headers=bearer(GREEDY)), 504)
        assert begun.is_set()
        slots = service_of(client)._slots
        assert slots.taken == 1
        goes_on.set()
        await taken(service_of(client), 0)


# -- the event loop -------------------------------------------------------------------------------

LIMITS = Limits(keys=10)
MANY = MAX_VALUES + 4 * LIMITS.keys
TOO_MANY = {
    "lists": b'{"keys": {"id": [' + b",".join([b"[]"] * (MANY // 2 + 1)) + b"]}}",
    "nesting": b"[" * (MANY + 1),
    "keys": b'{"keys": {"id": [' + b",".join([b"1"] * (MANY + 1)) + b"]}}",
    "members": b'{"keys": {' + b",".join([b'"a": 1'] * (MANY + 1)) + b"}}",
    "escapes": b'{"keys": {"id": "' + b"\\n" * (MANY + 1) + b'"}}',
}


@pytest.mark.parametrize("body", TOO_MANY.values(), ids=TOO_MANY)
def test_a_body_with_too_many_values_is_not_parsed(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncpq.serve.requests.json.loads", None)
    with pytest.raises(Problem, match="too many values") as raised:
        from_body("lookup", body, LIMITS)
    assert raised.value.status == 400


def test_the_values_of_a_body_are_counted_in_slices_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting holds Python's lock."""
    slices: list[None] = []
    monkeypatch.setattr(requests, "checkpoint", lambda: slices.append(None))
    with pytest.raises(Problem, match="too many values"):
        from_body("lookup", b'{"keys": {"id": [' + b"[]," * (1 << 20) + b"1]}}", Limits())
    assert len(slices) == 1
    slices.clear()
    assert from_body("lookup", b'{"keys": {"id": [1]}}' + b" " * (1 << 20), Limits()).keys == {"id": ["1"]}
    assert len(slices) == 17
    slices.clear()
    few = b'{"keys": {"id": [' + (b"1," + b" " * 1000) * 4000 + b"1]}}"
    assert len(from_body("lookup", few, Limits(keys=5000)).keys["id"]) == 4001


async def test_what_failed_work_held_is_freed_in_its_thread(texts: str) -> None:
    """A parsed body of 4 MB takes the event loop milliseconds to free."""

    class Large:
        pass

    freed: list[bool] = []

    def parse() -> None:
        large = Large()
        weakref.finalize(large, lambda: freed.append(threading.current_thread() is not threading.main_thread()))
        try:
            json.loads("{")
        except ValueError as error:
            raise Problem(400, "the body is not JSON") from error

    async with Service(parse_configuration(settings(texts))) as service:
        with pytest.raises(Problem):
            await service.in_thread(parse)
        assert freed == [True]


async def test_long_bodies_and_conditions_leave_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lake(tmp_path)
    seen: list[bool] = []

    def recording(function: Any) -> Any:
        def recorded(*arguments: Any, **options: Any) -> Any:
            seen.append(threading.current_thread() is threading.main_thread())
            return function(*arguments, **options)

        return recorded

    for name, function in (
        ("app.from_body", from_body),
        ("datasets.parse_condition", parse_condition),
        ("datasets.lookup_condition", lookup_condition),
    ):
        monkeypatch.setattr(f"asyncpq.serve.{name}", recording(function))
    async with client_of(configuration(f"{tmp_path}/")) as client:
        assert (await client.post("/v1/trips/lookup", json={"keys": {"id": [1]}})).status_code == 200
        assert seen == [True, True]
        seen.clear()
        assert (await client.post("/v1/trips/lookup", json={"keys": {"id": list(range(900))}})).status_code == 200
        assert seen == [False, False]
        seen.clear()
        where = f"id IN ({', '.join(map(str, range(SMALL)))})"
        response = await client.post("/v1/trips/count", json={"where": where})
        assert response.json()["rows"] == SMALL
        assert seen == [False, False]


@pytest.mark.parametrize(
    ("verb", "asked", "words"),
    [
        ("count", {"where": " OR ".join(f"id > {n} AND id < {n + 2}" for n in range(MAX_COMPARISONS))}, "comparisons"),
        ("count", {"where": f"user LIKE '{'a%' * (MAX_WILDCARDS + 1)}'"}, "wildcards"),
        ("lookup", {"keys": {f"c{n}": 1 for n in range(MAX_KEY_COLUMNS + 1)}}, "key columns"),
        ("lookup", {"keys": {"id": "x" * 100_000}}, "100000 characters"),
        ("lookup", {"keys": {"x" * 100_000: 1}}, "no such column"),
        ("scan", {"columns": ["x" * 100_000]}, "no such column"),
        ("lookup", {"keys": {"id": list(range(1001))}}, "at most 1000"),
        ("lookup", {"keys": {"user": "\ud800"}}, "surrogate"),
        ("lookup", {"keys": {"\ud800": 1}}, "surrogate"),
        ("scan", {"columns": ["\udfff"]}, "surrogate"),
        ("scan", {"where": "user = '\ud800'"}, "surrogate"),
    ],
    ids=[
        "comparisons",
        "wildcards",
        "key columns",
        "long key",
        "long name",
        "long column",
        "keys",
        "key",
        "key column",
        "column",
        "where",
    ],
)
async def test_what_is_too_much_is_a_short_problem(tmp_path: Path, verb: str, asked: Any, words: str) -> None:
    write_lake(tmp_path)
    async with client_of(configuration(f"{tmp_path}/")) as client:
        response = await client.post(f"/v1/trips/{verb}", content=json.dumps(asked))
        assert words in problem(response, 400)["detail"]
        assert len(response.content) < 3000


async def test_a_query_string_has_a_bounded_number_of_parameters(tmp_path: Path) -> None:
    write_lake(tmp_path)
    async with client_of(configuration(f"{tmp_path}/", limits={"keys": 5})) as client:
        url = "/v1/trips/lookup?" + "&".join(["id=1"] * (MAX_PARAMETERS + 6))
        assert "parameters" in problem(await client.get(url), 400)["detail"]
        others = ",".join(f"a/{number}" for number in range(64))
        problem(await client.get("/v1/trips/scan", headers={"accept": f"{others},application/json"}), 406)
        last = await client.get("/v1/trips/scan", headers={"accept": f"{others[4:]},application/json"})
        assert last.headers["content-type"] == "application/json"


# -- the end --------------------------------------------------------------------------------------


def write_configuration(path: Path, url: str, port: int) -> None:
    path.write_text(
        f"[server]\nport = {port}\ndrain_s = 1\n[datasets.trips]\nurl = {json.dumps(url)}\n"
        f"[tokens.all]\nsha256 = '{token_digest(TOKEN).hex()}'\ndatasets = {{ '*' = {{}} }}\n"
    )


@pytest.mark.heavy
async def test_sigterm_ends_work_that_goes_on(texts: str, tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "service.toml"
    write_configuration(path, texts, port)
    async with (
        process(path) as running,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(TOKEN), timeout=60) as client,
    ):
        asked = [asyncio.create_task(client.post("/v1/trips/count", json={"where": ENDLESS})) for _ in range(3)]
        await asyncio.sleep(0.5)
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert await asyncio.wait_for(running.wait(), 60) == 0
        assert time.monotonic() - began < 20  # the work would take a minute
        for response in await asyncio.gather(*asked):
            problem(response, 503)


STUCK = """
import asyncio
import time
from asyncpq.serve.__main__ import main
from asyncpq.serve.datasets import BoundRequest

async def count(self, dataset):
    return await asyncio.to_thread(time.sleep, 300)  # asyncio's own threads end before the process does

BoundRequest.count = count
main()
"""


@pytest.mark.heavy
async def test_sigterm_ends_the_process_whatever_runs(texts: str, tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "service.toml"
    write_configuration(path, texts, port)
    (tmp_path / "stuck.py").write_text(STUCK)
    async with (
        process(path, str(tmp_path / "stuck.py")) as running,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(TOKEN), timeout=60) as client,
    ):
        asked = asyncio.create_task(client.get("/v1/trips/count"))
        await asyncio.sleep(1)
        assert not asked.done()
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        await says(running, "the process ends now")
        assert await asyncio.wait_for(running.wait(), 60) == 1
        assert time.monotonic() - began < 30
        await asyncio.wait((asked,))

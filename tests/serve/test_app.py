"""Every endpoint, with good and bad input; what a token may not see, and what it learns of it: nothing."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncpq.serve import Service
from asyncpq.serve.configuration import parse_configuration
from tests.serve.services import (
    NORTH,
    NOTHING,
    TOKEN,
    bearer,
    client_of,
    configuration,
    problem,
    service_of,
    settings,
    trips,
    write_lake,
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("serve") / "lake"
    write_lake(folder)
    return f"{folder}/"


async def test_lookup_scan_and_count(lake: str) -> None:
    async with client_of(configuration(lake)) as client:
        found = await client.get("/v1/trips/lookup?id=42&id=7&columns=id,user")
        assert found.json()["rows"] == [{"id": 7, "user": "u7"}, {"id": 42, "user": "u42"}]
        assert found.headers["asyncpq-rows"] == "2"
        assert found.headers["asyncpq-tier"] == "store"
        assert int(found.headers["asyncpq-requests"]) > 0
        assert found.headers["server-timing"].startswith("total;dur=")
        again = await client.get("/v1/trips/lookup?id=42&id=7&columns=id,user")
        assert again.content == found.content
        assert again.headers["asyncpq-bytes"] == "0"
        many = await client.post(
            "/v1/trips/lookup", json={"keys": {"id": [1, 2, 3], "user": ["u1", "u9", "u3"]}, "columns": ["id"]}
        )
        assert many.json()["rows"] == [{"id": 1}, {"id": 3}]
        scan = await client.get("/v1/trips/scan", params={"where": "id >= 2998", "columns": "id", "format": "ndjson"})
        assert [json.loads(line) for line in scan.text.splitlines()] == [{"id": 2998}, {"id": 2999}]
        posted = await client.post("/v1/trips/scan", json={"where": "id >= 2998", "columns": ["id"], "limit": 1})
        assert posted.json()["rows"] == [{"id": 2998}]
        count = await client.get("/v1/trips/count", params={"where": "region = 'north'"})
        assert count.json() == {"document": "count", "dataset": "trips", "where": "region = 'north'", "rows": 750}
        assert (await client.post("/v1/trips/count", json={})).json()["rows"] == 3000


async def test_schema_datasets_and_explain(lake: str) -> None:
    async with client_of(configuration(lake)) as client:
        columns = (await client.get("/v1/trips/schema")).json()["columns"]
        assert [column["name"] for column in columns] == trips(1).schema.names
        listed = (await client.get("/v1/datasets")).json()
        assert [one["name"] for one in listed["datasets"]] == ["trips"]
        assert listed["limits"]["rows"] == 1_000_000
        plan = (await client.get("/v1/trips/explain", params={"where": "id = 5", "limit": 10})).json()
        assert plan["document"] == "plan"
        assert plan["files_to_read"] == 1
        keys = (await client.post("/v1/trips/explain", json={"keys": {"id": [5]}})).json()
        assert keys["files_to_read"] == 1


async def test_health_readiness_and_metrics(lake: str) -> None:
    service = Service(configuration(lake))
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=bearer(TOKEN)) as client:
        assert (await client.get("/healthz")).status_code == 200
        problem(await client.get("/readyz"), 503)
        problem(await client.get("/v1/trips/count"), 503)
        async with service:
            assert (await client.get("/readyz")).status_code == 200
            await client.get("/v1/trips/count")
            await client.get("/v1/trips/count?wher=1")
            text = (await client.get("/metrics")).text
        problem(await client.get("/readyz"), 503)
    assert 'asyncpq_serve_requests_total{dataset="trips",status="200",verb="count"} 1.0' in text
    assert 'asyncpq_serve_requests_total{dataset="trips",status="400",verb="count"} 1.0' in text
    assert "asyncpq_serve_requests_in_flight 0.0" in text


async def test_a_service_is_ready_when_its_datasets_are_open(lake: str, tmp_path: Path) -> None:
    missing = tmp_path / "later"
    service = Service(configuration(f"{missing}/"))
    transport = httpx.ASGITransport(service.app)
    async with service, httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        found = problem(await client.get("/readyz"), 503)
        assert found["detail"] == "1 of 1 datasets are not open"
        assert found["title"] == "The service is not ready"  # "The store does not answer" is of other errors
        assert str(missing) not in str(found)  # probes have no token
        shutil.copytree(lake, missing)
        assert (await client.get("/readyz")).status_code == 200


async def test_a_service_that_drains_answers_and_is_not_ready(lake: str) -> None:
    service = Service(configuration(lake))
    transport = httpx.ASGITransport(service.app)
    async with (
        service,
        httpx.AsyncClient(transport=transport, base_url="http://service", headers=bearer(TOKEN)) as client,
    ):
        assert (await client.get("/readyz")).status_code == 200
        service.is_draining = True
        assert problem(await client.get("/readyz"), 503)["title"] == "The service is not ready"
        assert (await client.get("/v1/trips/count")).status_code == 200
        assert (await client.get("/healthz")).status_code == 200


async def test_the_root_leads_to_the_documentation(lake: str) -> None:
    async with client_of(configuration(lake)) as client:
        answer = await client.get("/", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, "/docs")


async def test_rows_as_csv(lake: str) -> None:
    async with client_of(configuration(lake)) as client:
        answer = await client.get("/v1/trips/lookup?id=5&columns=id,user&format=csv")
        assert answer.headers["content-type"].startswith("text/csv")
        (row,) = (await client.get("/v1/trips/lookup?id=5&columns=id,user")).json()["rows"]
        assert list(csv.DictReader(io.StringIO(answer.text))) == [{name: str(value) for name, value in row.items()}]
        chosen = await client.get("/v1/trips/lookup?id=5", headers={"accept": "text/csv"})
        assert chosen.headers["content-type"].startswith("text/csv")


FIVE_COLUMNS = ("id", "user", "region", "price", "secret")
BAD: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/v1/trips/lookup", None, 400, "needs a key"),
    ("GET", "/v1/trips/lookup?idd=1", None, 400, "no such column"),
    ("GET", "/v1/trips/lookup?id=one", None, 400, "not a value of type int64"),
    ("GET", "/v1/trips/lookup?id=1&columns=nothing", None, 400, "no such column"),
    ("GET", "/v1/trips/lookup?id=1&columns=id,id", None, 400, "twice"),
    ("GET", "/v1/trips/lookup?id=1&id=2&user=u1", None, 400, "equal lengths"),
    ("GET", "/v1/trips/lookup?id=1&format=xml", None, 400, "format must be"),
    ("GET", "/v1/trips/lookup?id=1&limit=-1", None, 400, "a whole number of at least 0"),
    ("GET", "/v1/trips/lookup?id=1&limit=9999999", None, 400, "may be at most 1000000"),
    ("GET", "/v1/trips/lookup?id=" + "&id=".join(map(str, range(1001))), None, 400, "at most 1000 are allowed"),
    ("POST", "/v1/trips/lookup", {"keys": {"id": list(range(257)), "user": ["u"] * 257}}, 400, "at most 256 are"),
    ("POST", "/v1/trips/lookup", {"keys": dict.fromkeys(FIVE_COLUMNS, [None] * 205)}, 400, "at most 204 are"),
    ("POST", "/v1/trips/lookup", {"keys": {"user": [1]}}, 400, "is a number"),
    ("POST", "/v1/trips/lookup", {"keys": {"id": [{}]}}, 400, "must be texts, numbers"),
    ("POST", "/v1/trips/lookup", {"keys": [1]}, 400, "must be an object"),
    ("POST", "/v1/trips/lookup", {"keys": {"id": 1}, "where": "id = 1"}, 400, "no member 'where'"),
    ("POST", "/v1/trips/lookup", [1], 400, "must be a JSON object"),
    ("POST", "/v1/trips/lookup", b"{", 400, "not JSON"),
    ("POST", "/v1/trips/lookup", b"\xff\xfe\x00", 400, "not JSON"),
    ("POST", "/v1/trips/lookup", b"[" * 15_000, 400, "not JSON"),
    ("POST", "/v1/trips/lookup", b"[" * 100_000, 400, "too many values"),
    ("POST", "/v1/trips/lookup", b" " * (5 << 20), 413, "more than"),
    ("POST", "/v1/trips/scan", {"columns": ["place.x"] * 15_000}, 400, "twice"),
    ("POST", "/v1/trips/scan", {"columns": ["place.x"] * 200_000}, 400, "too many values"),
    ("GET", f"/v1/trips/scan?where=id = {'9' * 9000}", None, 400, "too many digits"),
    ("GET", "/v1/trips/scan?where=price > ", None, 400, "SQL condition"),
    ("GET", "/v1/trips/scan?where=price > 'a'", None, 400, ""),
    ("GET", "/v1/trips/scan?where=pricee > 1", None, 400, "no such column"),
    ("GET", "/v1/trips/scan?where=1=1; DROP TABLE x", None, 400, "not one SQL condition"),
    ("GET", "/v1/trips/scan?where=id IN (SELECT 1)", None, 400, "SQL condition"),
    ("GET", "/v1/trips/scan?wher=id > 1", None, 400, "no parameter 'wher'"),
    ("GET", "/v1/trips/scan?where=id=1&where=id=2", None, 400, "given twice"),
    ("POST", "/v1/trips/scan", {"where": 1}, 400, "where must be a text"),
    ("POST", "/v1/trips/scan", {"where": "x" * 70_000}, 400, "characters"),
    ("POST", "/v1/trips/scan", {"columns": "id"}, 400, "list of names"),
    ("POST", "/v1/trips/scan", {"limit": 1.5}, 400, "whole number"),
    ("POST", "/v1/trips/scan", {"limit": "1"}, 400, "whole number"),
    ("GET", "/v1/trips/count?limit=1", None, 400, "no parameter 'limit'"),
    ("GET", "/v1/trips/explain?where=id = ", None, 400, "SQL condition"),
    ("GET", "/v1/trips/schema?x=1", None, 400, "no parameter"),
    ("POST", "/v1/datasets", {}, 405, ""),
    ("DELETE", "/v1/trips/scan", None, 405, ""),
    ("GET", "/v1/trips/drop", None, 404, "no such path"),
    ("GET", "/v1/trips/../trips/scan/", None, 404, ""),
    ("GET", "/nothing", None, 404, ""),
]


def sent(body: Any) -> dict[str, Any]:
    if body is None:
        return {}
    return {"content": body} if isinstance(body, bytes) else {"json": body}


@pytest.mark.parametrize(("method", "path", "body", "status", "words"), BAD, ids=lambda part: str(part)[:40])
async def test_bad_input_is_a_problem(lake: str, method: str, path: str, body: Any, status: int, words: str) -> None:
    async with client_of(configuration(lake)) as client:
        document = problem(await client.request(method, path, **sent(body)), status)
    assert words in document["detail"]
    assert lake not in json.dumps(document)


async def test_a_hint_names_what_was_meant(lake: str) -> None:
    async with client_of(configuration(lake)) as client:
        for path in ("/v1", "/v1/trips"):
            assert "/v1/datasets and /v1/DATASET/VERB" in problem(await client.get(path), 404)["hint"]
        document = problem(await client.get("/v1/trips/scan?where=pric > 1"), 400)
        assert document == {
            "type": "about:blank",
            "title": "The request is wrong",
            "status": 400,
            "detail": "the dataset has no such column",
            "hint": "Did you mean 'price'?",
            "error": "ColumnNotFoundError",
            "column": "pric",
        }
        assert "Did you mean 'where'" in problem(await client.get("/v1/trips/scan?wher=1"), 400)["hint"]


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "scan?filter=id=1", "Write where instead of filter."),
        ("GET", "count?condition=id=1", "Write where instead of condition."),
        ("GET", "scan?column=id", "Write columns instead of column."),
        ("GET", "lookup?id=1&column=user", "Write columns instead of column."),
        ("GET", "lookup?id=1&filter=user='u1'", "A lookup has keys alone: send where to scan."),
        ("GET", "lookup?id=1&where=user='u1'", "A lookup has keys alone: send where to scan."),
        ("GET", "scan?n=3", "Write limit instead of n."),
        ("GET", "scan?output=csv", "Write format instead of output."),
        ("GET", "scan?wher=id=1", "Did you mean 'where'?"),
        ("GET", "scan?id=1", "Rows by their keys are those of lookup."),
        ("GET", "count?format=csv", "count answers in JSON alone"),
        ("GET", "schema?format=arrow", "schema answers in JSON alone"),
        ("GET", "explain?format=csv", "explain answers in JSON alone"),
        ("POST", "count?format=csv", "count answers in JSON alone"),
        ("POST", "lookup?limit=3", "Write it into the JSON body."),
        ("GET", "count?format=json", None),
        ("POST", "scan?format=csv", None),
    ],
)
async def test_a_parameter_is_applied_or_refused_with_what_is_meant(
    lake: str, method: str, path: str, words: str | None
) -> None:
    async with client_of(configuration(lake)) as client:
        answer = await client.request(method, f"/v1/trips/{path}", json={} if method == "POST" else None)
    assert answer.status_code == (400 if words else 200), answer.text
    if words:
        document = answer.json()
        assert words in f"{document['detail']} {document.get('hint')}"


async def test_without_a_known_token_there_is_nothing(lake: str) -> None:
    async with client_of(configuration(lake), token=None) as client:
        paths = ["/v1/datasets", "/v1/trips/count", "/v1/nothing/count", "/metrics"]
        texts = set()
        for path in paths:
            for headers in ({}, bearer("wrong"), {"authorization": f"Basic {TOKEN}"}, {"authorization": ""}):
                response = await client.get(path, headers=headers)
                problem(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
                texts.add(response.text)
        assert len(texts) == 1


async def test_a_token_without_rights_learns_nothing(lake: str) -> None:
    """All that it sends to a dataset that exists is answered as if to one that does not."""
    async with client_of(configuration(lake), token=NOTHING) as client:
        assert (await client.get("/v1/datasets")).json()["datasets"] == []
        for method, path, body, _, _ in BAD:
            if not path.startswith("/v1/trips/"):
                continue
            real = await client.request(method, path, **sent(body))
            absent = await client.request(method, path.replace("/v1/trips/", "/v1/absent/"), **sent(body))
            assert (real.status_code, real.text, dict(real.headers)) == (
                absent.status_code,
                absent.text,
                dict(absent.headers),
            )
        problem(await client.get("/metrics"), 403)
        service = service_of(client)
        assert service._datasets["trips"]._dataset is None  # not even opened


async def test_rows_and_columns_that_a_token_may_not_see_do_not_exist(lake: str) -> None:
    table = trips()
    north = table.filter(pc.equal(table["region"], "north")).select(["id", "user", "price", "place"])
    async with client_of(configuration(lake), token=NORTH) as client:
        assert (await client.get("/v1/trips/scan")).json()["rows"] == north.to_pylist()
        assert (await client.get("/v1/trips/count")).json()["rows"] == north.num_rows
        schema = (await client.get("/v1/trips/schema")).json()
        assert [column["name"] for column in schema["columns"]] == north.column_names
        rows = (await client.get("/v1/trips/lookup?id=4&id=5&id=6&id=8&columns=id")).json()["rows"]
        assert rows == [{"id": 4}, {"id": 8}]
        pairs = {"keys": {"id": [4, 5, 8], "user": ["u4", "u5", "u9"]}, "columns": ["id"]}
        assert (await client.post("/v1/trips/lookup", json=pairs)).json()["rows"] == [{"id": 4}]
        everything = (await client.get("/v1/trips/scan", params={"where": "id < 9 OR TRUE", "columns": "id"})).json()
        assert len(everything["rows"]) == north.num_rows
        inverse = await client.get("/v1/trips/count", params={"where": "NOT (id >= 0)"})
        assert inverse.json()["rows"] == 0


@pytest.mark.parametrize("format_", ["json", "ndjson", "arrow"])
async def test_rows_without_columns_are_counted_for_every_token(lake: str, format_: str) -> None:
    """A token whose rows are restricted gets them in other batches."""
    async with client_of(configuration(lake), NORTH) as client:
        whole = await client.post(f"/v1/trips/scan?format={format_}", json={})
        none = await client.post(f"/v1/trips/scan?format={format_}", json={"columns": []})
        assert none.headers["asyncpq-rows"] == whole.headers["asyncpq-rows"] != "0"
        if format_ == "arrow":
            assert (
                str(sum(batch.num_rows for batch in pa.ipc.open_stream(none.content))) == none.headers["asyncpq-rows"]
            )


@pytest.mark.parametrize("name", ["secret", "region", "place.z"])
async def test_a_hidden_column_is_one_that_does_not_exist(lake: str, name: str) -> None:
    """Whatever names it gets the response of a name that no column has."""
    absent = "absent" if "." not in name else "place.absent"
    async with client_of(configuration(lake), token=NORTH) as client:
        for verb, question in (
            ("scan", {"where": 'id = 1 OR NOT ("NAME" = 1)'}),
            ("scan", {"where": '"NAME" IS NULL'}),
            ("scan", {"where": 'id = "NAME"'}),
            ("scan", {"columns": "id,NAME"}),
            ("count", {"where": "\"NAME\" = 'x'"}),
            ("explain", {"where": '"NAME" > 5'}),
            ("lookup", {"NAME": "1"}),
            ("lookup", {"NAME": "wrong type"}),
            ("lookup", {"id": "1", "columns": "NAME"}),
        ):
            texts = []
            for one in (name, absent):
                where = '"."'.join(one.split(".")) if "where" in question else one
                params = {key.replace("NAME", one): text.replace("NAME", where) for key, text in question.items()}
                response = await client.get(f"/v1/trips/{verb}", params=params)
                document = problem(response, 400)
                document = {key: value for key, value in document.items() if key != "hint"}
                texts.append(json.dumps(document).replace(one, "X"))
                assert "secret" not in response.text.replace(name, "")
                assert "region" not in response.text.replace(name, "")
            assert texts[0] == texts[1]


async def test_explain_of_a_token_tells_no_urls_rows_or_columns(lake: str) -> None:
    async with client_of(configuration(lake), token=NORTH) as client:
        response = await client.get("/v1/trips/explain", params={"where": "id = 1"})
        assert response.json() == {
            "document": "plan",
            "dataset": "trips",
            "columns": ["id", "user", "price", "place"],
            "where": "id = 1",
            "limit": 1_000_000,
        }
        assert not [name for name in response.headers if name.startswith("asyncpq-")]
    shown = settings(lake)
    shown["tokens"]["north"]["datasets"]["trips"]["costs"] = True
    async with client_of(parse_configuration(shown), token=NORTH) as client:
        text = (await client.get("/v1/trips/explain", params={"where": "id = 1"})).text
    assert "num_requests" in text
    assert not any(word in text for word in ("region", "north", "secret", lake, "part-"))


async def test_verbs_that_a_token_may_not_use(lake: str) -> None:
    some = settings(lake)
    some["tokens"]["all"]["datasets"]["trips"]["verbs"] = ["lookup"]
    some["anonymous"] = {"datasets": {"*": {"verbs": ["count"]}}}
    async with client_of(parse_configuration(some)) as client:
        assert (await client.get("/v1/trips/lookup?id=1")).status_code == 200
        assert "lookup" in problem(await client.get("/v1/trips/scan"), 403)["hint"]
        del client.headers["authorization"]
        assert (await client.get("/v1/trips/count")).json()["rows"] == 3000
        problem(await client.get("/v1/absent/count"), 404)
        problem(await client.get("/v1/trips/count", headers=bearer("wrong")), 401)


async def test_an_etag_names_versions_request_rights_and_format(tmp_path: Path) -> None:
    write_lake(tmp_path / "lake")
    async with client_of(configuration(f"{tmp_path}/lake/")) as client:
        paths = ["/v1/trips/lookup?id=42", "/v1/trips/count", "/v1/trips/scan?limit=5", "/v1/trips/scan?limit=6"]
        tags = [(await client.get(path)).headers["etag"] for path in paths]
        tags.append((await client.get(f"{paths[0]}&format=arrow")).headers["etag"])
        tags.append((await client.get(paths[1], headers=bearer(NORTH))).headers["etag"])
        assert len(set(tags)) == len(tags)
        assert all(tag.startswith('W/"') for tag in tags)
        for path, tag in zip(paths, tags, strict=False):
            response = await client.get(path, headers={"if-none-match": f'W/"x", {tag}'})
            assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", tag)
            assert response.headers["asyncpq-bytes"] == "0"
            other = await client.get(path, headers={"if-none-match": 'W/"x"'})
            assert (other.status_code, other.headers["etag"]) == (200, tag)
        strong = tags[1].removeprefix("W/")
        for known in ("*", strong):
            assert (await client.get(paths[1], headers={"if-none-match": known})).status_code == 304
        head = await client.head(paths[0])
        assert (head.status_code, head.headers["etag"], head.content) == (200, tags[0], b"")
        (tmp_path / "lake" / "part-3.parquet").write_bytes((tmp_path / "lake" / "part-0.parquet").read_bytes())
        for path, tag in zip(paths, tags, strict=False):
            assert (await client.get(path, headers={"if-none-match": tag})).status_code == 200
        assert (await client.get("/v1/trips/count")).json()["rows"] == 4000


async def test_too_many_requests_at_once(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = configuration(lake, limits={"concurrent": 2}, server={"concurrent": 3})
    async with client_of(limited) as client:
        gate, arrived = asyncio.Event(), asyncio.Semaphore(0)
        served = service_of(client)._datasets["trips"]
        dataset = await served.dataset()

        async def wait() -> Any:
            arrived.release()
            await gate.wait()
            return dataset

        monkeypatch.setattr(served, "dataset", wait)
        tasks = [asyncio.create_task(client.get("/v1/trips/count")) for _ in range(2)]
        await arrived.acquire()
        await arrived.acquire()
        refused = await client.get("/v1/trips/count")
        problem(refused, 429)
        assert refused.headers["retry-after"] == "1"
        assert "limit" in refused.json()["detail"]
        problem(await client.get("/v1/trips/count", headers=bearer(NOTHING)), 404)
        tasks.append(asyncio.create_task(client.get("/v1/trips/count", headers=bearer(NORTH))))
        await arrived.acquire()
        problem(await client.get("/v1/trips/count", headers=bearer(NORTH)), 429)
        gate.set()
        assert [(await task).json()["rows"] for task in tasks] == [3000, 3000, 750]
        assert (await client.get("/v1/trips/count")).status_code == 200


async def test_caps_on_rows_bytes_and_time(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(configuration(lake, limits={"rows": 10, "bytes": 2000})) as client:
        scan = await client.get("/v1/trips/scan?columns=id")
        assert len(scan.json()["rows"]) == 10
        assert scan.headers["asyncpq-limit"] == scan.headers["asyncpq-rows"] == "10"
        problem(await client.get("/v1/trips/scan?limit=11"), 400)
        problem(await client.get("/v1/trips/scan?format=parquet"), 413)
    async with client_of(configuration(lake, limits={"seconds": 0.05})) as client:
        served = service_of(client)._datasets["trips"]
        monkeypatch.setattr(served, "dataset", asyncio.Event().wait)
        problem(await client.get("/v1/trips/count"), 504)


async def test_a_reload_serves_what_is_new_and_keeps_what_is_open(lake: str, tmp_path: Path) -> None:
    async with client_of(configuration(lake)) as client:
        service = service_of(client)
        await client.get("/v1/trips/count")
        kept = service._datasets["trips"]
        new = settings(lake)
        new["datasets"]["more"] = {"url": f"{lake}part-0.parquet"}
        new["tokens"]["all"]["datasets"]["more"] = {}
        problem(await client.get("/v1/more/count"), 404)
        service.reload(parse_configuration(new))
        assert (await client.get("/v1/more/count")).json()["rows"] == 1000
        assert service._datasets["trips"] is kept
        wrong = tmp_path / "wrong.toml"
        wrong.write_text("[datasets.trips]\nurll = 'x'\n")
        service.reload_file(wrong)
        assert (await client.get("/v1/more/count")).status_code == 200


@pytest.mark.parametrize(("server", "warns"), [({}, False), ({"port": 81}, False), ({"drain_s": 3}, True)])
async def test_the_address_of_the_command_line_holds_after_a_reload(
    server: dict[str, Any], warns: bool, lake: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(configuration(lake).at("127.0.0.1", 8190)) as client:
        service = service_of(client)
        for _ in range(2):
            service.reload(parse_configuration({**settings(lake), "server": server}))
            assert (service.configuration.server.host, service.configuration.server.port) == ("127.0.0.1", 8190)
        assert ("need a restart" in caplog.text) is warns


async def test_a_dataset_that_cannot_be_opened_is_told_by_its_kind_alone(tmp_path: Path) -> None:
    async with client_of(configuration(f"{tmp_path}/absent/")) as client:
        document = problem(await client.get("/v1/trips/count"), 502)
        assert document["error"] == "ObjectNotFoundError"
        assert document["instance"].startswith("urn:uuid:")
        assert str(tmp_path) not in json.dumps(document)
        write_lake(tmp_path / "absent")
        assert (await client.get("/v1/trips/count")).json()["rows"] == 3000


async def test_docs_can_be_switched_off(lake: str) -> None:
    async with client_of(configuration(lake), token=None) as client:
        assert (await client.get("/docs")).status_code == 200
        assert (await client.get("/openapi.json")).json()["openapi"] == "3.1.0"
    async with client_of(configuration(lake, server={"docs": False}), token=None) as client:
        assert (await client.get("/docs")).status_code == 404

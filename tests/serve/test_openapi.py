"""The OpenAPI document is valid and names the routes that exist; its examples are answers of the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asyncpq.serve import Service
from asyncpq.serve.configuration import Configuration
from asyncpq.serve.openapi import openapi_document
from asyncpq.serve.requests import FORMATS
from tests.serve.services import client_of, configuration, write_lake


@pytest.mark.parametrize("root", ["", "/data"])
def test_it_is_valid(root: str) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    document = openapi_document(root)
    assert document["openapi"].startswith("3.1")
    validator.validate(document)
    assert json.loads(json.dumps(document)) == document


def test_it_names_every_route() -> None:
    found: list[Any] = list(Service(Configuration()).app.routes)
    routes = {(route.path, method.lower()) for route in found for method in route.methods - {"HEAD"}}
    unnamed = {("/", "get"), ("/openapi.json", "get"), ("/docs", "get")}
    paths = openapi_document()["paths"]
    named = {(path, method) for path, item in paths.items() for method in item if method in ("get", "post")}
    assert named == routes - unnamed


def test_every_operation_has_an_example_and_a_name_of_its_own() -> None:
    document = openapi_document()
    names = []
    for item in document["paths"].values():
        for method in ("get", "post"):
            if method in item:
                operation = item[method]
                names.append(operation["operationId"])
                content = operation["responses"]["200"]["content"]
                assert content["text/plain" if operation["operationId"] == "metrics" else "application/json"]["example"]
                if method == "post":
                    assert operation["requestBody"]["content"]["application/json"]["examples"]
    assert len(set(names)) == len(names)
    scan = document["paths"]["/v1/{dataset}/scan"]["get"]["responses"]["200"]
    assert list(scan["content"]) == list(FORMATS.values())


async def test_answers_have_the_documented_shapes(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    write_lake(tmp_path)
    async with client_of(configuration(f"{tmp_path}/")) as client:
        document = (await client.get("/openapi.json")).json()
        for path, name in (
            ("/v1/datasets", "Datasets"),
            ("/v1/trips/schema", "Schema"),
            ("/v1/trips/lookup?id=1", "Rows"),
            ("/v1/trips/scan?limit=2", "Rows"),
            ("/v1/trips/count", "Count"),
            ("/v1/trips/explain", "Plan"),
            ("/v1/trips/count?x=1", "Problem"),
        ):
            answer = (await client.get(path)).json()
            schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
            jsonschema.validate(answer, schema)

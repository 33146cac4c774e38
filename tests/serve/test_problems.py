"""Problem documents tell what the client can mend, and of the rest the kind alone."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from asyncpq.errors import (
    ColumnNotFoundError,
    InvalidOptionError,
    ObjectChangedError,
    ResourceLimitError,
    ThrottledError,
)
from asyncpq.serve.openapi import openapi_document
from asyncpq.serve.problems import _KINDS, Problem, clients_errors, problem_of, wrong_request
from tests.serve.services import client_of, configuration, write_lake


def test_errors_of_the_client_are_told_without_urls() -> None:
    error = ColumnNotFoundError(
        "no column in s3://bucket/a?X-Amz-Signature=x", url="s3://bucket/a", column="x", hint="See https://bucket/b."
    )
    document = json.loads(wrong_request(error).body)
    assert document["detail"] == "no column in ..."
    assert document["column"] == "x"
    assert "bucket" not in json.dumps(document)
    with pytest.raises(Problem), clients_errors():
        raise error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ThrottledError("s3://bucket/a is busy", url="s3://bucket/a"), 503),
        (ObjectChangedError("changed", url="/folder/bucket"), 503),
        (TimeoutError("bucket"), 504),
        (ResourceLimitError("the page of bucket is too large"), 413),
        (PermissionError(13, "no", "/folder/bucket"), 500),
        (RuntimeError("bucket"), 500),
    ],
)
def test_other_errors_are_logged_under_their_instance(
    error: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        problem = problem_of(error)
    assert problem.status == status
    assert "bucket" not in problem.body.decode()
    assert problem.document["detail"] != type(error).__doc__  # which is for programmers
    assert str(problem.document["instance"]) in caplog.text
    assert str(error) in caplog.text


def test_a_wrong_configuration_is_no_defect() -> None:
    error = InvalidOptionError("storage_options of s3://bucket/a: there is no option 'x'", url="s3://bucket/a")
    problem = problem_of(error)
    assert problem.status == 500
    assert "configured" in str(problem.document["detail"])
    assert "defect" in str(problem_of(RuntimeError()).document["detail"])


def test_openapi_and_the_page_list_each_status_of_an_error() -> None:
    statuses = {str(status) for _, status, _ in _KINDS}
    assert statuses <= set(openapi_document()["paths"]["/v1/{dataset}/scan"]["get"]["responses"])
    page = (Path(__file__).resolve().parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    assert statuses <= set(re.findall(r"^\| (\d{3}) \|", page, re.MULTILINE))


def test_a_problem_stays_what_it_is() -> None:
    problem = Problem(400, "x", hint="y")
    assert problem_of(problem) is problem
    assert json.loads(problem.body) == {
        "type": "about:blank",
        "title": "The request is wrong",
        "status": 400,
        "detail": "x",
        "hint": "y",
    }


@pytest.mark.parametrize(
    "where", ["id > 1 LIMIT 5", "", "id IN (SELECT 1)", "foo(id) = 1", "id > 'x'", 'region = "north"', "id > 1 AND"]
)
async def test_what_to_do_names_no_argument_of_python(tmp_path: Path, where: str) -> None:
    write_lake(tmp_path)
    async with client_of(configuration(str(tmp_path))) as client:
        document = (await client.get("/v1/trips/scan", params={"where": where})).json()
    assert document["status"] == 400
    assert not re.search(r"\bawait |\b[a-z_]{2,}=(?=[,;. )]|$)|Options\b|--", document.get("hint", ""))

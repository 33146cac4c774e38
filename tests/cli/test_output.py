"""Documents are written as JSON that people can read."""

from __future__ import annotations

import json

import pytest

from asyncpq.cli.output import write_document


def test_a_document_is_indented_json_with_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"document": "count", "rows": 1, "url": "Zürich.parquet", "none": None}
    write_document(document)
    written, errors = capsys.readouterr()
    assert json.loads(written) == document
    assert '\n  "url": "Zürich.parquet",\n' in written
    assert written.endswith("}\n")
    assert errors == ""

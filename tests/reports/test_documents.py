"""The documents' shapes: each is a JSON object, which a JSON Schema in docs/schemas describes.

``ASYNCPQ_UPDATE_DOCS=1`` writes the schemas anew.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec
import pytest

from asyncpq.reports import documents

SHAPES = [shape for shape in vars(documents).values() if is_typeddict(shape) and shape.__module__ == documents.__name__]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_each_document_has_a_json_schema(shape: type) -> None:
    schema = msgspec.json.schema(shape)
    described = schema["$defs"][shape.__name__]
    assert described["type"] == "object"
    assert set(described["properties"]) == set(get_type_hints(shape))
    assert json.loads(json.dumps(schema)) == schema
    assert shape.__doc__


def test_the_documents_of_the_verbs_are_told_apart_by_their_names() -> None:
    names = [str(get_type_hints(shape)["document"]) for shape in SHAPES if "document" in get_type_hints(shape)]
    assert len(names) == len(set(names)) > 5


DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = {
    str(get_args(hints["document"])[0]): shape for shape in SHAPES if "document" in (hints := get_type_hints(shape))
}


def schema_of(shape: type) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(shape)}


def test_the_schemas_are_those_of_the_documents() -> None:
    folder = DOCS / "schemas"
    texts = {
        # msgspec 0.21 takes the indentation of docstrings away, earlier ones keep it
        f"{name.replace(' ', '-')}.json": re.sub(r"\\n *", " ", json.dumps(schema_of(shape), indent=2)) + "\n"
        for name, shape in DOCUMENTS.items()
    }
    if os.environ.get("ASYNCPQ_UPDATE_DOCS"):
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == texts, (
        "asyncpq/reports/documents.py has changed: set ASYNCPQ_UPDATE_DOCS=1"
    )


def test_the_page_of_the_command_line_names_each_schema() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    missing = [name for name in DOCUMENTS if f"schemas/{name.replace(' ', '-')}.json" not in page]
    assert missing == []

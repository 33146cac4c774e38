"""The documents' shapes: each is a JSON object, which a JSON Schema in docs/schemas describes.

``ASYNCPQ_UPDATE_DOCS=1`` writes the schemas anew.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec
import pytest

from asyncpq.reports import documents

SHAPES = [shape for shape in vars(documents).values() if is_typeddict(shape) and shape.__module__ == documents.__name__]
SHAPES_BY_NAME = {shape.__name__: shape for shape in SHAPES}


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
    schema = msgspec.json.schema(shape)
    for name, definition in schema["$defs"].items():
        if name in SHAPES_BY_NAME:
            definition["description"], texts = described(SHAPES_BY_NAME[name])
            for field, text in texts.items():
                definition["properties"][field] = {"description": text, **definition["properties"][field]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def described(shape: type) -> tuple[str, dict[str, str]]:
    """The docstring of a document before its section "Attributes", and the texts of that section by field."""
    text, _, section = (inspect.getdoc(shape) or "").partition("\n\nAttributes:\n")
    items = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", section, re.MULTILINE)
    return " ".join(text.split()), {
        field: " ".join(described.split()) for fields, described in items for field in fields.split(", ")
    }


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_docstrings_explain_each_field(shape: type) -> None:
    text, texts = described(shape)
    fields = set(get_type_hints(shape)) - {"document"}
    assert set(texts) in (fields, set())
    assert texts or "``" in text or "fields of" in text


def test_the_schemas_are_those_of_the_documents() -> None:
    folder = DOCS / "schemas"
    texts = {
        f"{name.replace(' ', '-')}.json": json.dumps(schema_of(shape), indent=2) + "\n"
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

"""The documents' shapes: each is a JSON object that a JSON Schema describes."""

from __future__ import annotations

import json
from typing import get_type_hints, is_typeddict

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

"""The OpenAPI document of the service, and the page that shows it without access to the internet."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from asyncpq import __version__
from asyncpq.serve.requests import FORMATS

DOCS_PAGE: Final = files("asyncpq.serve").joinpath("docs.html").read_text(encoding="utf-8")

_COST_HEADERS: Final = {
    "Server-Timing": "Milliseconds: total, waiting for stores and caches, decoding.",
    "Asyncpq-Requests": "Requests that the answer took at the store.",
    "Asyncpq-Bytes": "Bytes fetched from the store.",
    "Asyncpq-Rounds": "The longest chain of requests of which each had to wait for the one before.",
    "Asyncpq-Tier": "The farthest place that the read went to: memory, disk, shared or store.",
}
_ROW: Final = {"id": 42, "user": "u7", "price": 9.5}
_COLUMNS: Final = [
    {"name": "id", "arrow_type": "int64"},
    {"name": "user", "arrow_type": "string"},
    {"name": "price", "arrow_type": "double"},
]
_PROBLEMS: Final = {
    "400": "A parameter, column, key or condition is wrong.",
    "401": "The request has no token that the service knows.",
    "403": "The token does not allow this verb.",
    "404": "There is no such dataset, or the token has no right to it.",
    "406": "The service writes none of the formats that Accept names.",
    "413": "The answer, the request or the read is larger than allowed.",
    "429": "Too many requests at once.",
    "500": "The service has a defect.",
    "502": "The files cannot be read.",
    "503": "The store does not answer, or files are replaced too fast.",
    "504": "The answer took too long.",
}


def openapi_document(root_path: str = "") -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the service, mounted at ``root_path``."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "asyncpq",
            "version": __version__,
            "summary": "Rows of Parquet files in object stores, by key or condition.",
            "description": "Answers are JSON, NDJSON, CSV, Arrow IPC stream or Parquet: `Accept` or `format` chooses.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{"token": []}, {}],
        "tags": [{"name": "rows", "description": "Rows."}, {"name": "service", "description": "The service."}],
        "paths": {
            "/v1/datasets": {"get": _datasets()},
            "/v1/{dataset}/schema": {"parameters": [_ref("parameters", "dataset")], "get": _schema()},
            "/v1/{dataset}/lookup": _verb("lookup", _lookup_get(), _LOOKUP_BODY, rows=True),
            "/v1/{dataset}/scan": _verb("scan", _named("where", "columns", "limit", "format"), _SCAN_BODY, rows=True),
            "/v1/{dataset}/count": _verb("count", _named("where"), _COUNT_BODY, rows=False),
            "/v1/{dataset}/explain": _verb("explain", _named("where", "columns", "limit"), _SCAN_BODY, rows=False),
            "/healthz": {"get": _page("health", "Whether the process lives.", {"status": "alive"})},
            "/readyz": {
                "get": _page(
                    "ready", "Whether the service takes requests and its datasets are open.", {"status": "ready"}
                )
            },
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "parameters": _parameters(),
            "headers": {
                name: {"description": text, "schema": {"type": "string"}} for name, text in _COST_HEADERS.items()
            },
            "responses": {
                status: {
                    "description": text,
                    "content": {"application/problem+json": {"schema": _ref("schemas", "Problem")}},
                }
                for status, text in _PROBLEMS.items()
            },
            "schemas": _schemas(),
        },
    }


def _ref(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _schemas() -> dict[str, Any]:
    columns = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name", "arrow_type"],
            "properties": {
                "name": {"type": "string"},
                "arrow_type": {"type": "string"},
                "nullable": {"type": "boolean"},
            },
        },
    }
    text, number = {"type": "string"}, {"type": "integer"}
    return {
        "Rows": {
            "type": "object",
            "required": ["document", "dataset", "columns", "rows"],
            "properties": {
                "document": {"const": "rows"},
                "dataset": text,
                "columns": columns,
                "rows": {"type": "array", "items": {"type": "object"}},
            },
        },
        "Count": {
            "type": "object",
            "required": ["document", "dataset", "rows"],
            "properties": {
                "document": {"const": "count"},
                "dataset": text,
                "where": {"type": ["string", "null"]},
                "rows": number,
            },
        },
        "Plan": {"type": "object", "required": ["document"], "properties": {"document": {"const": "plan"}}},
        "Schema": {
            "type": "object",
            "required": ["document", "dataset", "columns"],
            "properties": {"document": {"const": "schema"}, "dataset": text, "columns": columns},
        },
        "Datasets": {
            "type": "object",
            "required": ["document", "datasets", "limits"],
            "properties": {
                "document": {"const": "datasets"},
                "datasets": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "description", "verbs"],
                        "properties": {"name": text, "description": text, "verbs": {"type": "array", "items": text}},
                    },
                },
                "limits": {"type": "object", "additionalProperties": {"type": "number"}},
            },
        },
        "Problem": {
            "type": "object",
            "description": "RFC 9457.",
            "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": text,
                "title": text,
                "status": number,
                "detail": text,
                "hint": {"type": "string", "description": "What to do."},
                "error": {"type": "string", "description": "Class of the error of asyncpq."},
                "column": text,
                "instance": {"type": "string", "description": "Names the error in the service's log."},
            },
        },
    }


def _parameters() -> dict[str, Any]:
    described = {
        "where": ("The condition after WHERE in SQL.", {"type": "string"}, "price > 9 AND user LIKE 'u%'"),
        "columns": ("Names of columns, with commas between them; all without it.", {"type": "string"}, "user,price"),
        "limit": ("At most so many rows.", {"type": "integer", "minimum": 0}, 100),
        "format": ("Instead of Accept.", {"type": "string", "enum": list(FORMATS)}, "ndjson"),
    }
    found: dict[str, Any] = {
        name: {"name": name, "in": "query", "description": text, "schema": schema, "example": example}
        for name, (text, schema, example) in described.items()
    }
    found["dataset"] = {
        "name": "dataset",
        "in": "path",
        "required": True,
        "description": "One of /v1/datasets.",
        "schema": {"type": "string"},
        "example": "trips",
    }
    found["ifNoneMatch"] = {
        "name": "If-None-Match",
        "in": "header",
        "description": "The ETag of an earlier answer: 304 if the files still have these versions.",
        "schema": {"type": "string"},
    }
    return found


def _named(*names: str) -> list[dict[str, Any]]:
    return [_ref("parameters", name) for name in names]


def _lookup_get() -> list[dict[str, Any]]:
    key = {
        "name": "key",
        "in": "query",
        "required": True,
        "description": "Key columns by their names, such as id=42; again for several values.",
        "style": "form",
        "explode": True,
        "schema": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
        "example": {"id": "42"},
    }
    return [key, *_named("columns", "limit", "format")]


_COLUMNS_MEMBER: Final = {"type": "array", "items": {"type": "string"}}
_LIMIT_MEMBER: Final = {"type": "integer", "minimum": 0}
_LOOKUP_BODY: Final = {
    "schema": {
        "type": "object",
        "required": ["keys"],
        "additionalProperties": False,
        "properties": {"keys": {"type": "object"}, "columns": _COLUMNS_MEMBER, "limit": _LIMIT_MEMBER},
    },
    "examples": {
        "many keys": {"value": {"keys": {"id": [1, 2, 3]}, "columns": ["user", "price"]}},
        "keys of two columns, paired by position": {"value": {"keys": {"user": ["u1", "u7"], "id": [5, 42]}}},
    },
}
_SCAN_BODY: Final = {
    "schema": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "keys": {"type": "object", "description": "Of explain alone."},
            "where": {"type": "string"},
            "columns": _COLUMNS_MEMBER,
            "limit": _LIMIT_MEMBER,
        },
    },
    "examples": {"condition": {"value": {"where": "price > 9", "columns": ["id"], "limit": 100}}},
}
_COUNT_BODY: Final = {
    "schema": {"type": "object", "additionalProperties": False, "properties": {"where": {"type": "string"}}},
    "examples": {"condition": {"value": {"where": "price > 9"}}},
}
_SUMMARIES: Final = {
    "lookup": "Rows with the given keys.",
    "scan": "Rows that match a condition, streamed.",
    "count": "How many rows match a condition.",
    "explain": "What a read would fetch, without reading.",
}
_RESULTS: Final = {"count": "Count", "explain": "Plan"}
_EXAMPLES: Final[dict[str, Any]] = {
    "count": {"document": "count", "dataset": "trips", "where": "price > 9", "rows": 12},
    "explain": {"document": "plan", "dataset": "trips", "columns": ["id"], "where": "price > 9", "num_requests": 1},
}


def _verb(verb: str, parameters: list[dict[str, Any]], body: dict[str, Any], *, rows: bool) -> dict[str, Any]:
    responses = {"200": _rows_response() if rows else _document_response(_RESULTS[verb], _EXAMPLES[verb])}
    if verb != "explain":
        responses["304"] = {"description": "The files still have the versions of If-None-Match."}
    responses.update({status: _ref("responses", status) for status in _PROBLEMS})
    common = {"tags": ["rows"], "summary": _SUMMARIES[verb], "responses": responses}
    return {
        "parameters": _named("dataset", "ifNoneMatch"),
        "get": {**common, "operationId": verb, "parameters": parameters},
        "post": {
            **common,
            "operationId": f"{verb}Post",
            "parameters": _named("format") if rows else [],
            "requestBody": {"required": True, "content": {"application/json": body}},
        },
    }


def _headers(*names: str) -> dict[str, Any]:
    own = {name: {"schema": {"type": "string"}} for name in names}
    return {**own, **{name: _ref("headers", name) for name in _COST_HEADERS}}


def _rows_response() -> dict[str, Any]:
    example = {"document": "rows", "dataset": "trips", "columns": _COLUMNS, "rows": [_ROW]}
    content: dict[str, Any] = {media_type: {"schema": {}} for media_type in FORMATS.values()}
    content[FORMATS["json"]] = {"schema": _ref("schemas", "Rows"), "example": example}
    content[FORMATS["ndjson"]] = {"schema": {"type": "string"}, "example": '{"id": 42, "user": "u7", "price": 9.5}\n'}
    return {
        "description": "The rows. An answer of as many rows as Asyncpq-Limit says may lack others.",
        "headers": _headers("ETag", "Asyncpq-Limit", "Asyncpq-Rows"),
        "content": content,
    }


def _document_response(schema: str, example: Any) -> dict[str, Any]:
    return {
        "description": "The document.",
        "headers": _headers("ETag"),
        "content": {"application/json": {"schema": _ref("schemas", schema), "example": example}},
    }


def _datasets() -> dict[str, Any]:
    example = {
        "document": "datasets",
        "datasets": [{"name": "trips", "description": "All trips.", "verbs": ["count", "lookup"]}],
        "limits": {"rows": 1000000, "bytes": 1073741824, "seconds": 60.0, "keys": 1000, "concurrent": 64},
    }
    return {
        "operationId": "datasets",
        "tags": ["rows"],
        "summary": "The datasets that the token has rights to, and its limits.",
        "responses": {"200": _document_response("Datasets", example), "401": _ref("responses", "401")},
    }


def _schema() -> dict[str, Any]:
    example = {"document": "schema", "dataset": "trips", "columns": _COLUMNS}
    failures = {status: _ref("responses", status) for status in ("401", "403", "404", "502", "503")}
    return {
        "operationId": "schema",
        "tags": ["rows"],
        "summary": "The columns.",
        "responses": {"200": _document_response("Schema", example), **failures},
    }


def _metrics() -> dict[str, Any]:
    example = 'asyncpq_serve_requests_total{dataset="trips",status="200",verb="count"} 1.0\n'
    content = {"text/plain": {"schema": {"type": "string"}, "example": example}}
    return {
        "operationId": "metrics",
        "tags": ["service"],
        "summary": "Counters for Prometheus, for tokens that may read them.",
        "responses": {
            "200": {"description": "The counters.", "content": content},
            **{status: _ref("responses", status) for status in ("401", "403")},
        },
    }


def _page(name: str, summary: str, example: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {
        "operationId": name,
        "tags": ["service"],
        "summary": summary,
        "security": [],
        "responses": {"200": {"description": "It does.", "content": content}, "503": _ref("responses", "503")},
    }

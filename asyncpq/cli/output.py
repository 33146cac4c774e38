"""Write lines and JSON documents to stdout or stderr; the formats of reports."""

from __future__ import annotations

import enum
import json
import sys
from typing import Annotated, Any

from asyncpq.cli.parameters import Option


class Format(enum.StrEnum):
    """The output formats of a report."""

    TABLE = "table"
    JSON = "json"


ReportFormat = Annotated[Format, Option("--format", help="A table for people, or one JSON document.")]


def write_line(text: object, *, err: bool = False) -> None:
    """Write a line to stdout, or with ``err`` to stderr, at once."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


def write_document(document: Any) -> None:
    """Write a JSON document to stdout."""
    write_line(json.dumps(document, indent=2, ensure_ascii=False))

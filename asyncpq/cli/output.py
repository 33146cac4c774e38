"""Write JSON documents to stdout."""

from __future__ import annotations

import json
from typing import Any

import typer


def write_document(document: Any) -> None:
    """Write a JSON document to stdout."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))

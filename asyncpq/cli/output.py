"""Write lines and JSON documents to stdout or stderr."""

from __future__ import annotations

import json
import sys
from typing import Any


def write_line(text: object, *, err: bool = False) -> None:
    """Write a line to stdout, or with ``err`` to stderr, at once."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


def write_document(document: Any) -> None:
    """Write a JSON document to stdout."""
    write_line(json.dumps(document, indent=2, ensure_ascii=False))

"""The namespace that cached bytes are shared in, where the session is given none."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def storage_namespace(protocol: str, options: Mapping[str, Any]) -> str:
    """Names who reads: whoever configures other credentials or another endpoint shares nothing.

    Nor does anyone share where an option is an object, whose value nobody can tell: each call gives another name.
    """
    canonical = _canonical(options)
    if canonical is None:
        return f"{protocol}:{secrets.token_hex(16)}"
    return f"{protocol}:{hashlib.sha256(canonical.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def _canonical(value: object) -> str | None:
    """The same text in every process for the same plain value, and for no other; None for what is no plain value."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, PurePath):
        return f"path({str(value)!r})"
    if isinstance(value, Mapping):
        names = [_canonical(name) for name in value]
        items = [_canonical(item) for item in value.values()]
        if None in names or None in items:
            return None
        return f"{{{','.join(sorted(f'{name}:{item}' for name, item in zip(names, items, strict=True)))}}}"
    if type(value) in (list, tuple, set, frozenset):
        parts = [_canonical(part) for part in value]  # type: ignore[attr-defined]
        if None in parts:
            return None
        texts = [str(part) for part in parts]
        return f"({','.join(texts)})" if type(value) in (list, tuple) else f"set({','.join(sorted(texts))})"
    return None

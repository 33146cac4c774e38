"""VARIANT values encoded in plain Python, whole or shredded; and Spark's own casts of some."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa

_CASTS = json.loads((Path(__file__).parent / "decoding" / "spark_variant_casts.json").read_text(encoding="utf-8"))
SPARK_TYPES: list[str] = _CASTS["types"]
#: Rows by Spark 4.3 in UTC: what stands in SQL, the encoded value, and ``try_variant_get(v, '$', type)`` as text.
SPARK_CASTS: list[dict[str, Any]] = _CASTS["rows"]


def names_of(value: Any) -> list[str]:
    """All names of fields in a value, sorted."""
    if isinstance(value, dict):
        return sorted({*value, *[name for part in value.values() for name in names_of(part)]})
    return sorted({name for part in value for name in names_of(part)}) if isinstance(value, list) else []


def metadata(names: list[str]) -> bytes:
    texts = [name.encode() for name in names]
    ends = [sum(map(len, texts[:at])) for at in range(len(texts) + 1)]
    return struct.pack(f"<BI{len(ends)}I", 1 | 3 << 6, len(texts), *ends) + b"".join(texts)


def encode(value: Any, names: list[str]) -> bytes:
    """None, bool, int, float, str, list and dict."""
    if isinstance(value, (list, dict)):
        parts = [encode(part, names) for part in (value.values() if isinstance(value, dict) else value)]
        ends = [sum(map(len, parts[:at])) for at in range(len(parts) + 1)]
        if isinstance(value, list):
            return struct.pack(f"<BB{len(ends)}I", 3 | 3 << 2, len(parts), *ends) + b"".join(parts)
        order = sorted(range(len(parts)), key=lambda at: list(value)[at])
        ids = bytes([names.index(list(value)[at]) for at in order])
        begins = [ends[at] for at in order] + ends[-1:]
        return (
            struct.pack("<BB", 2 | 3 << 2, len(parts)) + ids + struct.pack(f"<{len(ends)}I", *begins) + b"".join(parts)
        )
    if value is None or isinstance(value, bool):
        return bytes([0 if value is None else 4 if value else 8])
    if isinstance(value, int):
        return struct.pack("<Bq", 6 << 2, value)
    if isinstance(value, float):
        return struct.pack("<Bd", 7 << 2, value)
    return struct.pack("<BI", 16 << 2, len(value.encode())) + bytes(value.encode())


PLAIN = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
_PART = pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", pa.int64())])
SHREDDED = pa.struct([*PLAIN, pa.field("typed_value", pa.struct([pa.field("a", _PART, False)]))])


def plain(values: list[Any]) -> pa.Array:
    rows = [
        None if one is _MISSING else {"metadata": metadata(names_of(one)), "value": encode(one, names_of(one))}
        for one in values
    ]
    return pa.array(rows, PLAIN)


def shredded(values: list[Any]) -> pa.Array:
    """With a column for the field ``a`` of objects, where it is an integer."""
    rows: list[Any] = []
    for one in values:
        if one is _MISSING:
            rows.append(None)
            continue
        names = names_of(one)
        row: dict[str, Any] = {"metadata": metadata(names), "value": None, "typed_value": None}
        if isinstance(one, dict):
            part = one.get("a", _MISSING)
            is_whole = isinstance(part, int) and not isinstance(part, bool)
            other = None if part is _MISSING or is_whole else encode(part, names)
            row["typed_value"] = {"a": {"value": other, "typed_value": part if is_whole else None}}
            rest = {name: item for name, item in one.items() if name != "a"}
            row["value"] = encode(rest, names) if rest else None
        else:
            row["value"] = encode(one, names)
        rows.append(row)
    return pa.array(rows, SHREDDED)


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


_MISSING: Any = _Missing()
MISSING: Any = _MISSING  # a null VARIANT; None is the VARIANT null

"""Arguments of the command line as values: keys in the types of their columns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer

from asyncpq.errors import ColumnNotFoundError, InvalidOptionError

Keys = Annotated[
    list[str],
    typer.Option(
        "--key",
        help="A key column and its value, such as id=42. Again for the same column: one of several values; "
        "for other columns: values that belong together.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Names of columns, with commas between them. All without it.")
]


def parse_columns(text: str | None) -> list[str] | None:
    """Return the names in ``a,b.c``; None for None, which means all columns."""
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]


def parse_keys(texts: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    """Return the ``keys`` of a lookup for arguments ``name=value``, each value in the type of its column.

    A column that occurs several times has the list of its values. Times without a zone are UTC where the column has a
    zone; bytes are text, or hexadecimal after ``0x``.

    Raises:
        InvalidOptionError: an argument has no ``=``, or its value does not fit the column's type.
        ColumnNotFoundError: ``schema`` has no such column.
    """
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidOptionError(f"--key {text}: must be NAME=VALUE, such as id=42")
        values.setdefault(name, []).append(_value(text, value, _type(name, schema)))
    return {name: several if len(several) > 1 else several[0] for name, several in values.items()}


def _type(name: str, schema: pa.Schema) -> pa.DataType:
    """Return the type of a column, or of the leaf of struct columns that ``name`` is the dotted path of."""
    for field in schema:
        if field.name == name:
            return field.type
    for field in schema:
        if name.startswith(f"{field.name}.") and pa.types.is_struct(field.type):
            return _type(name[len(field.name) + 1 :], pa.schema(field.type))
    raise ColumnNotFoundError(f"no column {name!r}", column=name, hint=f"There are: {', '.join(schema.names[:20])}.")


def _value(argument: str, text: str, kind: pa.DataType) -> Any:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        if str(kind) == "extension<arrow.uuid>":
            return uuid.UUID(text)
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return text
        if "binary" in str(kind):  # of fixed width, large or a view, too
            return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
        if pa.types.is_floating(kind):
            # As the column has it: 0.1 of a float32 is not 0.1.
            return pa.scalar(float(text), kind).as_py()
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return _instant(text, kind)
        if pa.types.is_time(kind):  # Arrow casts no text to times of day
            return pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp("ns")).cast(kind)
        return pa.scalar(text).cast(kind)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidOptionError(f"--key {argument}: {text!r} is not a value of type {kind}") from error


def _instant(text: str, kind: pa.TimestampType) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:  # the text has no zone
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)

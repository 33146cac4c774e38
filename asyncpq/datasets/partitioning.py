"""Column values that paths hold: ``year=2024/month=3/`` (hive), or folders whose columns the caller names.

Segments are percent-encoded, and types inferred, as pyarrow.dataset has it: int32 if every value is one, else string.
A file's own name holds no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from asyncpq.errors import InvalidOptionError, PartitionError
from asyncpq.storage.urls import safe_url

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

_INT32 = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How paths hold values."""

    # the columns of the folders below the root, in their order; None for hive's ``key=value``
    names: tuple[str, ...] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)  # of columns, by name; those of others are inferred
    # types of the dataset's columns, by name. They count for columns that paths hold and ``types`` does not name
    column_types: Mapping[str, pa.DataType] = field(default_factory=dict)

    def type_of(self, name: str, texts: Iterable[str]) -> pa.DataType:
        """Return the type of a column that paths hold with these values."""
        return self.types.get(name) or self.column_types.get(name) or _inferred(texts)


class Partitions(NamedTuple):
    """The values that the paths of files hold."""

    schema: pa.Schema  # the columns, in the order in which they occur
    values: Sequence[Mapping[str, Any]]  # of each file, by column; as Python values that ``schema``'s types take
    errors: Mapping[int, PartitionError]  # of the files whose values cannot be read, by their numbers


def parse_partitioning(
    partitioning: object, types: object = None, schema: pa.Schema | None = None
) -> Partitioning | None:
    """Return the caller's partitioning; raise InvalidOptionError if it is none.

    Args:
        partitioning: "hive", the names of the columns of the folders, or None for no values in paths.
        types: a schema, or types by column.
        schema: the dataset's columns, if the caller named them.
    """
    known = _types(types)
    if partitioning is None:
        if known:
            raise InvalidOptionError("partition_types go with a partitioning")
        return None
    columns = {column.name: column.type for column in reversed(list(schema or ()))}  # of a name twice: the first
    if partitioning == "hive":
        return Partitioning(types=known, column_types=columns)
    if not isinstance(partitioning, (list, tuple)) or not all(isinstance(name, str) for name in partitioning):
        raise InvalidOptionError(f'partitioning={partitioning!r}: must be "hive", a list of names, or None')
    names = tuple(partitioning)
    if len(set(names)) != len(names) or "" in names:
        raise InvalidOptionError(f"partitioning={partitioning!r}: a name is empty, or occurs twice")
    unknown = sorted(set(known) - set(names))
    if unknown:
        raise InvalidOptionError(f"partition_types: {unknown[0]!r} is not among the partitioning's names")
    return Partitioning(names, known, columns)


def _types(types: object) -> dict[str, pa.DataType]:
    if types is None:
        return {}
    if isinstance(types, pa.Schema):
        if len(set(types.names)) != len(types.names):
            raise InvalidOptionError("partition_types: a name occurs twice")
        return {column.name: column.type for column in types}
    if isinstance(types, Mapping) and all(
        isinstance(name, str) and isinstance(kind, pa.DataType) for name, kind in types.items()
    ):
        return dict(types)
    raise InvalidOptionError("partition_types: must be a pyarrow.Schema, or pyarrow types by name")


def read_partitions(folders: Sequence[str], urls: Sequence[str], partitioning: Partitioning | None) -> Partitions:
    """Return the values that the paths of files hold.

    Args:
        folders: of each file, the folders between root and file, with slashes: ``"year=2024/month=3/"``.
        urls: of the files, for messages.
    """
    if partitioning is None:
        return Partitions(pa.schema([]), [{}] * len(folders), {})
    errors: dict[int, PartitionError] = {}
    texts = _texts(folders, urls, partitioning, errors)
    order: dict[str, None] = dict.fromkeys(partitioning.names or ())
    distinct: dict[str, dict[str, Any]] = {name: {} for name in order}
    for text in {id(text): text for text in texts}.values():  # files of one folder share theirs
        for name, value in text.items():
            seen = distinct.setdefault(name, {})
            if value is not None:
                seen.setdefault(value, None)
    fields = []
    for name, seen in distinct.items():
        kind = partitioning.type_of(name, seen)
        fields.append(pa.field(name, kind))
        _convert(seen, kind)
    for name, kind in partitioning.types.items():  # a column that no file has here
        if name not in distinct:
            fields.append(pa.field(name, kind))
    schema = pa.schema(fields)
    nothing = dict.fromkeys(schema.names)
    shared: dict[int, Mapping[str, Any]] = {}
    values: list[Mapping[str, Any]] = []
    for number, text in enumerate(texts):
        made = shared.get(id(text))
        if made is None:
            made = shared[id(text)] = nothing | {
                name: None if value is None else distinct[name][value] for name, value in text.items()
            }
        for name, value in text.items():
            if made[name] is _BAD and number not in errors:
                kind = schema.field(name).type
                errors[number] = PartitionError(
                    f"the partition value {value!r} in the file's path is no {kind}",
                    url=safe_url(urls[number]),
                    column=name,
                    hint="Give its type in partition_types.",
                )
        values.append(made)
    return Partitions(schema, values, errors)


_BAD = object()


def _texts(
    folders: Sequence[str], urls: Sequence[str], partitioning: Partitioning, errors: dict[int, PartitionError]
) -> list[Mapping[str, str | None]]:
    """Return the decoded text of each file by column, None for null; the same object for files of one folder."""
    known: dict[str, Mapping[str, str | None] | str] = {}
    texts: list[Mapping[str, str | None]] = []
    for number, folder in enumerate(folders):
        found = known.get(folder)
        if found is None:
            try:
                found = _segments(folder, partitioning.names)
            except ValueError as problem:
                found = str(problem)
            known[folder] = found
        if isinstance(found, str):
            errors[number] = PartitionError(found, url=safe_url(urls[number]))
            found = {}
        texts.append(found)
    return texts


def _segments(folder: str, names: tuple[str, ...] | None) -> dict[str, str | None]:
    """Return the texts by column; raise ValueError for a segment that is not UTF-8, or two with different values."""
    segments = [segment for segment in folder.split("/") if segment]
    if names is not None:
        return {name: _decoded(segment) for name, segment in zip(names, segments, strict=False)}
    found: dict[str, str | None] = {}
    for segment in segments:
        key, equals, text = segment.partition("=")
        if not equals:
            continue
        name, value = _decoded(key), _decoded(text)
        wanted = None if value == HIVE_NULL else value
        if found.setdefault(name, wanted) != wanted:
            raise ValueError(f"the file's path has two values of the partition column {name!r}: {segment!r}")
    return found


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the partition segment {text!r} in the file's path is not UTF-8") from None


def _inferred(texts: Iterable[str]) -> pa.DataType:
    texts = list(texts)
    whole = all(_INT32.fullmatch(text) and -(1 << 31) <= int(text[:32]) < 1 << 31 for text in texts)
    return pa.int32() if texts and whole else pa.string()


def _convert(texts: dict[str, Any], kind: pa.DataType) -> None:
    """Put the value in place of each None; ``_BAD`` for a text that has none."""
    plain = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    try:
        values = _parsed(list(texts), plain)
    except pa.ArrowInvalid:
        values = [_parsed_alone(text, plain) for text in texts]
    except pa.ArrowNotImplementedError:
        raise InvalidOptionError(
            f"no text in a path is a {kind}", hint="Give another type in partition_types or schema."
        ) from None
    texts.update(zip(texts, values, strict=True))


def _parsed(texts: list[str], kind: pa.DataType) -> list[Any]:
    values = pa.array(texts, pa.string())
    if isinstance(kind, pa.TimestampType):
        values = _timestamps(values, kind.unit)
        if kind.unit == "ns":  # finer than Python's: refused
            values = values.cast(pa.timestamp("us"))
        if kind.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit, kind.tz))
    else:
        values = values.cast(kind)
    plain: list[Any] = values.to_pylist()
    return plain


def _timestamps(texts: pa.Array, unit: str) -> pa.Array:
    """Return wall-clock times; of texts that name a zone in UTC, as pyarrow reads paths."""
    try:
        return texts.cast(pa.timestamp(unit))
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit))


def _parsed_alone(text: str, kind: pa.DataType) -> Any:
    try:
        return _parsed([text], kind)[0]
    except pa.ArrowInvalid:
        return _BAD

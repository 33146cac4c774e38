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
    """Return the caller's partitioning ("hive", names of the folders' columns, or None for no values in paths).

    ``types`` are a schema, or types by column; ``schema`` has the dataset's columns, if the caller named them. Raises
    InvalidOptionError.
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
    """Return the values that paths hold: of each file, ``folders`` has the folders between root and file, with slashes
    (``"year=2024/month=3/"``), and ``urls`` its url for messages.
    """
    if partitioning is None:
        return Partitions(pa.schema([]), [{}] * len(folders), {})
    texts: dict[str, Mapping[str, str | None]] = {}  # by folder and column; None for null
    problems: dict[str, Mapping[str, Any]] = {}  # by folder: arguments of PartitionError
    distinct: dict[str, dict[str, Any]] = {name: {} for name in partitioning.names or ()}
    for folder in dict.fromkeys(folders):
        try:
            texts[folder] = _segments(folder, partitioning.names)
        except ValueError as problem:
            problems[folder] = {"message": str(problem)}
            texts[folder] = {}
        for name, text in texts[folder].items():
            values = distinct.setdefault(name, {})
            if text is not None:
                values[text] = None
    fields = []
    for name, values in distinct.items():
        kind = partitioning.type_of(name, values)
        fields.append(pa.field(name, kind))
        _convert(values, kind)
    # columns that no file has here
    fields += [pa.field(name, kind) for name, kind in partitioning.types.items() if name not in distinct]
    schema = pa.schema(fields)
    nothing = dict.fromkeys(schema.names)
    of_folders: dict[str, Mapping[str, Any]] = {}
    for folder, columns in texts.items():
        own = {name: None if text is None else distinct[name][text] for name, text in columns.items()}
        of_folders[folder] = nothing | own
        bad = next((name for name, value in own.items() if value is _BAD), None)
        if bad is not None:
            problems[folder] = {
                "message": f"the partition value {columns[bad]!r} in the file's path is no {schema.field(bad).type}",
                "column": bad,
                "hint": "Give its type in partition_types.",
            }
    errors = {
        number: PartitionError(url=safe_url(urls[number]), **problems[folder])
        for number, folder in enumerate(folders)
        if folder in problems
    }
    return Partitions(schema, [of_folders[folder] for folder in folders], errors)


_BAD = object()


def _segments(folder: str, names: tuple[str, ...] | None) -> dict[str, str | None]:
    """Return the texts by column; raise ValueError for a segment that is not UTF-8, or two with different values."""
    segments = [segment for segment in folder.split("/") if segment]
    if names is not None:
        return {name: _decoded(segment) for name, segment in zip(names, segments, strict=False)}
    texts: dict[str, str | None] = {}
    for segment in segments:
        key, equals, encoded = segment.partition("=")
        if not equals:
            continue
        name, value = _decoded(key), _decoded(encoded)
        text = None if value == HIVE_NULL else value
        if texts.setdefault(name, text) != text:
            raise ValueError(f"the file's path has two values of the partition column {name!r}: {segment!r}")
    return texts


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
        texts.update(zip(texts, _parsed(list(texts), plain), strict=True))
    except pa.ArrowInvalid:
        for text in texts:
            try:
                (texts[text],) = _parsed([text], plain)
            except pa.ArrowInvalid:
                texts[text] = _BAD
    except pa.ArrowNotImplementedError:
        raise InvalidOptionError(
            f"no text in a path is a {kind}", hint="Give another type in partition_types or schema."
        ) from None


def _parsed(texts: list[str], kind: pa.DataType) -> list[Any]:
    values = pa.array(texts, pa.string())
    if not isinstance(kind, pa.TimestampType):
        plain: list[Any] = values.cast(kind).to_pylist()
        return plain
    try:
        values = values.cast(pa.timestamp(kind.unit))  # wall-clock times
    except pa.ArrowInvalid:  # texts that name a zone are in UTC, as pyarrow reads paths
        values = values.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
    unit = "us" if kind.unit == "ns" else kind.unit  # finer than Python's: refused
    return list(values.cast(pa.timestamp(unit)).cast(pa.timestamp(unit, kind.tz)).to_pylist())

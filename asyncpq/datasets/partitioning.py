"""Column values in paths: ``year=2024/month=3/`` (hive), or folders whose columns the caller names.

The names of folders are percent-decoded and types inferred: int32 if every value fits, as in pyarrow.dataset; else
int64 if every value fits, as in Polars and DuckDB; else string. The file's own name gives no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from asyncpq.decoding.arrow import plain_array
from asyncpq.errors import InvalidOptionError, PartitionError, ResourceLimitError, shown
from asyncpq.expressions.scalars import exact_decimal
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url, split_url

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

_MAX_COLUMNS = 256  # of partitions; each file has a value of each. A key of S3 has no room for more
_INTEGER = re.compile(r"-?[0-9]+")
_ZONE = re.compile(r":\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)$")  # at the end of a time
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The rule by which the folders in a file's path give values of partition columns.

    Attributes:
        names: the columns of the folders below the root, in their order; None for hive's ``key=value``.
        types: types of partition columns, by name.
        column_types: types of the dataset's columns, by name: used for partition columns that are not in ``types``.
            Others are inferred.
        ignore_case: hive's names that differ only in case are one column, as in Hive and Spark, and have the name in
            ``types`` or of the first path.
    """

    names: tuple[str, ...] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    column_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    ignore_case: bool = False

    def type_of(self, name: str, texts: Iterable[str]) -> pa.DataType:
        """Return the type of the partition column ``name``. If no option gives it, it is inferred from ``texts``,
        the column's values in the paths."""
        return self.types.get(name) or self.column_types.get(name) or _inferred(texts)


def described_partitioning(
    dataset: Mapping[str, Any], schema: pa.Schema, partitions: Sequence[str]
) -> Partitioning | None:
    """Return how the paths of indexed files contain values of the columns ``partitions``, as an index describes its
    ``dataset``; None if they do not contain any."""
    names = dataset.get("partitioning")
    if names is None:
        return None
    types = {name: schema.field(name).type for name in partitions}
    return Partitioning(None if names == "hive" else tuple(names), types)


class Partitions(NamedTuple):
    """The partition values in the paths of several files."""

    schema: pa.Schema  # the partition columns, in the order in which they occur
    values: Sequence[Mapping[str, Any]]  # for each file its values by column name, as Python values for ``schema``
    errors: Mapping[int, PartitionError]  # errors of files with invalid values, by the file's position


def parse_partitioning(
    partitioning: object, types: object = None, schema: pa.Schema | None = None
) -> Partitioning | None:
    """Parse the option ``partitioning`` of a dataset: "hive", a list of the folders' column names, or None (paths have
    no values, and the result is None). A door may pass a Partitioning without types.

    ``types`` is a schema, or a mapping from column names to types; ``schema`` has the dataset's columns, if the caller
    passed one. Raises InvalidOptionError for an invalid option.
    """
    known = _types(types)
    if partitioning is None:
        if known:
            raise InvalidOptionError(
                'partition_types= requires partitioning="hive" or a list of names, but partitioning is None',
                option="partition_types",
            )
        return None
    columns = {column.name: column.type for column in reversed(list(schema or ()))}  # the first of equal names counts
    if isinstance(partitioning, Partitioning):
        return replace(partitioning, types=known, column_types=columns)
    if partitioning == "hive":
        return Partitioning(types=known, column_types=columns)
    if not isinstance(partitioning, (list, tuple)) or not all(isinstance(name, str) for name in partitioning):
        raise InvalidOptionError(
            f'partitioning={partitioning!r}: must be "hive", a list of names, or None', option="partitioning"
        )
    names = tuple(partitioning)
    if "" in names:
        raise InvalidOptionError(f"partitioning={partitioning!r} has an empty name", option="partitioning")
    if (twice := _doubled(names)) is not None:
        raise InvalidOptionError(f"partitioning={partitioning!r} has the name {twice!r} twice", option="partitioning")
    unknown = sorted(set(known) - set(names))
    if unknown:
        raise InvalidOptionError(f"partition_types names {unknown[0]!r}, which is not a column of partitioning={names}")
    return Partitioning(names, known, columns)


def _doubled(names: Sequence[str]) -> str | None:
    """Return the first name that occurs a second time; None if all differ."""
    return next((name for at, name in enumerate(names) if name in names[:at]), None)


def _types(types: object) -> dict[str, pa.DataType]:
    if types is None:
        return {}
    if isinstance(types, pa.Schema):
        if (twice := _doubled(types.names)) is not None:
            raise InvalidOptionError(f"partition_types is a schema in which the column {twice!r} occurs twice")
        return {column.name: column.type for column in types}
    if isinstance(types, Mapping) and all(
        isinstance(name, str) and isinstance(kind, pa.DataType) for name, kind in types.items()
    ):
        return dict(types)
    raise InvalidOptionError("partition_types must be a pyarrow.Schema, or a mapping of column names to pyarrow types")


def read_partitions(folders: Sequence[str], urls: Sequence[str], partitioning: Partitioning | None) -> Partitions:
    """Return the partition values of files. ``folders`` has, for each file, the part of its path between the
    dataset's folder and its name (``"year=2024/month=3/"``); ``urls`` has the files' urls, for messages."""
    if partitioning is None:
        return Partitions(pa.schema([]), [{}] * len(folders), {})
    schema, values, problems = _of_folders(dict.fromkeys(folders), partitioning)
    nothing = dict.fromkeys(schema.names)
    of_folders: dict[str, Mapping[str, Any]] = {folder: {**nothing, **own} for folder, own in values.items()}
    errors = {
        number: PartitionError(url=safe_url(urls[number]), **problems[folder])
        for number, folder in enumerate(folders)
        if folder in problems
    }
    return Partitions(schema, [of_folders[folder] for folder in folders], errors)


def values_of_folders(folders: Sequence[str], root: str, partitioning: Partitioning) -> list[Mapping[str, Any]]:
    """Return, for each folder, the values that its own path gives to the columns of ``partitioning.types``; none if
    one of them is invalid. ``folders`` are urls; ``root`` as in :func:`folders_of`."""
    paths = [folders_of(folder, root) for folder in folders]
    _, values, problems = _of_folders(dict.fromkeys(paths), partitioning)
    types = partitioning.types
    return [
        {} if path in problems else {name: value for name, value in values[path].items() if name in types}
        for path in paths
    ]


def folders_of(url: str, root: str) -> str:
    """Return the folders in a file's path: the part between ``root``, or the bucket if ``root`` is empty, and the
    file's name."""
    path = url[len(root) :] if root else split_url(url)[1]
    return path[: path.rfind("/") + 1]


def _of_folders(
    folders: Iterable[str], partitioning: Partitioning
) -> tuple[pa.Schema, dict[str, Mapping[str, Any]], dict[str, Mapping[str, Any]]]:
    """Return the partition columns of distinct folders, and by folder the values in its path, and arguments of
    PartitionError if one of them is invalid."""
    texts: dict[str, Mapping[str, str | None]] = {}  # by folder and column; None for null
    problems: dict[str, Mapping[str, Any]] = {}
    distinct: dict[str, dict[str, Any]] = {name: {} for name in partitioning.names or ()}
    spellings = {name.lower(): name for name in partitioning.types} if partitioning.ignore_case else None
    for folder in folders:
        try:
            texts[folder] = _segments(folder, partitioning.names, spellings)
        except ValueError as problem:
            problems[folder] = {"message": str(problem)}
            texts[folder] = {}
        for name, text in texts[folder].items():
            values = distinct.setdefault(name, {})
            if text is not None:
                values[text] = None
    if len(distinct) > _MAX_COLUMNS:
        raise ResourceLimitError(
            f"the files' paths have more than {_MAX_COLUMNS} partition columns, such as {shown(next(iter(distinct)))}",
            hint="Pass partitioning=None, to read the files without the values in their paths.",
        )
    fields = []
    for name, values in distinct.items():
        kind = partitioning.type_of(name, values)
        fields.append(pa.field(name, kind))
        _convert(values, kind)
    # columns without a value in any of these paths
    fields += [pa.field(name, kind) for name, kind in partitioning.types.items() if name not in distinct]
    schema = pa.schema(fields)
    of_folders: dict[str, Mapping[str, Any]] = {}
    for folder, columns in texts.items():
        own = {name: None if text is None else distinct[name][text] for name, text in columns.items()}
        of_folders[folder] = own
        bad = next((name for name, value in own.items() if value is _BAD), None)
        if bad is not None:
            value, kind = shown(str(columns[bad])), schema.field(bad).type
            zoned = pa.types.is_timestamp(kind) and _ZONE.search(str(columns[bad]))
            fitting = "pyarrow.timestamp('us', 'UTC') for times with a zone" if zoned else "pyarrow.string()"
            problems[folder] = {
                "message": f"the value {value} in the file's path is not a valid {kind}",
                "column": bad,
                "hint": f"Pass the column's type in partition_types, such as {fitting}.",
            }
    return schema, of_folders, problems


_BAD = object()
#: What a text that is not a value of its type raises: pyarrow's error is a ValueError, and Python's dates end in 9999.
_NO_VALUE = (ValueError, ArithmeticError)


def _segments(folder: str, names: tuple[str, ...] | None, spellings: dict[str, str] | None) -> dict[str, str | None]:
    """Return the texts of the values in the path ``folder``, by column name; None for null. ``names``: columns of
    the folders, None for hive's ``key=value``. ``spellings``: columns by their names in lower case, to which new ones
    are added; None if names that differ in case are different columns. Raises ValueError for a folder that is not
    UTF-8, or for two values of one column."""
    segments = [segment for segment in folder.split("/") if segment]
    if names is not None:
        return {name: _decoded(segment) for name, segment in zip(names, segments, strict=False)}
    texts: dict[str, str | None] = {}
    for segment in segments:
        key, equals, encoded = segment.partition("=")
        if not equals:
            continue
        name, value = _decoded(key), _decoded(encoded)
        if spellings is not None:
            name = spellings.setdefault(name.lower(), name)
        text = None if value == HIVE_NULL else value
        if texts.setdefault(name, text) != text:
            raise ValueError(f"the file's path has two values of the partition column {name!r}: {segment!r}")
    return texts


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the folder {text!r} in the file's path is not UTF-8") from None


def _inferred(texts: Iterable[str]) -> pa.DataType:
    texts = list(texts)
    if not texts or not all(_INTEGER.fullmatch(text) for text in texts):
        return pa.string()
    numbers = [int(text[:32]) for text in texts]
    low, high = min(numbers), max(numbers)
    for bits, kind in ((31, pa.int32()), (63, pa.int64())):
        if -(1 << bits) <= low and high < 1 << bits:
            return kind
    return pa.string()


def _convert(texts: dict[str, Any], kind: pa.DataType) -> None:
    """Replace each value of ``texts``, whose keys are texts, by its key parsed as type ``kind``; by ``_BAD`` if the
    text is not a value of that type."""
    plain = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    try:
        texts.update(zip(texts, _parsed(list(texts), plain), strict=True))
    except _NO_VALUE:
        for text in texts:
            try:
                (texts[text],) = _parsed([text], plain)
            except _NO_VALUE:
                texts[text] = _BAD
    except pa.ArrowNotImplementedError:
        raise InvalidOptionError(
            f"values of type {kind} cannot be parsed from paths", hint="Set another type in partition_types or schema."
        ) from None


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    """Parse a decimal as pyarrow does, which crashes for some texts: see :func:`exact_decimal`."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(text)
    return exact_decimal(Decimal(text), kind.precision, kind.scale)


def _parsed(texts: list[str], kind: pa.DataType) -> list[Any]:
    if pa.types.is_decimal(kind):
        return [_decimal(text, kind) for text in texts]
    values = plain_array(texts, pa.string())
    if not isinstance(kind, pa.TimestampType):
        plain: list[Any] = values.cast(kind).to_pylist()
        return plain
    try:
        values = values.cast(pa.timestamp(kind.unit))  # wall-clock times
    except pa.ArrowInvalid:
        if kind.tz is None:  # pyarrow.dataset shifts a text with a zone to UTC: another time than the path names
            raise
        values = values.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
    unit = "us" if kind.unit == "ns" else kind.unit  # finer than Python's: refused
    return list(values.cast(pa.timestamp(unit)).cast(pa.timestamp(unit, kind.tz)).to_pylist())

"""Options of ``spark.read.format("asyncpq")`` and ``spark.readStream``, and the plans that both make from the options.

Option values are text; option names are case-insensitive.
"""

from __future__ import annotations

import base64
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructField, StructType

from asyncpq import Expression
from asyncpq.engine.foreign_conditions import ForeignCondition
from asyncpq.errors import ColumnNotFoundError, ExpressionError, InvalidOptionError, SchemaMismatchError, nearest
from asyncpq.spark.reads.opened_lake import LakeTarget, OpenLake, open_lake
from asyncpq.spark.settings import SETTING_NAMES, SparkSettings, camel_case, flag_option
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.read_conf import READ_FIELDS, ReadConf, RebaseMode, merged_schema, nullable, unquoted

if TYPE_CHECKING:
    from asyncpq import Session
    from asyncpq.spark.reads.lake_scan import LakePlan, LakeScan

View = Literal["snapshot", "listed", "table"]
Format = Literal["delta", "iceberg", "parquet"]
BadFile = Literal["raise", "skip"]

_NAMES: Final = (
    "path", "paths", "columns", "predicate", "where", "index", "view", "format", "version", "onBadFile",
    "pushdown", "maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge",
)  # fmt: skip
_STREAM: Final = _NAMES[-3:]
_CHOICES: Final = {
    "datetime_rebase_mode": get_args(RebaseMode),
    "int96_rebase_mode": get_args(RebaseMode),
    "timestamp_type": ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"),
}
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WEEK_S: Final = 7 * 86400.0

#: Parsers of types that JSON lacks, as the option ``predicate`` encodes values: ``{"date": "2024-05-01"}``.
_TYPED: Final[Mapping[str, Callable[[str], object]]] = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "decimal": Decimal,
    "float": float,
    "bytes": lambda text: base64.b64decode(text, validate=True),
}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of one ``load()``, described in docs/spark-reading.md and docs/spark-cluster.md."""

    lake: LakeTarget
    columns: tuple[str, ...] | None = None  # names of the columns to read, in order; None for all
    where: Expression | str | None = None  # an expression or a condition in SQL, by which rows may be left out
    pushdown: bool = False  # prune by the query's filters
    max_files: int | None = None  # of a batch of a stream
    max_bytes: int | None = None
    max_file_age_s: float = _WEEK_S  # seconds by which a new file may be older than the newest file
    conf: ReadConf = field(default_factory=ReadConf)  # settings of Spark; the source does not see the session's
    settings: SparkSettings = field(default_factory=SparkSettings)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
        """Parse the options of a read, or of a stream if ``streaming``. Raises InvalidOptionError for an unknown option
        or an invalid value, ExpressionError for an invalid predicate."""
        given = _own({name.lower(): value for name, value in options.items()})
        settings = SparkSettings.from_options(given)
        _refuse_unknown(given, streaming=streaming)
        max_files, max_bytes = _positive(given, "maxFilesPerTrigger"), _positive(given, "maxBytesPerTrigger")
        if max_files is not None and max_bytes is not None:
            raise InvalidOptionError("the options maxFilesPerTrigger and maxBytesPerTrigger exclude each other")
        age = given.get("maxfileage")
        return cls(
            lake=LakeTarget(
                target=_target(given),
                index=_index(given),
                view=cast(View | None, _one_of(given, "view", get_args(View))),
                format=cast(Format | None, _one_of(given, "format", get_args(Format))),
                version=_version(given),
                on_bad_file=cast(BadFile, _one_of(given, "onBadFile", get_args(BadFile)) or "raise"),
            ),
            columns=_columns(given["columns"]) if "columns" in given else None,
            where=_where(given),
            pushdown=flag_option(given, "pushdown"),
            max_files=max_files,
            max_bytes=max_bytes,
            max_file_age_s=_WEEK_S if age is None else _seconds("maxFileAge", age),
            conf=_conf(given),
            settings=settings,
        )


def predicate_option(where: object) -> str:
    """Return a filter list like pyarrow's ``filters=`` as text, for the option ``predicate`` of the format "asyncpq".

    Raises:
        ExpressionError: ``where`` is not a filter list.
    """
    if isinstance(where, Expression):
        raise ExpressionError(
            "the option predicate takes a filter list, not an expression",
            hint='Write [("id", "=", 17)], or pass the expression to asyncpq.spark.scan(where=...).',
        )
    ForeignCondition(where)  # raises if it is not
    return json.dumps(where, default=_encoded)


def _encoded(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return list(value)
    for name, type_ in (("timestamp", datetime), ("date", date), ("time", time)):
        if isinstance(value, type_):
            return {name: value.isoformat()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    raise ExpressionError(
        f"the option predicate does not support values of the type {type(value).__name__}",
        hint=f"Supported are str, int, bool, None and {', '.join(_TYPED)}.",
    )


def _decoded(value: dict[str, Any]) -> object:
    if len(value) != 1 or (kind := next(iter(value))) not in _TYPED:
        raise InvalidOptionError(
            f"the JSON object {json.dumps(value)} in the option predicate is not a value of a supported type",
            hint=f'Write {{"date": "2024-05-01"}}, with one of the types {", ".join(_TYPED)}.',
        )
    text = value[kind]
    try:
        return _TYPED[kind](text)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidOptionError(f"the value {text!r} in the option predicate is not a valid {kind}") from error


# -- each option ----------------------------------------------------------------------------------


def _own(given: dict[str, str]) -> dict[str, str]:
    """Return the options without those that Spark's catalog adds when a table is read: the table's owner, and a copy
    of each option with the prefix ``option.``."""
    if "provider" not in given:
        return given
    own = {name.removeprefix("option."): value for name, value in given.items() if name.startswith("option.")}
    return own | {name: given[name] for name in ("path", "paths") if name in given}


def _refuse_unknown(given: Mapping[str, str], *, streaming: bool) -> None:
    known = {name.lower(): name for name in _NAMES}
    known |= {name.replace("_", ""): name for name in (*SETTING_NAMES, *[item.name for item in READ_FIELDS])}
    for name in given:
        if name not in known:
            names = sorted(map(camel_case, known.values()))
            hint = nearest(name, names, f"Known: {', '.join(names)}.")
            if name == "recursivefilelookup":
                hint = "Leave it out: a folder is read with all that is below it."
            raise InvalidOptionError(f"there is no option {name!r}", hint=hint)
        if known[name] in _STREAM and not streaming:
            raise InvalidOptionError(f"the option {known[name]} applies only to streams", hint="Use spark.readStream.")


def _target(given: Mapping[str, str]) -> str | list[str]:
    """Return the url of ``load(a)``, or the list of urls of ``load([a, b])``, which Spark passes in the option
    ``paths``."""
    if "paths" in given:
        paths = _json("paths", given["paths"])
        if "path" in given or not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
            raise InvalidOptionError("the option paths must be a JSON list of urls, and path must not be set")
        if not paths:
            raise InvalidOptionError("the option paths is an empty list, expected at least one url")
        return paths[0] if len(paths) == 1 else paths
    if not given.get("path"):
        raise InvalidOptionError(
            "the path is missing",
            hint="Use .load(url). Spark loses the options of tables: SELECT ... FROM t WITH (path='...').",
        )
    return given["path"]


def _columns(text: str) -> tuple[str, ...]:
    """Parse a JSON list, or names separated by commas."""
    names = _json("columns", text) if text.lstrip().startswith("[") else [name.strip() for name in text.split(",")]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidOptionError(
            f"the option columns is {text!r}, expected names separated by commas, or a JSON list of names"
        )
    return tuple(names)


def _where(given: Mapping[str, str]) -> Expression | str | None:
    if "predicate" in given and "where" in given:
        raise InvalidOptionError("the options predicate and where exclude each other: set only one of them")
    if "where" in given:
        return given["where"]
    if "predicate" not in given:
        return None
    return ForeignCondition(_json("predicate", given["predicate"], _decoded)).expression


def _index(given: Mapping[str, str]) -> str | Literal[False] | None:
    text = given.get("index")
    if text == "":
        raise InvalidOptionError("the option index is empty, expected a url or false")
    return False if text is not None and text.lower() == "false" else text


def _version(given: Mapping[str, str]) -> int | str | datetime | None:
    """Return a number or id, a time, or the name of a branch or tag."""
    text = given.get("version")
    if text is None or re.fullmatch(r"[0-9]{1,19}", text):
        return None if text is None else int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str | None:
    value = given.get(name.lower())
    spellings = {choice.lower(): choice for choice in known}
    if value is None or value.lower() in spellings:
        return None if value is None else spellings[value.lower()]
    raise InvalidOptionError(f"the option {name} is {value!r}, but must be one of {', '.join(known)}")


def _conf(given: Mapping[str, str]) -> ReadConf:
    values: dict[str, Any] = {}
    for setting in READ_FIELDS:
        name = setting.name.replace("_", "")
        if name not in given:
            continue
        if isinstance(setting.default, bool):
            values[setting.name] = flag_option(given, name)
        elif setting.name in _CHOICES:
            values[setting.name] = _one_of(given, name, _CHOICES[setting.name])
        else:
            values[setting.name] = given[name]
    return ReadConf(**values)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise InvalidOptionError(f"the option {name} is {text!r}, but must be a whole number of at least 1")
    return int(text)


def _seconds(name: str, text: str) -> float:
    """Parse a duration such as ``"7d"`` or ``"90m"`` to seconds; a number without a unit is in milliseconds."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", text.lower())
    if match is None or (match[2] or "ms") not in _UNITS:
        raise InvalidOptionError(
            f"the option {name} is {text!r}, but must be a number and a unit, such as 7d",
            hint="The units are ms, s, m, h and d.",
        )
    return int(match[1]) * _UNITS[match[2] or "ms"]


def _json(name: str, text: str, hook: Callable[[dict[str, Any]], object] | None = None) -> Any:
    try:
        return json.loads(text, object_hook=hook)
    except ValueError as error:
        if isinstance(error, InvalidOptionError):
            raise
        hint = "predicate_option() returns such JSON. Use the option where for SQL." if name == "predicate" else None
        raise InvalidOptionError(f"{name}: must be JSON: {error}", option=name, hint=hint) from error


#: Assumed number of tasks that run at once, which the source cannot query. Splits keep their minimum size.
PARALLELISM: Final = 32


class SplitPartition(InputPartition):
    """A split as Spark passes it to a task. In a stream, ``lake`` is what the splits of a batch share: each batch is
    planned after the reader was pickled. In a batch query it is None."""

    def __init__(self, split: bytes, lake: LakeScan | None = None) -> None:
        super().__init__(None)
        self.split: bytes = split
        self.lake: LakeScan | None = lake

    def __repr__(self) -> str:
        return f"SplitPartition({len(self.split)} bytes)"


async def inferred_schema(session: Session, options: SourceOptions) -> StructType:
    """Infer the columns to read, as Spark does. Raises ColumnNotFoundError if an option names an unknown column."""
    opened = await open_lake(session, options.lake, options.conf)
    _check_where(opened, options)
    if options.columns is None:
        return opened.struct
    fields_read: list[StructField] = []
    for name in options.columns:
        places = opened.columns([name]) or opened.columns([unquoted(name)])
        top, *parts = [name] if places else name.split(".")
        places = places or opened.columns([top])
        found = None if not places else _narrowed(opened.struct.fields[places[0]], parts, options.conf)
        if found is None:
            raise opened.missing(name)
        known = next((at for at, field in enumerate(fields_read) if field.name == found.name), None)
        if known is None:
            fields_read.append(found)
        else:  # two fields of one struct
            merged = merged_schema([StructType([fields_read[known]]), StructType([found])], options.conf)
            fields_read[known] = merged.fields[0]
    return StructType(fields_read)


def _narrowed(field: StructField, parts: Sequence[str], conf: ReadConf) -> StructField | None:
    """Return the column with only the field inside it that the path ``parts`` names; None if there is no such field."""
    if not parts:
        return field
    dtype = field.dataType
    place = conf.find(dtype.names, parts[0]) if isinstance(dtype, StructType) else None
    inner = None if place is None else _narrowed(dtype.fields[place], parts[1:], conf)  # type: ignore[attr-defined]
    return None if inner is None else StructField(field.name, StructType([inner]), field.nullable, field.metadata)


async def open_for_schema(session: Session, options: SourceOptions, schema: StructType) -> OpenLake:
    """Open the dataset with the types that it has; if ``schema``, the caller's columns, has other types, with those."""
    opened = await open_lake(session, options.lake, options.conf)
    have = [opened.struct.fields[place] for place in opened.columns(schema.names)]
    if [(field.name, nullable(field.dataType)) for field in have] == [
        (field.name, nullable(field.dataType)) for field in schema.fields
    ]:
        return opened
    return await open_lake(session, replace(options.lake, schema=schema), options.conf)


async def plan_source(
    opened: OpenLake, options: SourceOptions, schema: StructType, pushed: Expression | None = None
) -> LakePlan:
    """Plan a read of the columns of ``schema``, in their order. ``pushed``: condition from the filters that Spark
    pushed."""
    from asyncpq.spark.reads.lake_scan import needs_jvm_zone, plan_lake

    _check_where(opened, options)
    plan = await plan_lake(
        opened,
        settings=options.settings,
        columns=[field.name for field in schema.fields],
        where=_terms(opened, options, pushed),
        parallelism=PARALLELISM,
    )
    if needs_jvm_zone(plan) and options.conf.jvm_time_zone is None:
        raise InvalidOptionError(
            "files have timestamps in an old calendar, which depend on the time zone of Spark's JVM, which is not set",
            url=opened.state.url,
            hint="Set the option jvmTimeZone, such as Europe/Berlin.",
        )
    return plan


def _check_where(opened: OpenLake, options: SourceOptions) -> None:
    if options.where is None:
        return
    from asyncpq.spark.reads.conditions import Condition

    for name in Condition(options.where).unknown_names(opened.struct, options.conf):
        raise ColumnNotFoundError(
            "the condition of the option where or predicate contains a column that does not exist",
            url=opened.state.url,
            column=name,
            hint="Correct the name. If the query has .schema(...), the condition may only use columns of that schema.",
        )


def _terms(opened: OpenLake, options: SourceOptions, pushed: Expression | None) -> Expression | None:
    """Return the predicate for pruning by the condition in the options and the filters that Spark pushed, with
    Spark's semantics. None if no data can be excluded."""
    if options.where is None and pushed is None:
        return None
    from asyncpq.spark.reads.conditions import Condition, fixed_instants

    conditions = [] if options.where is None else [Condition(options.where)]
    if pushed is not None:
        conditions.append(Condition(pushed, by_fields=True))
    conf = options.conf
    terms = [
        condition.terms(opened.struct, opened.schema, conf, fixed_instants(condition.times(), conf))
        for condition in conditions
    ]
    known = [term for term in terms if term is not None]
    return reduce(operator.and_, known) if known else None


def check_schema(schema: StructType) -> None:
    """Raise an AsyncpqError if PySpark does not support a column's type, or if a part of a column is not nullable."""
    arrow_schema(schema)  # PySpark's own error names no column
    for column in schema.fields:
        if nullable(column.dataType) != column.dataType:
            raise InvalidOptionError(
                "the schema declares elements, map values or struct fields of the column as not nullable, which"
                " asyncpq cannot guarantee for the files",
                column=column.name,
                hint="Declare these parts nullable, as spark.read.parquet does.",
            )


def with_nullability(batches: Iterable[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the nullability of ``schema``, which Spark requires. Raises SchemaMismatchError if a
    column that ``schema`` declares NOT NULL contains a null."""
    target = arrow_schema(schema)
    for batch in batches:
        for asked, values in zip(target, batch.columns, strict=True):
            if not asked.nullable and values.null_count:
                raise SchemaMismatchError(
                    "the schema declares the column NOT NULL, but a file contains a null",
                    column=asked.name,
                    hint="Declare it nullable in .schema(...).",
                )
        yield pa.RecordBatch.from_arrays(batch.columns, schema=target)

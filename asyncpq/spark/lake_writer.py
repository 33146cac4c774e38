"""``df.write.format("asyncpq")``: tasks write files, and one commit to the lake's index makes them visible.

Spark plans a write, runs its tasks and commits it in separate processes, with the :class:`LakeWrite` of
``asyncpq.distributed``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from asyncpq import BloomFilter, Session, SortedBy, WriteOptions, errors
from asyncpq.distributed import LakeWrite, WrittenPart, run_on_worker
from asyncpq.distributed import plan_write as plan_lake_write
from asyncpq.engine.target_facts import absolute_target, safe_url
from asyncpq.errors import InvalidOptionError, SchemaMismatchError
from asyncpq.indexing import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
from asyncpq.spark.settings import (
    SETTING_NAMES,
    SparkSettings,
    camel_case,
    flag_option,
    option_spelling,
    refuse_secrets,
    with_three_slashes,
)
from asyncpq.spark.types.conversion import arrow_schema, from_spark
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.spark.types.special_types import struct_of

logger: logging.Logger = logging.getLogger(__name__)

_LISTS: Final = ("bloom_filters", "sorted_by", "dictionary_columns")
OPTION_NAMES: Final = tuple(camel_case(option.name) for option in fields(WriteOptions))
_KINDS: Final[Mapping[str, type[IndexKind]]] = {
    kind.name: kind for kind in (Bloom, Bounds, Footers, Keys, NGrams, Pages, Text, ValueSet)
}
#: Options of a write, apart from the settings.
WRITE_NAMES: Final = ("path", "publish", "indexKinds", "caseSensitive", "txnAppId", "txnVersion", *OPTION_NAMES)


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that one attempt of a Spark task wrote, as its message to the commit."""

    part: WrittenPart


@dataclass(frozen=True, kw_only=True)
class FrameWrite(LakeWrite):
    """The plan of one write of a DataFrame's rows."""

    struct: StructType  # columns of the files, in the lake's order and spelling
    # the position of each among the columns that are written; None: nulls; None for all: the same columns
    order: tuple[int | None, ...] | None = None
    conf: ReadConf
    settings: SparkSettings

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> WrittenPart:
        """Write the rows of a task, in Spark's types, to new files; return these."""
        columns = from_spark(self.struct, self.conf)
        if self.order is not None:
            batches = (arranged(batch, self.order, arrow_schema(self.struct)) for batch in batches)
        context = TaskContext.get()
        partition, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        return self.write(map(columns.convert, batches), partition, str(attempt))

    def give_up(self) -> None:
        """Delete the files of this write that were not committed. Errors are logged and not raised."""
        try:
            run_on_worker(self.settings, self.discard)
        except errors.AsyncpqError as error:  # of the credentials; the caller raises the error that came first
            logger.warning("unused files could not be deleted below %s: %s", safe_url(self.folder), error)


def plan_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> FrameWrite:
    """Plan one ``save()`` of rows with this schema. With ``overwrite``, readers no longer see the lake's older files
    after its commit.

    Raises:
        InvalidOptionError: an option is invalid, or the folder has files that asyncpq did not write.
        SchemaMismatchError: the columns do not match those of the lake to which rows are appended.
        UnsupportedFeatureError, AmbiguousColumnError: asyncpq cannot write a column.
        StoreError: the store failed.
    """
    given = {name.lower(): value for name, value in options.items()}
    settings = SparkSettings.from_options(options)
    known = [*WRITE_NAMES, *map(camel_case, SETTING_NAMES)]
    unknown = sorted(given.keys() - set(map(str.lower, known)))
    if unknown:
        hint = errors.nearest(unknown[0], known, f"Options of a write are {', '.join(WRITE_NAMES)}.")
        raise errors.InvalidOptionError(f"the format asyncpq has no write option {unknown[0]!r}", hint=hint)
    if not given.get("path"):
        raise errors.InvalidOptionError(
            "the option path is missing: save() names no folder",
            hint="Use save('s3://bucket/lake/'). Spark loses the location and the options of tables: INSERT INTO t and"
            " insertInto do not reach them.",
        )
    folder = lake_folder("the folder", with_three_slashes(given["path"]))
    publish = given.get("publish", "index").lower()
    if publish not in ("index", "plain"):
        raise errors.InvalidOptionError(f"publish={given['publish']!r}: must be 'index' or 'plain'", option="publish")
    batch = _batch_of(given, publish)
    conf = ReadConf(case_sensitive=flag_option(given, "caseSensitive"))
    written = parse_write_options(options)
    kinds = None if "indexkinds" not in given else _kinds(json_list("indexKinds", given["indexkinds"]))
    from_spark(schema, conf)  # raises if a type cannot be written
    struct, order = schema, None

    def fit(lake: pa.Schema | None) -> pa.Schema:
        nonlocal struct, order
        if lake is not None:
            struct, order = fitted(schema, lake, conf, folder)
        return from_spark(struct, conf).schema

    async def plan(session: Session) -> LakeWrite:
        return await plan_lake_write(
            session,
            folder,
            fit,
            options=written,
            index_kinds=kinds,
            overwrite=overwrite,
            publish="plain" if publish == "plain" else "index",
            batch=batch,
            worker=settings,
        )

    with option_spelling(["index_kinds", *[option.name for option in fields(WriteOptions)]]):
        made = run_on_worker(settings, plan)
    return FrameWrite(**vars(made) | {"struct": struct, "order": order, "conf": conf})


def _batch_of(given: Mapping[str, str], publish: str) -> tuple[str, int] | None:
    """Return the batch that the options ``txnAppId`` and ``txnVersion`` identify; None without these options."""
    application, version = given.get("txnappid"), given.get("txnversion")
    if application is None and version is None:
        return None
    if not application or version is None or not re.fullmatch(r"-?\d+", version):
        raise errors.InvalidOptionError(
            f"txnAppId={application!r}, txnVersion={version!r}: must be a text and a whole number",
            hint="In foreachBatch, pass a name of the query, and the number of the batch.",
        )
    if publish == "plain":
        raise errors.InvalidOptionError(
            "txnAppId cannot be set with publish='plain', which writes only once, into an empty folder",
            hint="Leave out txnAppId and txnVersion, or set publish='index'.",
        )
    return application, int(version)


def lake_folder(name: str, target: object) -> str:
    """Return the absolute url of the folder of a lake, with a slash at its end.

    Raises InvalidOptionError, which calls the argument ``name``, if ``target`` is not a url, is a pattern, or contains
    a credential.
    """
    if not isinstance(target, str) or not target:
        raise errors.InvalidOptionError(f"{name}: must be the url of a folder (str), not {target!r}", option=name)
    refuse_secrets(name, target)
    if any(character in target for character in "*?["):
        raise errors.InvalidOptionError(
            f"{name}: must be the url of one folder, not a pattern (it contains *, ? or [)",
            option=name,
            url=safe_url(target),
        )
    return str(absolute_target(target)).removesuffix("/") + "/"


def _kinds(items: Sequence[Any]) -> tuple[IndexKind, ...]:
    kinds: list[IndexKind] = []
    for item in items:
        record = {"kind": item} if isinstance(item, str) else item
        kind = _KINDS.get(record.get("kind", "")) if isinstance(record, dict) else None
        if kind is None:
            raise errors.InvalidOptionError(
                f"indexKinds: {item!r} is not an index kind. Items must be names of {', '.join(_KINDS)}, or objects"
                ' such as {"kind": "keys", "columns": ["id"]}'
            )
        options = {name: value for name, value in record.items() if name not in ("kind", "columns")}
        try:
            kinds.append(kind(*record.get("columns", []), **options))
        except TypeError as error:
            raise errors.InvalidOptionError(f"indexKinds: invalid arguments for {kind.name}: {error}") from error
    return tuple(kinds)


class AsyncpqWriter(DataSourceArrowWriter):
    """The writer of one ``save()``, made by :func:`lake_writer`. See docs/spark-writing.md."""

    def __init__(self, plan: FrameWrite) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of a task to new files, which readers see after :meth:`commit`; return these files."""
        return TaskFiles(self.plan.write_rows(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, make all files visible at once.

        After a StoreError it is not certain whether the files were committed; after other errors they were not.
        """
        written = [message for message in messages if isinstance(message, TaskFiles)]
        if len(written) < len(messages):
            raise errors.StoreError(
                f"the commit got the files of only {len(written)} of {len(messages)} tasks from Spark",
                url=safe_url(self.plan.folder),
                hint="Nothing was committed: write again.",
            )
        parts = [message.part for message in written]
        run_on_worker(self.plan.settings, lambda session: self.plan.commit(session, parts))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, delete the files of a write whose tasks failed, including files that no message names.

        If all tasks succeeded, the commit failed, but readers may see its files. So the files stay until a vacuum.
        """
        if not messages or any(message is None for message in messages):
            self.plan.give_up()


def lake_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> AsyncpqWriter:
    """Plan one ``save()`` and return its writer. Raises the errors of :func:`plan_write`."""
    return AsyncpqWriter(plan_write(options, schema, overwrite=overwrite))


# -- options --------------------------------------------------------------------------------------


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse options with names like ``pageRows``, in any case.

    ``bloomFilters`` and ``sortedBy`` are JSON lists of names, or of objects such as ``{"column": "id", "fpp": 0.001}``;
    ``dictionaryColumns`` is a JSON list of names. An invalid value raises InvalidOptionError.
    """
    texts = {name.lower(): value for name, value in given.items()}
    values: dict[str, Any] = {}
    for option in fields(WriteOptions):
        name = camel_case(option.name)
        if name.lower() in texts:
            values[option.name] = _parsed(name, option.name, texts[name.lower()])
    with option_spelling(values):
        return WriteOptions(**values)


def _parsed(name: str, attribute: str, text: str) -> Any:
    if attribute == "compression":
        return text.lower()
    if attribute == "store_schema":
        return flag_option({name.lower(): text}, name)
    if attribute in _LISTS:
        return tuple(_item(name, attribute, item) for item in json_list(name, text))
    try:
        return int(text)
    except ValueError:
        raise InvalidOptionError(f"{name}={text!r}: must be a whole number", option=name) from None


def _item(name: str, attribute: str, item: Any) -> Any:
    if attribute == "dictionary_columns":
        if not isinstance(item, str):
            raise InvalidOptionError(f"{name}: must be a list of names, but has the item {item!r}", option=name)
        return item
    kind = BloomFilter if attribute == "bloom_filters" else SortedBy
    known = {camel_case(field.name): field.name for field in fields(kind)}
    record = {"column": item} if isinstance(item, str) else item
    if not isinstance(record, dict) or not isinstance(record.get("column"), str) or record.keys() - known.keys():
        raise InvalidOptionError(
            f"{name}: must be a list of names, or of objects with {', '.join(known)}, but has the item {item!r}",
            option=name,
        )
    return kind(**{known[key]: value for key, value in record.items()})


def json_list(name: str, text: str) -> list[Any]:
    """Parse an option whose value is a JSON list, or names separated by commas. ``name``: the option, for messages.

    Raises InvalidOptionError if a text that begins like JSON is not a JSON list.
    """
    if text.strip() and text.lstrip()[0] not in '[{"':
        return [name.strip() for name in text.split(",")]
    try:
        items = json.loads(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"{name}: must be JSON: {error}", option=name, hint='A list is ["id", "day"].'
        ) from error
    if not isinstance(items, list):
        raise InvalidOptionError(f'{name}: must be a JSON list such as ["id", "day"], not {text}', option=name)
    return items


#: Types of numbers, of which each holds all values of those before.
_WIDER: Final[tuple[tuple[type[DataType], ...], ...]] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
)


def arranged(batch: pa.RecordBatch, order: Sequence[int | None], schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch's columns in the order of ``schema``: ``order`` has the position of each in ``batch``, or
    None for a column of nulls. Integers and floats are widened to the types of ``schema``."""
    columns = []
    for at, wanted in zip(order, schema, strict=True):
        column = pa.nulls(batch.num_rows, wanted.type) if at is None else batch.column(at)
        columns.append(column.cast(wanted.type) if _is_number(column.type) else column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype))


def fitted(
    schema: StructType, lake: pa.Schema, conf: ReadConf, folder: str
) -> tuple[StructType, tuple[int | None, ...]]:
    """Return the columns to append, in the order and spelling of the lake's columns ``lake``, and the position of each
    in ``schema``, the columns of the appended rows. The position is None for a column that ``schema`` lacks, which
    becomes null; narrower integers and floats are widened. ``folder``: the lake's url, for messages.

    Raises SchemaMismatchError if the columns differ from the lake's, AmbiguousColumnError if names differ only in case.
    """
    names = schema.fieldNames()
    places = [conf.find(names, name) for name in lake.names]
    unknown = set(range(len(names))) - set(places)
    if unknown:
        raise _mismatch("the appended rows have this column, which the lake lacks", names[min(unknown)], folder)
    columns: list[StructField] = []
    for field, at in zip(lake, places, strict=True):
        own = _lake_column(field) if at is None else schema.fields[at]
        dtype = own.dataType
        if at is not None and _is_number(field.type) and _is_wider(known := _lake_column(field).dataType, dtype):
            dtype = known
        columns.append(StructField(field.name, dtype, own.nullable, own.metadata))
    struct = StructType(columns)
    for ours, theirs in zip(from_spark(struct, conf).schema, lake, strict=True):
        if ours.type != theirs.type:
            raise _mismatch(
                f"the appended column has the type {ours.type}, the lake's {theirs.type}", ours.name, folder
            )
    return struct, tuple(places)


def _lake_column(field: pa.Field) -> StructField:
    return struct_of(pa.schema([field])).fields[0]


def _is_wider(dtype: DataType, other: DataType) -> bool:
    """Return whether ``dtype`` holds all numbers of the type ``other``."""
    groups = [kinds for kinds in _WIDER if type(other) in kinds]
    return any(type(dtype) in kinds[kinds.index(type(other)) :] for kinds in groups)


def _mismatch(what: str, column: str, folder: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        what, url=safe_url(folder), column=column, hint="Append the lake's columns and types, or overwrite the lake."
    )

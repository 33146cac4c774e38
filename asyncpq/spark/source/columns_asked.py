"""What the source and its streams have in common: the columns that Spark asks for, and plans of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, SchemaMismatchError
from asyncpq.expressions import And, Expression
from asyncpq.expressions.tree import join
from asyncpq.session import Session
from asyncpq.spark.reads.lakes import LakeTarget, OpenLake, open_lake
from asyncpq.spark.reads.planning import Pruning, ReadPlan, plan_lake
from asyncpq.spark.reads.predicates import Condition, fixed_instants
from asyncpq.spark.source.source_options import SourceOptions
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.read_conf import nullable, unquoted

#: How many tasks run at once is not known here. A split is not made smaller than is worth a task, however.
PARALLELISM: Final = 32


class SplitPartition(InputPartition):
    """One split: what its task is given."""

    def __init__(self, split: bytes) -> None:
        super().__init__(None)
        self.split = split

    def __repr__(self) -> str:
        return f"SplitPartition({len(self.split)} bytes)"


def target_of(options: SourceOptions) -> LakeTarget:
    """What is opened."""
    target = options.target
    return LakeTarget(
        target=list(target) if isinstance(target, tuple) else target,
        index=options.index,
        view=options.view,
        format=options.format,
    )


async def inferred_schema(session: Session, options: SourceOptions) -> StructType:
    """The columns that are read, as Spark infers them.

    Raises:
        ColumnNotFoundError: there is none of a name in ``columns``, ``where`` or ``predicate``.
    """
    opened = await open_lake(session, target_of(options), options.conf)
    _check_where(opened, options)
    if options.columns is None:
        return opened.struct
    found: list[int] = []
    for name in options.columns:
        there = opened.columns([name], options.conf) or opened.columns([unquoted(name)], options.conf)
        if not there:
            raise ColumnNotFoundError(
                "there is no such column", url=opened.state.url, column=name, hint="See the option columns."
            )
        found += there
    return StructType([opened.struct.fields[at] for at in found])


async def open_as_asked(session: Session, options: SourceOptions, schema: StructType) -> OpenLake:
    """The dataset with at least the columns of ``schema``; with all that it has, where these have the same types."""
    target = target_of(options)
    opened = await open_lake(session, target, options.conf)
    found = opened.columns([field.name for field in schema.fields], options.conf)
    if len(found) == len(schema.fields):
        pairs = zip((opened.struct.fields[at] for at in found), schema.fields, strict=True)
        if all(
            have.name == field.name and nullable(have.dataType) == nullable(field.dataType) for have, field in pairs
        ):
            return opened
    return await open_lake(session, replace(target, schema=schema), options.conf)


async def plan_as_asked(
    opened: OpenLake, options: SourceOptions, schema: StructType, pushed: Expression | None = None
) -> ReadPlan:
    """A read of the columns of ``schema``, in their order.

    Raises:
        ColumnNotFoundError: ``where`` or ``predicate`` names a column that is not read.
        InvalidOptionError: old timestamps of which the options do not say by which zone they are.
    """
    _check_where(opened, options)
    plan = await plan_lake(
        opened,
        conf=options.conf,
        settings=options.settings,
        columns=[field.name for field in schema.fields],
        pruning=_pruning(options, pushed),
        parallelism=PARALLELISM,
    )
    if plan.needs_jvm_zone and options.conf.jvm_time_zone is None:
        raise InvalidOptionError(
            "files have timestamps of an old calendar, by the time zone of Spark's JVM, which the source cannot see",
            url=opened.state.url,
            hint="Name it: option jvmTimeZone, such as Europe/Berlin.",
        )
    return plan


def _check_where(opened: OpenLake, options: SourceOptions) -> None:
    if options.where is None:
        return
    for name in Condition(options.where).unknown_names(opened.struct, options.conf):
        raise ColumnNotFoundError(
            "there is no such column to leave out rows by",
            url=opened.state.url,
            column=name,
            hint="See the options where and predicate. Beside .schema(...), only its columns are known.",
        )


def _pruning(options: SourceOptions, pushed: Expression | None) -> Pruning | None:
    """By the options and by what Spark has pushed; both say what is wanted in Spark's terms."""
    conditions = [] if options.where is None else [Condition(options.where)]
    if pushed is not None:
        conditions.append(Condition(pushed, by_fields=True))
    if not conditions:
        return None

    def terms(struct: StructType, schema: pa.Schema, names: Sequence[str]) -> Expression | None:
        found: list[Expression] = []
        for condition in conditions:
            term = condition.terms(struct, schema, options.conf, fixed_instants(condition.times(), options.conf))
            if term is not None:
                found.append(term)
        return join(And, found) if found else None

    return terms


def check_asked(schema: StructType) -> None:
    """
    Raises:
        InvalidOptionError: the schema says of what is inside of a column that it is never null.
        AsyncpqError: PySpark takes no data of a type.
    """
    arrow_schema(schema)  # PySpark's own error names no column
    for field in schema.fields:
        if nullable(field.dataType) != field.dataType:
            raise InvalidOptionError(
                "schema: elements, values and fields that are never null: files cannot promise that",
                column=field.name,
                hint="Make them nullable, as spark.read.parquet does.",
            )


def as_asked(batches: Iterable[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The batches with the nullability of ``schema``, which Spark insists on.

    Raises:
        SchemaMismatchError: a null where the schema allows none.
    """
    target = arrow_schema(schema)
    for batch in batches:
        for field, column in zip(target, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise SchemaMismatchError("the schema says NOT NULL, and there is a null", column=field.name)
        yield pa.RecordBatch.from_arrays(batch.columns, schema=target)

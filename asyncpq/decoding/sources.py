"""What takes the fetched bytes of a row group's columns, and gives their rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from asyncpq.decoding.assemble import PagedSource, StreamedSource
from asyncpq.decoding.encrypted import EncryptedFieldSource
from asyncpq.decoding.field_source import FieldSource
from asyncpq.decoding.file_view import ViewShape
from asyncpq.decoding.filter import Filter
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.nested import NestedLeaf
from asyncpq.decoding.page import ChunkPage, LeafArray
from asyncpq.decoding.plain import PackedPage
from asyncpq.decoding.types import leaf_decoder, reads_alone
from asyncpq.objects.read_plan import RowGroupPlan
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.schema import Projection

KeepDecoded: TypeAlias = Callable[[int, int, LeafArray | PackedPage], None]
KeepPart: TypeAlias = Callable[[int, int, ChunkPage], None]


class QueryShape(NamedTuple):
    """What the rows of a read look like; the same for all row groups.

    Attributes:
        schema: Arrow schema of the output.
        output: the output's fields, or the parts of them, in the order of ``schema``.
        filter: the compiled predicate, or None.
        limits: bounds and checks of decoding.
        extensions: allowed extension types.
        dictionaries: ordinals of flat fields whose values come as dictionary arrays.
        view: the columns of a dataset, if the rows come in those: then ``output`` are the file's fields that are
            read for them, ``schema`` and ``filter`` are the dataset's.
    """

    schema: pa.Schema
    output: tuple[Projection, ...]
    filter: Filter | None
    limits: DecodeLimits
    extensions: frozenset[str]
    dictionaries: frozenset[int] = frozenset()
    view: ViewShape | None = None


class Sources(NamedTuple):
    """Those of one row group.

    Attributes:
        leaves: by position among the plan's columns.
        paged, streamed: the same, those whose bytes come page by page and as whole column chunks.
        decoding: of ``paged``, those that take decoded pages and dictionaries, too.
        flat, fields: what gives the rows of a field, by its ordinal: of flat columns and of all others.
    """

    leaves: list[PagedSource | StreamedSource | NestedLeaf]
    paged: dict[int, PagedSource | NestedLeaf]
    streamed: dict[int, StreamedSource | NestedLeaf]
    decoding: dict[int, PagedSource]
    flat: dict[int, PagedSource | StreamedSource]
    fields: dict[int, FieldSource]


def open_sources(
    version: FileVersion, plan: RowGroupPlan, shape: QueryShape, keep: KeepDecoded | None, keep_part: KeepPart | None
) -> Sources:
    """Sources for all columns of ``plan``; for ``keep`` and ``keep_part`` see ``RowGroupReader``."""
    sources = Sources([], {}, {}, {}, {}, {})
    schema, group, num_rows, padded = version.metadata.schema, plan.ordinal, plan.num_rows, version.padded_chunks
    nested: dict[int, dict[int, NestedLeaf]] = {}
    alone: dict[int, dict[int, PagedSource | StreamedSource]] = {}
    for position, column in enumerate(plan.columns):
        leaf, paged = column.chunk.leaf, column.offsets is not None
        chunk = version.chunk(group, leaf)
        source: PagedSource | StreamedSource
        if version.decryption is not None or not reads_alone(version, leaf, shape.extensions):
            drop = partial(version.drop, leaf)
            whole = NestedLeaf(schema.leaves[leaf], chunk, num_rows, paged=paged, padded=padded, drop=drop)
            if paged:
                sources.paged[position] = whole
            else:
                sources.streamed[position] = whole
            sources.leaves.append(whole)
            nested.setdefault(column.field, {})[leaf] = whole
            continue
        as_dictionary = column.field in shape.dictionaries
        decoder = leaf_decoder(version, leaf, shape.extensions, as_dictionary=as_dictionary)
        if paged:
            keep_page = None if keep is None else partial(keep, group, leaf)
            source = PagedSource(decoder, chunk, num_rows, keep=keep_page)
            sources.paged[position] = sources.decoding[position] = source
        else:
            keep_whole = None if keep_part is None else partial(keep_part, group, leaf)
            source = StreamedSource(decoder, chunk, num_rows, shape.limits, padded=padded, keep=keep_whole)
            sources.streamed[position] = source
        sources.leaves.append(source)
        if schema.leaves[leaf].is_flat:
            sources.flat[column.field] = source
        else:
            alone.setdefault(column.field, {})[leaf] = source
    for ordinal in {**alone, **nested}:
        field, some = schema.fields[ordinal], nested.get(ordinal, {})
        sources.fields[ordinal] = (
            FieldSource(version, field, some, num_rows, shape.extensions, alone.get(ordinal))
            if version.decryption is None
            else EncryptedFieldSource(version, field, some, num_rows, shape.extensions, group)
        )
    return sources

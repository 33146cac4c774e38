"""The columns of a query, resolved against a schema: which leaves are read, and which of them the filter needs."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from asyncpq.format.schema import Leaf, ParquetSchema, Projection


class PredicateColumn(NamedTuple):
    """A column that a predicate names.

    Attributes:
        projection: what is read of its top-level field.
        leaf: the leaf that it is, with a value or null in each row; else None. Statistics of other leaves
            count values or nulls that are no rows.
    """

    projection: Projection
    leaf: Leaf | None


class ReadLeaf(NamedTuple):
    """A leaf to read.

    Attributes:
        leaf: its index in the schema.
        field: ordinal of its top-level field.
        predicate: the filter needs it.
    """

    leaf: int
    field: int
    predicate: bool


class ReadColumns:
    """The columns of a query, resolved against a schema: the same for all literals of one predicate.

    Args:
        schema: of the file.
        output: the top-level fields to return, or the parts of them.
        names: the columns that the predicate names.
        predicate: the same, where the file has them under other names.

    Attributes:
        output: as given.
        predicate: the predicate's columns, by name.
        bounded: those of them that are leaves with bounds that count rows.
        leaves: what is read of a row group that is filtered, the filter's leaves first.
        unfiltered: what is read of one that is not.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, or several.
    """

    __slots__ = ("bounded", "leaves", "output", "predicate", "unfiltered")

    def __init__(
        self,
        schema: ParquetSchema,
        output: tuple[Projection, ...],
        names: Iterable[str] = (),
        predicate: Mapping[str, PredicateColumn] = MappingProxyType({}),
    ) -> None:
        self.output = output
        self.predicate: dict[str, PredicateColumn] = dict(predicate)
        for name in names:
            projection = schema.projection(name)
            leaf = schema.leaves[projection.leaves[0]] if len(projection.leaves) == 1 else None
            is_value = leaf is not None and leaf.dotted == name and leaf.max_repetition_level == 0
            self.predicate[name] = PredicateColumn(projection, leaf if is_value else None)
        self.bounded = {name: leaf for name, (_, leaf) in self.predicate.items() if leaf is not None}
        filtering = [column.projection for column in self.predicate.values()]
        self.leaves = _leaves(filtering, output)
        self.unfiltered = _leaves((), output)

    def without_bounds(self, names: Collection[str]) -> ReadColumns:
        """The same columns, of which ``names`` are not pruned by."""
        other = copy.copy(self)
        other.bounded = {name: leaf for name, leaf in self.bounded.items() if name not in names}
        return other


def _leaves(filtering: Iterable[Projection], output: Iterable[Projection]) -> tuple[ReadLeaf, ...]:
    found: dict[int, ReadLeaf] = {}
    for predicate, projections in ((True, filtering), (False, output)):
        for projection in projections:
            for index in projection.leaves:
                if index not in found:
                    found[index] = ReadLeaf(index, projection.field, predicate)
    return tuple(found.values())

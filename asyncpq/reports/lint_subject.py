"""The lookups by one column of one file, for which the rules of ``lint`` look for causes of slowness.

A finding is dropped if its cure saves less than 5 % of a lookup's time, no request, and less than a quarter of the
bytes (less than half of them if the cure adds requests).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from asyncpq.options import KIB
from asyncpq.parquet.column_chunk import ColumnChunk
from asyncpq.parquet.schema import Leaf
from asyncpq.reports.cures import CURES, Snippets, with_own_setting
from asyncpq.reports.documents import Cause
from asyncpq.reports.inspection import FileLayout
from asyncpq.reports.lookup_cost import KeyZones, LookupCost, LookupModel, Shape

_LEAST_SHARE: Final = 0.05  # of the seconds of a lookup, that a cure must save,
_LEAST_BYTES_SHARE: Final = 0.25  # or of its bytes, if these are at least so many
_LEAST_BYTES: Final = 64 * KIB


@dataclass(slots=True)
class Subject:
    """The lookups by one column of one file, with the file's layout and the cost models that the rules of ``lint``
    need."""

    layout: FileLayout
    leaf: Leaf
    model: LookupModel
    shape: Shape
    keys: KeyZones  # zones of the key from the file's bounds, or from its values if these were read for lack of bounds
    exact: KeyZones | None = None  # zones of the values, where they were read
    ratios: Mapping[int, float] = field(default_factory=dict)  # by leaf, zstd's size of uncompressed pages over theirs
    distinct: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # by leaf: distinct values of so many rows
    single_pages: bool = False  # chunks without an OffsetIndex are one page each
    before: LookupCost = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.model.mean_cost(self.shape, self.keys)

    @property
    def leaves(self) -> tuple[int, ...]:
        """The leaves that a lookup reads."""
        return (self.model.key, *self.model.others)

    def chunks(self, leaf: int) -> list[ColumnChunk]:
        """Return a leaf's column chunks that can be read and have values."""
        indexed = [self.layout.chunks.get((ordinal, leaf)) for ordinal in range(len(self.shape.groups))]
        return [item.chunk for item in indexed if item is not None and item.chunk.num_values]

    def name(self, leaf: int) -> str:
        return self.layout.version.metadata.schema.leaves[leaf].dotted

    def finding(
        self,
        rule: str,
        title: str,
        detail: str,
        cure: str,
        *,
        shape: Shape | None = None,
        keys: KeyZones | None = None,
        model: LookupModel | None = None,
        snippets: Snippets | None = None,
    ) -> Iterator[Cause]:
        """Yield the finding of the rule ``rule`` if its cure saves enough. ``shape``, ``keys`` and ``model``
        describe the file and its lookups after the cure; None means that the cure does not change them. The other
        arguments are fields of :class:`asyncpq.reports.documents.Cause`."""
        after = (model or self.model).mean_cost(shape or self.shape, keys or self.keys)
        saved = self.before - after
        share = saved.seconds / self.before.seconds if self.before.seconds else 0.0
        least_share = _LEAST_BYTES_SHARE if saved.requests > -0.5 else 2 * _LEAST_BYTES_SHARE
        fewer = saved.num_bytes >= max(_LEAST_BYTES, least_share * self.before.num_bytes)
        if share <= 0 or (share < _LEAST_SHARE and saved.requests < 0.5 and not fewer):
            return
        snippets = CURES[rule](self.leaf.dotted) if snippets is None else snippets
        yield Cause(
            id=rule,
            severity=severity(share),
            title=title,
            detail=f"{detail} A lookup by {self.leaf.dotted} takes {cost_text(self.before)}; then {cost_text(after)}.",
            saves_requests=round(saved.requests),
            saves_bytes=round(saved.num_bytes),
            saves_seconds=round(saved.seconds, 6),
            column=self.leaf.dotted,
            cure=cure,
            snippets=with_own_setting(rule, snippets, self.layout.version.metadata.created_by),
        )


def unpriced(
    rule: str,
    severity: Literal["high", "medium", "low", "note"],
    title: str,
    detail: str,
    cure: str,
    *,
    column: str | None = None,
    snippets: Snippets | None = None,
) -> Cause:
    """Return a finding for whose cure no saving is predicted. The arguments are fields of
    :class:`asyncpq.reports.documents.Cause`."""
    return Cause(
        id=rule,
        severity=severity,
        title=title,
        detail=detail,
        saves_requests=None,
        saves_bytes=None,
        saves_seconds=None,
        column=column,
        cure=cure,
        snippets=snippets or {},
    )


def severity(share: float) -> Literal["high", "medium", "low"]:
    """Return the severity of a finding whose cure saves the fraction ``share`` of a lookup's time."""
    return "high" if share >= 0.4 else "medium" if share >= 0.15 else "low"


def cost_text(cost: LookupCost) -> str:
    """Return a cost as text: requests, bytes and seconds."""
    return f"{cost.requests:.1f} requests and {cost.num_bytes:,.0f} bytes"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join names with commas; after ``most`` names, say how many follow."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

"""What looking up one key takes, found out with a few keys that the lake has."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from asyncpq.datasets.dataset import Dataset
from asyncpq.errors import SchemaMismatchError
from asyncpq.expressions import And, IsNull, Not
from asyncpq.options import MIB
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.session import Session
from asyncpq.spark.joins.lake import PinnedLake, opened

#: A key is looked up where that takes so many bytes, or this part of the lake, whichever is more.
LITTLE_BYTES: Final = 4 * MIB
LITTLE_PART: Final = 20


@dataclass(frozen=True, slots=True)
class KeyCost:
    """On average, of keys that the lake has.

    Attributes:
        requests: range GETs for data.
        num_bytes: that these give.
        lake_bytes: of all files.
        num_files: of the lake.
        sampled: how many keys were looked at; 0 where the files that were looked into have none.
        scan_bytes: that a scan of the columns in question takes, about.
    """

    requests: float
    num_bytes: float
    lake_bytes: int
    num_files: int
    sampled: int
    scan_bytes: int

    @property
    def is_little(self) -> bool:
        """Whether a lookup spares most of a scan."""
        if not self.sampled:
            return self.lake_bytes <= LITTLE_BYTES
        return self.num_bytes <= max(LITTLE_BYTES, self.lake_bytes / LITTLE_PART)

    def __str__(self) -> str:
        if not self.sampled:
            return f"what a key takes is not known: some of the {self.num_files} files were looked into, and have none"
        return f"a key takes {self.num_bytes:,.0f} bytes of the {self.lake_bytes:,} that {self.num_files} files have"


_KEPT: Final = 256
_ENOUGH: Final = 3  # keys
_MOST_LOOKED_AT: Final = 32  # files
_costs: WeakKeyDictionary[Session, dict[Hashable, KeyCost]] = WeakKeyDictionary()


async def key_cost(session: Session, pinned: PinnedLake, names: Sequence[str]) -> KeyCost:
    """Found out once for a snapshot of an index.

    Args:
        names: of the key columns, as asyncpq has them.
    """
    if pinned.index is None:
        return await _sampled(session, pinned, names)
    known = _costs.setdefault(session, {})
    question = pinned.index, pinned.snapshot, pinned.target, pinned.lake.columns, tuple(names)
    if question not in known:
        if len(known) >= _KEPT:
            known.clear()
        known[question] = await _sampled(session, pinned, names)
    return known[question]


async def _sampled(session: Session, pinned: PinnedLake, names: Sequence[str]) -> KeyCost:
    dataset = Dataset(await opened(session, pinned))
    urls = list(dict.fromkeys(await dataset.files()))  # a large file is there once for each of its splits
    state = dataset._state
    operation = state.resources.operation("files", state.url)
    with operation:
        files = (await state.source.files(dataset._ask((), None), operation)).files
    requests = num_bytes = sampled = scan_bytes = sampled_bytes = 0
    sizes = {file.url: file.size or 0 for file in files}
    lake_bytes = sum(sizes.values())
    present = [Not(IsNull(name)) for name in names]
    for url in _spread(urls):
        if sampled == _ENOUGH:
            break
        where = present[0] if len(present) == 1 else And(tuple(present))
        try:
            row = await dataset.read(list(dict.fromkeys(names)), where, limit=1, access={url: AccessPlan.all()})
            if not row.num_rows:
                continue
            plan = await dataset.plan(pinned.lake.columns, lookup={name: row.column(name) for name in names})
            whole = await dataset.plan(pinned.lake.columns, access={url: AccessPlan.all()})
        except SchemaMismatchError:  # Spark takes files with other types than the lake has, which these reads do not
            continue
        sampled += 1
        requests += plan.num_requests
        num_bytes += sum(file.num_bytes + file.cached_bytes for file in plan.files)
        scan_bytes += sum(file.num_bytes + file.cached_bytes for file in whole.files)
        sampled_bytes += sizes.get(url, 0)
    some = max(sampled, 1)
    share = min(1.0, scan_bytes / sampled_bytes) if sampled_bytes else 1.0
    return KeyCost(requests / some, num_bytes / some, lake_bytes, len(sizes), sampled, round(lake_bytes * share))


def _spread(urls: Sequence[str]) -> list[str]:
    """First, middle and last, then others between them: some may have no keys."""
    if not urls:
        return []
    last = len(urls) - 1
    places = [0, last // 2, last, *[at * last // _MOST_LOOKED_AT for at in range(_MOST_LOOKED_AT)]]
    return [urls[at] for at in dict.fromkeys(places)]

"""Find the causes why a read was not faster, each with the saving that its cure is predicted to bring.

A cause is a property of the file, the session or the read, such as a missing page index; its cure removes it. For each
cause the requests of the read without this cause are computed, and the work of decoding, filter and planning that is
left; the saving is the difference that the :class:`ReadModel` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from asyncpq.reports import cpu_causes, lake_causes, layout_causes, store_causes
from asyncpq.reports.read_model import Facts, ReadModel

if TYPE_CHECKING:
    from asyncpq.reports.documents import Cause

LEAST_SHARE: Final = 1 / 20  # of the time of a read, that a cause takes
_MANY_REQUESTS: Final = 8  # which cost money, whatever time they take


def causes_of(facts: Facts) -> list[Cause]:
    """Return the causes that cost at least a twentieth of the read's time, or many requests, the largest saving first.

    Of causes that save about the same, the one that explains more comes first: a layout before a cold cache.
    """
    model = ReadModel(facts)
    causes = [cause for find in _CAUSES for cause in find(facts, model)]
    step = max(model.now_s, 1e-9) * LEAST_SHARE
    kept = [
        cause
        for cause in causes
        if (cause["saves_seconds"] or 0) >= step or (cause["saves_requests"] or 0) > _MANY_REQUESTS
    ]
    best = {cause["id"]: cause for cause in sorted(kept, key=lambda cause: cause["saves_seconds"] or 0)}
    return sorted(
        [cause for cause in kept if best[cause["id"]] is cause],
        key=lambda cause: -round((cause["saves_seconds"] or 0) / step),
    )


#: Those that explain more come first.
_CAUSES: Final[tuple[Callable[[Facts, ReadModel], Iterator[Cause]], ...]] = (
    store_causes.throttled,
    lake_causes.stale_index,
    lake_causes.tiny_files,
    lake_causes.no_index,
    layout_causes.no_page_index,
    layout_causes.unused_page_index,
    layout_causes.pages_in_vain,
    layout_causes.huge_dictionary,
    layout_causes.huge_pages,
    layout_causes.big_footer,
    store_causes.wide_gaps,
    cpu_causes.slow_codec,
    cpu_causes.filter_bound,
    cpu_causes.decode_bound,
    store_causes.slow_tier,
    store_causes.far_store,
    store_causes.slow_store,
    store_causes.freshness,
    store_causes.cold_cache,
    cpu_causes.python,
)

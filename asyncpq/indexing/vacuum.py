"""What no snapshot that is kept needs is removed from an index's place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from asyncpq.errors import CorruptIndexError
from asyncpq.events import Operation
from asyncpq.indexing.commits import load, numbered
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.model import Place
from asyncpq.storage.together import all_of


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was removed.

    Attributes:
        snapshots: their numbers.
        segments: names of those that only these snapshots named, or that no snapshot ever did.
        files: paths of data files that asyncpq wrote, and that no snapshot lists any more, or none ever did.
    """

    snapshots: tuple[int, ...]
    segments: tuple[str, ...]
    files: tuple[str, ...] = ()


async def vacuum(
    place: Place,
    *,
    keep: int,
    older_than_s: float,
    orphans_s: float,
    grace_s: float,
    operation: Operation | None = None,
) -> Vacuumed:
    """Remove snapshots that nobody should read any more, and what only they name.

    A snapshot is kept while it is one of the last ``keep``, or was the newest at any time in the last ``older_than_s``
    seconds. Segments that no snapshot names are kept while they are younger than ``orphans_s`` or their build is alive.
    Ages are by the place's clock.

    Args:
        grace_s: a build that gave no sign of life for so long is dead.
    """
    # in this order: what a build that was alive then commits from now on is not taken for an orphan
    signs = await place.builds(operation=operation)
    builds = {build for build, age in signs.items() if age <= grace_s}
    segments = await place.list_segments(operation=operation)
    newest = await load(place, operation)
    if newest is None:
        return Vacuumed((), ())
    ages = await place.list_manifests(operation=operation)
    shown = await place.latest(operation=operation)
    first = min(newest.snapshot, newest.snapshot if shown is None else shown[0])
    numbers = sorted(number for number in ages if number < first)
    kept = {number for number in ages if number >= first}
    kept.update(numbers[max(0, len(numbers) - (keep - len(kept))) :] if keep > len(kept) else ())
    for number, following in pairwise([*numbers, first]):
        if ages.get(following, 0.0) <= older_than_s:
            kept.add(number)
    old = [number for number in numbers if number not in kept]
    needed = {name for manifest in await _load_all(place, kept, operation) for name in manifest.names} | newest.names
    outdated = {name for manifest in await _load_all(place, old, operation, damaged=True) for name in manifest.names}
    unneeded = [
        name
        for name, age in segments.items()
        if name not in needed and (name in outdated or (age > orphans_s and name.partition("-")[0] not in builds))
    ]
    for build, age in signs.items():
        if age > orphans_s:
            await place.end_build(build, operation=operation)
    await place.delete_segments(unneeded, operation=operation)
    await place.delete_manifests(
        old, operation=operation
    )  # last: they name what was to be removed, should this be broken off
    return Vacuumed(tuple(old), tuple(sorted(unneeded)))


async def _load_all(
    place: Place, numbers: Iterable[int], operation: Operation | None, *, damaged: bool = False
) -> list[Manifest]:
    """Those that are there; without ``damaged`` ones where these do not matter."""
    found: dict[int, Manifest] = {}

    async def one(number: int) -> None:
        try:
            manifest = await numbered(place, number, operation)
        except CorruptIndexError:
            if not damaged:
                raise
            return
        if manifest is not None:
            found[number] = manifest

    await all_of(sorted(numbers), one)
    return list(found.values())

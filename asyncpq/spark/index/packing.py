"""Files are spread over tasks by what they cost: one large file takes as long as thousands of tiny ones."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from asyncpq.indexing.file_rows import FileWork
from asyncpq.options import KIB, MIB

#: What a task should cost: about a second.
TASK_BYTES: Final = 32 * MIB
_OPENING_BYTES: Final = 128 * KIB  # to open a file costs as much as to read so many bytes of it
_FOOTER_SHARE: Final = 64  # a footer has one of so many bytes of its file, at most
_EVEN: Final = 4  # tasks come in such numbers, as cores do: or most wait for the last ones
_UNKNOWN_BYTES: Final = 4 * MIB  # of a file whose size no listing names


def cost_of(work: FileWork, *, reads_values: bool) -> int:
    """What it costs to read a file, as bytes."""
    size = work.file.size if work.file.validator is None else work.file.validator.size
    if size is None:
        size = _UNKNOWN_BYTES
    return _OPENING_BYTES + (size if reads_values else size // _FOOTER_SHARE)


def count_of(cost: int, target: int) -> int:
    """How many tasks do what costs so much, so that each costs ``target`` or somewhat less."""
    count = max(1, -(-cost // max(1, target)))
    return count if count <= _EVEN else -(-count // _EVEN) * _EVEN


def packed(costs: Sequence[int], target: int) -> list[list[int]]:
    """Positions in ``costs``, in as many bins as it takes for each to cost ``target`` or somewhat less.

    No bin costs more than a third above the best that can be done with so many of them. The heaviest bin comes first:
    it should not be begun last. Positions in a bin ascend.
    """
    if not costs:
        return []
    count = min(len(costs), count_of(sum(costs), target))
    bins: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(count)]
    for at in sorted(range(len(costs)), key=lambda at: (-costs[at], at)):
        load, number, held = bins[0]
        held.append(at)
        heapq.heapreplace(bins, (load + costs[at], number, held))
    return [sorted(held) for _, _, held in sorted(bins, key=lambda one: (-one[0], one[1])) if held]

"""How much to fetch first from the end of an object, where its footer and indexes are: guessed, and learnt."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from cachetools import LRUCache

from asyncpq.errors import FormatError

if TYPE_CHECKING:
    from asyncpq.objects.version import FileVersion


class TailSizes:
    """Guesses the size of the first GET of an object, from the tails (footer and indexes) of similar objects.

    Objects of one folder mostly have similar footers, and share a tail-size hint (``tail_hint``). The guess is one of
    the recent tails with that hint plus a quarter: that with which these would have cost least, in bytes fetched and
    second requests. So one large footer does not make all others fetch as much. For a new hint the guess is the
    option's default. After one tail it is at most that, since files that are opened at once would all fetch as much
    before the second tail is known. An object that was opened before is guessed by its own tail.
    """

    MAX_LEARNT_BYTES = 8 << 20  # no file decides that more of its neighbours is fetched
    _MAX_FOLDERS = 1024
    _RECENT = 16
    _SECOND_REQUEST_BYTES = 2 << 20  # fetched in the time that a second request takes, at 20 ms and 100 MB/s

    def __init__(self, default: int) -> None:
        self._default = default
        self._seen: OrderedDict[str, deque[tuple[int, int]]] = OrderedDict()  # sizes, and the guesses made of them
        self._own: LRUCache[str, tuple[int, int]] = LRUCache(self._MAX_FOLDERS)  # by url

    def guess(self, tail_hint: str, url: str = "") -> int:
        """Return how many bytes to fetch from the end of the object ``url``, which has the hint ``tail_hint``."""
        seen: Collection[tuple[int, int]] = self._seen.get(tail_hint, ())
        if (own := self._own.get(url)) is not None:
            seen = (own,)
        elif len(seen) <= 1 and all(size >= self._default for size, _ in seen):
            return self._default
        guesses = {guess for _, guess in seen}
        # mostly there is one, as the files of a folder have similar footers
        guess = guesses.pop() if len(guesses) == 1 else min(guesses, key=lambda guess: (self._cost(guess, seen), guess))
        return min(guess, max(self._default, self.MAX_LEARNT_BYTES))

    def _cost(self, guess: int, seen: Iterable[tuple[int, int]]) -> int:
        """Return what the tails of the sizes ``seen`` would have cost with this guess."""
        return sum([guess if size <= guess else size + self._SECOND_REQUEST_BYTES for size, _ in seen])

    def learn(self, tail_hint: str, needed: int, url: str = "") -> None:
        """Record that footer and indexes of the object ``url``, with this hint, were in its last ``needed`` bytes."""
        sized = (needed, -(-needed * 5 // 4 // 4096) * 4096)
        if url:
            self._own[url] = sized
        seen = self._seen.setdefault(tail_hint, deque(maxlen=self._RECENT))
        seen.append(sized)
        self._seen.move_to_end(tail_hint)
        while len(self._seen) > self._MAX_FOLDERS:
            self._seen.popitem(last=False)


def needed_tail(version: FileVersion) -> int:
    """Return how many bytes from the end of the object hold footer and indexes, estimated from the first row group's
    indexes.

    Indexes far from the footer do not count: they lie beside their row groups.
    """
    start = version.footer_start
    groups = version.metadata.row_groups
    if groups and groups[0].num_columns:
        try:
            places = groups[0].index_places(0)
        except FormatError:  # a broken or encrypted column; others can be read
            return version.size - start
        for place in places:
            if place is not None and version.size - TailSizes.MAX_LEARNT_BYTES <= place[0] < start:
                start = place[0]
    return version.size - start

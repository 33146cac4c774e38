"""Limits of listings: how many objects one may have, and when its pages count as endless.

A server may answer every page with a further one. Each page must then have something new, so the objects run out or
exceed ``LimitOptions.max_listed_objects``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final

from asyncpq.errors import InvalidResponseError, ResourceLimitError
from asyncpq.records import dataclass

_EMPTY_PAGES: Final = 100  # in a row, before a listing fails
# After so many pages, they must have so many objects on average: stores return hundreds, and a few short pages
_PAGES: Final = 1000
_FEWEST_OBJECTS: Final = 10


@dataclass(slots=True)
class ListingLimit:
    """Counts the objects of one listing. ``url`` is that of the listing, without secrets."""

    url: str
    most: int
    _received: int = 0

    def receive(self, num_objects: int) -> None:
        """Count the objects and folders of one response. Raises ResourceLimitError once they are so many that the
        listing must have more than ``most`` objects, though some come twice."""
        self._received += num_objects
        if self._received > 2 * self.most:
            raise self._too_many()

    def check(self, num_objects: int) -> None:
        """Raise ResourceLimitError if the whole listing has more than ``most`` objects."""
        if num_objects > self.most:
            raise self._too_many()

    def endless(self, why: str) -> InvalidResponseError:
        """Return the error for a listing that does not end; ``why`` is the last part of its message."""
        return InvalidResponseError(
            f"the store's listing does not end: {why}",
            url=self.url,
            hint="Pass the urls of the files instead of a prefix.",
        )

    def _too_many(self) -> ResourceLimitError:
        return ResourceLimitError(
            f"the listing has more than {self.most} objects",
            url=self.url,
            hint="List a narrower prefix, or raise LimitOptions.max_listed_objects; each object takes about 300 bytes.",
        )


@dataclass(slots=True)
class PageSequence:
    """The pages of a listing that continue one another, each named by a token of the page before."""

    limit: ListingLimit
    _tokens: set[int] = field(default_factory=set)  # their hashes
    _pages: int = 0
    _objects: int = 0
    _empty: int = 0  # in a row

    def begin(self, token: str) -> None:
        """Note the token of the first page, for listings whose first page has one."""
        self._tokens.add(hash(token))

    def follow(self, token: str, objects: Sequence[object], folders: Sequence[object] = ()) -> None:
        """Count a page with ``objects`` and ``folders``, whose next page is named by ``token``.

        Raises InvalidResponseError if the token came before, or the pages have next to nothing.
        """
        number = len(objects) + len(folders)
        self._pages += 1
        self._objects += number
        self._empty = 0 if number else self._empty + 1
        if hash(token) in self._tokens:
            raise self.limit.endless("a page leads back to an earlier one")
        if self._empty > _EMPTY_PAGES:
            raise self.limit.endless(f"{self._empty} pages in a row are empty")
        if self._pages > _PAGES and self._objects < _FEWEST_OBJECTS * self._pages:
            raise self.limit.endless(f"{self._pages} pages have {self._objects} objects")
        self._tokens.add(hash(token))

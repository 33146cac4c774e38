"""What may have been meant by a name that is not there: hints of errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

_NAMES_SHOWN: Final = 8
_CHARACTERS_SHOWN: Final = 60

#: For a file that an index lists, and that is gone.
GONE_SINCE: Final = (
    "The index still lists it. Where others write and remove the files, `await index.refresh()` brings it up to date."
)


def shown(name: str) -> str:
    """The name in quotes; files may have very long ones."""
    return repr(name if len(name) <= _CHARACTERS_SHOWN else f"{name[:_CHARACTERS_SHOWN]}...")


def many_files(url: str) -> str:
    """What helps who opens ``url`` as one file, and it is not there: perhaps it names many."""
    if url.lower().startswith(("http://", "https://")):
        return "HTTP has no listings: of many files, Session.open_dataset reads a list of their urls."
    return "If it is a prefix, a folder or a pattern of many files, Session.open_dataset reads it."


def stray_file(folder: str, url: str) -> str:
    """What helps who reads all files below ``folder``, of which ``url`` is no Parquet."""
    skip = 'pass on_bad_file="skip" to leave out what is no Parquet.'
    if url.lower().endswith((".parquet", ".parq", ".pq")):
        return f"It is damaged, or was cut off while being written; {skip}"
    return f'Name the files by a pattern, such as "{folder}**/*.parquet", or {skip}'


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """The names that are like it, whose case does not count.

    Args:
        otherwise: the hint where none is.
    """
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=3)
    return f"Did you mean {' or '.join(shown(folded[one]) for one in close)}?" if close else otherwise


def first_columns(names: Sequence[str]) -> str | None:
    """The first columns that there are; None where there are none."""
    rest = f", ... {len(names)} in all" if len(names) > _NAMES_SHOWN else ""
    return f"Its columns are {', '.join(map(shown, names[:_NAMES_SHOWN]))}{rest}." if names else None


def nearest_column(name: str, names: Sequence[str]) -> str | None:
    """The columns that are like it, or else the first ones."""
    return nearest(name, names, first_columns(names))

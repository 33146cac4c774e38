"""Find the newest metadata file in the folder of an Iceberg table, for tables that are opened without a catalog.

Tables of Hadoop's kind number their files ``v1.metadata.json`` and name the last number in ``version-hint.text``, which
may lag behind. Catalogs write ``00001-<uuid>.metadata.json``. The highest number is the newest commit. If two files
have the highest number, two commits raced, and only the catalog knows which one won.
"""

from __future__ import annotations

import re
from typing import Final

from asyncpq.datasets.model import CatalogReader
from asyncpq.errors import InvalidOptionError, NotParquetError, ObjectNotFoundError, ResourceLimitError, printable
from asyncpq.storage.urls import ICEBERG_METADATA, safe_url

_NAME: Final = re.compile(r"(v?)(\d{1,18})(-[^/]+)?(?:(?:\.gz)?\.metadata\.json|\.metadata\.json\.gz)")
_HINT: Final = "version-hint.text"
_HINT_BYTES: Final = 64 << 10  # of a number or a name


async def newest_metadata(folder: str, reader: CatalogReader, empty: frozenset[str] = frozenset()) -> str:
    """Return the url of the newest metadata file in ``metadata/`` below ``folder``, other than those of ``empty``.

    Raises:
        ObjectNotFoundError: there is no such file.
        InvalidOptionError: two files have the highest number.
    """
    below = f"{folder.rstrip('/')}/metadata/"
    names = await reader.list_names(below)
    hinted = await _hinted(below, names, reader) if _HINT in names else None
    if hinted is not None and (_NAME.fullmatch(hinted) is None or below + hinted in empty):
        return below + hinted  # a name without a number, or what a writer says that it has committed
    matches = {
        name: match for name in names if (match := _NAME.fullmatch(name)) is not None and below + name not in empty
    }
    numbered = [(int(match[2]), name) for name, match in matches.items()]
    if not numbered:
        raise ObjectNotFoundError(
            "there is no Iceberg table: the folder has no metadata/*.metadata.json",
            url=safe_url(folder),
            hint="Pass the folder that has it, or load the table from its catalog with pyiceberg.",
        )
    highest = max(number for number, _ in numbered)
    newest = sorted(name for number, name in numbered if number == highest)
    if len(newest) > 1 and hinted not in newest:
        raise InvalidOptionError(
            f"two commits wrote metadata of number {highest}, and only the table's catalog knows which of them counts: "
            f"{', '.join(map(printable, newest[:2]))}",
            url=safe_url(folder),
            hint="Name one of the files, or load the table from its catalog with pyiceberg.",
        )
    return below + (hinted if hinted is not None and hinted in newest else newest[0])


async def _hinted(below: str, names: list[str], reader: CatalogReader) -> str | None:
    """Return the name of the metadata file in ``names`` that ``version-hint.text``, in the folder ``below``, gives
    by number or name; None if there is no such file, or the hint is empty, or longer than a name."""
    try:
        data = await reader.read_bytes(below + _HINT, at_most=_HINT_BYTES)
    except (NotParquetError, ResourceLimitError):  # empty, or too long
        return None
    text = data.decode("utf-8", "replace").strip()
    numbered = (f"v{text}.metadata.json", f"v{text}.gz.metadata.json", f"v{text}.metadata.json.gz")
    wanted = (*numbered, f"{text}.metadata.json", text)
    return next((name for name in wanted if name in names and name.endswith(ICEBERG_METADATA)), None)

"""The memory that one file of a table's metadata may take once it is decoded."""

from __future__ import annotations

from typing import Final

from asyncpq.errors import ResourceLimitError
from asyncpq.options import LimitOptions

_EXPANSION: Final = 256  # times its own size: checkpoints, manifests with hardly any statistics come near this


class MetadataBudget:
    """The bytes that one file may still decode to: at first ``max_decoded_bytes``, or 256 times the file's own bytes if
    that is more."""

    def __init__(self, file_bytes: int, limits: LimitOptions) -> None:
        expanded = _EXPANSION * file_bytes
        self.left: int = max(limits.max_decoded_bytes, expanded)
        self._bound = (
            f"max_decoded_bytes={limits.max_decoded_bytes} bytes"
            if expanded <= limits.max_decoded_bytes
            else f"{_EXPANSION} times its own {file_bytes} bytes"
        )

    def spend(self, num_bytes: int) -> None:
        """Take ``num_bytes`` from the budget. Raises ResourceLimitError, which names the bound, if it is exceeded."""
        self.left -= num_bytes
        if self.left < 0:
            raise ResourceLimitError(
                f"a file of the table's metadata decodes to more than {self._bound}",
                hint="If the file is as it must be, raise LimitOptions(max_decoded_bytes=...).",
            )

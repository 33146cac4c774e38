"""Parts of a column: pages as fetched, dictionaries and rows once decoded."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from asyncpq.errors import CorruptFileError


class Page(NamedTuple):
    """A data page as fetched.

    Attributes:
        data: header and payload.
        first_row: its first row, counted in the row group.
        num_rows: how many rows it must hold: planned from the OffsetIndex, or from its own header.
    """

    data: bytes
    first_row: int
    num_rows: int

    @property
    def stop_row(self) -> int:
        return self.first_row + self.num_rows


class Dictionary(NamedTuple):
    """A column chunk's dictionary, decoded once.

    Attributes:
        values: Arrow array of the dictionary's values, in the leaf's Arrow type.
        identity_page: a dictionary page that stands for the file's own where indices are decoded.
    """

    values: pa.Array
    identity_page: bytes

    @property
    def weight(self) -> int:
        return len(self.identity_page) + int(self.values.nbytes)


class LeafArray(NamedTuple):
    """Decoded rows of a leaf, still as dictionary indices where the pages were.

    Attributes:
        first_row: in the row group.
        values: the values, or int32 indices into ``dictionary``.
        dictionary: values of the dictionary, or None.
        lacks_dictionary: ``values`` are indices, but the dictionary is not here (:meth:`detached`).
    """

    first_row: int
    values: pa.Array
    dictionary: pa.Array | None
    lacks_dictionary: bool = False

    @property
    def stop_row(self) -> int:
        return self.first_row + len(self.values)

    @property
    def weight(self) -> int:
        """Bytes that ``values`` hold in memory, which is all that a :meth:`detached` array holds."""
        return int(self.values.nbytes)

    def detached(self) -> LeafArray:
        """The same for a cache: without the dictionary, which is kept, weighed and evicted by itself."""
        return self if self.dictionary is None else self._replace(dictionary=None, lacks_dictionary=True)

    def attached(self, dictionary: Dictionary | None, column: str) -> LeafArray:
        """Undo :meth:`detached` with the dictionary of the same column chunk.

        Raises:
            CorruptFileError: there is none.
        """
        if not self.lacks_dictionary:
            return self
        if dictionary is None:
            raise CorruptFileError("dictionary-encoded pages without a dictionary page", column=column)
        return self._replace(dictionary=dictionary.values, lacks_dictionary=False)

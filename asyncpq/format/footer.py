"""The end of a Parquet file: metadata, their length, magic (parquet-format README, File format).

A decoder without I/O: it is shown the bytes that the caller has from the end of the object, and says
which bytes it needs or where the metadata are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asyncpq.errors import CorruptFileError, NotParquetError, ResourceLimitError, UnsupportedFeatureError

MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"

TRAILER_BYTES: Final = 8  # 4 bytes length, 4 bytes magic
_OTHER_KIND = "It is another kind of file, or was cut off while being written."
_WEB_PAGE = "It is a web page: open the url in a browser, look for a login, and copy the link of the file itself."
_MIN_FILE_BYTES: Final = 12  # magic, length, magic


@dataclass(frozen=True, slots=True)
class NeedBytes:
    """The bytes ``[start, stop)`` of the object must be shown, up to its end."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FooterFound:
    """The metadata, which begin at the file offset ``start``; encrypted where the magic says so."""

    start: int
    metadata_bytes: bytes


class FooterDecoder:
    """Finds the metadata in the end of an object.

    Args:
        max_footer_bytes: longer metadata are a ResourceLimitError.
        encrypted: encrypted metadata are found, too; else they are an UnsupportedFeatureError.
    """

    def __init__(self, *, max_footer_bytes: int, encrypted: bool = False) -> None:
        self._max_footer_bytes = max_footer_bytes
        self._magics = (MAGIC, ENCRYPTED_MAGIC) if encrypted else (MAGIC,)

    def next(self, tail: bytes, tail_start: int, size: int) -> NeedBytes | FooterFound:
        """Look at the object's last bytes.

        Args:
            tail: the bytes ``[tail_start, size)`` of the object, as many as there are at hand.
            tail_start: offset of the first of them.
            size: bytes of the whole object.

        Returns:
            The metadata, or the range of bytes, always up to the end, to be shown next.

        Raises:
            NotParquetError: no Parquet magic at the end, or too short for any Parquet file.
            CorruptFileError: the magic is there, and the metadata's length is impossible.
            UnsupportedFeatureError: the metadata are encrypted.
            ResourceLimitError: they are longer than ``max_footer_bytes``.
        """
        if tail_start + len(tail) != size:
            raise ValueError(f"{len(tail)} bytes at {tail_start} are not the end of an object of {size} bytes")
        needed = min(size, TRAILER_BYTES)
        if len(tail) < needed:
            return NeedBytes(size - needed, size)
        magic = tail[-4:]
        if magic == ENCRYPTED_MAGIC and magic not in self._magics and size >= _MIN_FILE_BYTES:
            raise UnsupportedFeatureError(
                "the file's footer is encrypted", hint="Give open_file its decryption_properties=."
            )
        if magic not in self._magics:
            what = f"it ends in {magic!r}, not in {MAGIC!r}" if magic else "it is empty"
            web_page = tail[-1024:].rstrip().lower().endswith(b"</html>")
            raise NotParquetError(f"not a Parquet file: {what}", hint=_WEB_PAGE if web_page else _OTHER_KIND)
        if size < _MIN_FILE_BYTES:
            raise NotParquetError(f"not a Parquet file: {size} bytes are too few", hint="The file is cut off.")
        length = int.from_bytes(tail[-8:-4], "little")
        if length == 0 or length > size - _MIN_FILE_BYTES:
            raise CorruptFileError(
                f"the footer claims {length} bytes of metadata in a file of {size} bytes",
                byte_range=(size - TRAILER_BYTES, size),
                hint="The file is damaged or cut off.",
            )
        if length > self._max_footer_bytes:
            raise ResourceLimitError(
                f"the footer has {length} bytes of metadata, allowed are {self._max_footer_bytes}",
                byte_range=(size - TRAILER_BYTES, size),
                hint="Raise LimitOptions.max_footer_bytes if the file is trusted.",
            )
        start = size - TRAILER_BYTES - length
        if start < tail_start:
            return NeedBytes(start, size)
        return FooterFound(start, bytes(tail[start - tail_start : len(tail) - TRAILER_BYTES]))

"""Find the ends of ColumnChunk structs that have the fields and the lengths of earlier ones.

The chunks of a wide file differ in their numbers and values alone. A pattern made of one of them has no alternatives,
and so takes 40 % of the time of the pattern of all usual chunks: 0.7 against 1.8 microseconds. Repeated in one match of
a block of chunks, it takes 0.3, so :class:`ChunkPositions` has the positions of blocks, and finds those within a block
when one of its chunks is first used.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Final, overload

from asyncpq.parquet.thrift import BINARY, FALSE, I16, I32, I64, LIST, STOP, STRUCT, TRUE, CompactReader

BLOCK: Final = 16  # chunks
_MOST: Final = 4  # forms of chunks that are told apart: of columns of other types, and with names of other lengths
_MISSES: Final = 16  # chunks of further forms after which none is looked for
# of any length, which takes 5/6 of the time of VARINT: its length is checked when the chunk is decoded
_VARINT: Final = rb"[\x80-\xff]*+."
_MAX_STRUCT: Final = 2048  # bytes of a struct whose form is learnt; a form has a few times as many


class AlikeChunks:
    """Learns the forms of chunks. ``match`` is like ``re.Pattern.match`` of a pattern of these forms, and
    ``match_block`` of :data:`BLOCK` chunks of them; None as long as none is known, and once there are too many."""

    __slots__ = ("_forms", "_misses", "match", "match_block")

    def __init__(self) -> None:
        self._forms: tuple[bytes, ...] = ()
        self._misses = 0
        self.match: Callable[[bytes, int], re.Match[bytes] | None] | None = None
        self.match_block: Callable[[bytes, int], re.Match[bytes] | None] | None = None

    @property
    def is_hopeless(self) -> bool:
        """Whether the chunks have too many forms."""
        return self._misses > _MISSES

    def learn(self, data: bytes, start: int, stop: int) -> None:
        """Learn the form of the chunk ``data[start:stop]``, which :attr:`match` did not find. It is a valid struct."""
        form = _form(data, start, stop) if len(self._forms) < _MOST and stop - start <= _MAX_STRUCT else None
        if form is not None:
            self._forms = (*self._forms, form)
            self.match = _pattern(self._forms, 1).match
            self.match_block = _pattern(self._forms, BLOCK).match
        else:
            self._misses += 1
            if self.is_hopeless:
                self.match = self.match_block = None


class ChunkPositions(Sequence[int]):
    """The positions of the structs in a list, and the end of the last one.

    Args:
        data: the metadata's bytes.
        marks: the position of each :data:`BLOCK`-th struct, and the end of the last.
        length: the number of positions.
        alike: the forms of the structs.
        pass_struct: moves a reader past the struct at its position, whatever its form.
    """

    __slots__ = ("_alike", "_blocks", "_data", "_length", "_marks", "_pass_struct")

    def __init__(
        self,
        data: bytes,
        marks: array[int],
        length: int,
        alike: AlikeChunks,
        pass_struct: Callable[[CompactReader], object],
    ) -> None:
        self._data = data
        self._marks = marks
        self._length = length
        self._alike = alike
        self._pass_struct = pass_struct
        self._blocks: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        index %= self._length
        if index == self._length - 1:
            return self._marks[-1]
        block, within = divmod(index, BLOCK)
        if within == 0:
            return self._marks[block]
        positions = self._blocks.get(block)
        if positions is None:
            positions = self._blocks[block] = self._positions(block)
        return positions[within]

    def _positions(self, block: int) -> array[int]:
        data, match = self._data, self._alike.match
        pos, stop = self._marks[block], self._marks[block + 1]
        positions = array("q")
        while pos < stop:
            positions.append(pos)
            found = None if match is None else match(data, pos)
            if found is not None:
                pos = found.end()
            else:
                reader = CompactReader(data, pos)
                self._pass_struct(reader)
                pos = reader.pos
        return positions


def locate_alike(
    reader: CompactReader, length: int, alike: AlikeChunks, pass_struct: Callable[[CompactReader], object]
) -> ChunkPositions:
    """Return the positions of ``length`` structs from the reader's position on, and move the reader past them.

    ``pass_struct`` moves a reader past a struct of a form that is not known; ``alike`` learns it.
    """
    data, marks = reader.data, array("q", [reader.pos])
    for first in range(0, length, BLOCK):
        count = min(BLOCK, length - first)
        found = None if alike.match_block is None or count < BLOCK else alike.match_block(data, reader.pos)
        if found is not None:
            reader.pos = found.end()
        else:
            for _ in range(count):
                start = reader.pos
                found = None if alike.match is None else alike.match(data, start)
                if found is not None:
                    reader.pos = found.end()
                    continue
                pass_struct(reader)
                if not alike.is_hopeless and reader.pos - start > 1:  # not an empty struct
                    alike.learn(data, start, reader.pos)
        marks.append(reader.pos)
    return ChunkPositions(data, marks, length + 1, alike, pass_struct)


@functools.lru_cache(maxsize=32)
def _pattern(forms: tuple[bytes, ...], count: int) -> re.Pattern[bytes]:
    """Return the pattern of ``count`` structs of the forms. No struct has two of them, so nothing backtracks."""
    form = b"(?:" + b"|".join(forms) + b")"
    return re.compile(form if count == 1 else form + b"{%d}" % count, re.DOTALL)


def _form(data: bytes, start: int, stop: int) -> bytes | None:
    """Return the pattern of the struct ``data[start:stop]``: its headers and lengths, with any numbers and bytes. None
    if it has headers or values that a usual chunk does not have."""
    reader = CompactReader(data, start)
    form: list[bytes] = []
    try:
        _add_value(reader, STRUCT, form)
    except _UnusualError:
        return None
    return b"".join(form) if reader.pos == stop else None


class _UnusualError(Exception):
    """The struct is not that of a usual chunk."""


def _add_value(reader: CompactReader, kind: int, form: list[bytes]) -> None:
    data, start = reader.data, reader.pos
    if kind in (I16, I32, I64):
        reader.varint()
        form.append(_VARINT)
    elif kind == BINARY:
        length = reader.varint()
        form += [re.escape(data[start : reader.pos]), b".{%d}" % length]
        reader.pos += length
    elif kind == LIST:
        element, length = reader.list_header()
        form.append(re.escape(data[start : reader.pos]))
        if element in (TRUE, FALSE):  # a byte each, unlike those of fields
            raise _UnusualError
        for _ in range(length):
            _add_value(reader, element, form)
    elif kind == STRUCT:
        header = -1
        while header != STOP:
            header = data[reader.pos]
            if STOP < header < 0x10:  # a long one
                raise _UnusualError
            form.append(re.escape(data[reader.pos : reader.pos + 1]))
            reader.pos += 1
            _add_value(reader, header & 0x0F, form)
    elif kind not in (STOP, TRUE, FALSE):  # which have no bytes of their own
        raise _UnusualError

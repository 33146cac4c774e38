"""Damaged and oversized entries of files are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptIndexError
from asyncpq.indexing.build import file_rows as file_footers
from asyncpq.indexing.entry_encoding import by_file, decode_leaf, decode_made, decode_shared
from asyncpq.storage.base import Validator
from tests.indexing.file_in_memory import TABLE, WRITER, kept_of
from tests.lakes import FILE
from tests.random_tables import WriterOptions


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every footer is kept leaf by leaf."""
    monkeypatch.setattr(file_footers, "WHOLE_FOOTER_BYTES", 0)


@given(data=st.data(), split=st.booleans())
def test_damage_is_found_out(data: st.DataObject, split: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_footers, "WHOLE_FOOTER_BYTES", 0 if split else 1 << 20)
        entries = _entries(split)
    leaf, payload, decode = data.draw(st.sampled_from(entries))
    kind = data.draw(st.sampled_from(["flip", "cut", "more", "file", "leaf"]))
    at = data.draw(st.integers(0, len(payload) - 1))
    file = FILE
    if kind == "flip":
        payload = payload[:at] + bytes([payload[at] ^ 1 << data.draw(st.integers(0, 7))]) + payload[at + 1 :]
    elif kind == "cut":
        payload = payload[:at]
    elif kind == "more":
        payload += data.draw(st.binary(min_size=1, max_size=9))
    elif kind == "file":
        file += 1
    else:
        leaf += 1
    with pytest.raises(CorruptIndexError):
        decode(file, leaf, payload)


_kept: dict[bool, list[tuple[int, bytes, Any]]] = {}


def _entries(split: bool) -> list[tuple[int, bytes, Any]]:
    if split not in _kept:
        indexed = kept_of(WRITER.write(TABLE))
        bare = kept_of(WriterOptions(**{**vars(WRITER), "page_index": False}).write(TABLE))

        def shared(file: int, leaf: int, payload: bytes) -> None:
            if leaf != -1:
                raise CorruptIndexError("another leaf's")
            decode_shared(file, payload, 1 << 20)

        footers = by_file(indexed.footers)[FILE]
        _kept[split] = [(leaf, data, decode_leaf if leaf >= 0 else shared) for leaf, data in footers.items()]
        _kept[split] += [(leaf, data, decode_made) for leaf, data in by_file(bare.pages)[FILE].items()]
    return _kept[split]


@pytest.mark.usefixtures("split")
def test_a_footer_larger_than_allowed_is_refused() -> None:
    payload = by_file(kept_of(WRITER.write(TABLE)).footers)[FILE][-1]
    with pytest.raises(CorruptIndexError, match="max_footer_bytes=100"):
        decode_shared(FILE, payload, 100)


def test_a_footer_of_another_size_is_refused() -> None:
    kept = kept_of(WRITER.write(TABLE))
    with pytest.raises(CorruptIndexError, match="another version"):
        kept._replace(validator=Validator(size=kept.validator.size + 1)).known()

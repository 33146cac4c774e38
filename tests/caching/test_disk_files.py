"""A folder of entries against a dictionary: what is found is what was put last, whatever became of the files."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncpq.caching import disk_files
from asyncpq.caching.disk_files import EntryFolder, Outcome
from asyncpq.caching.entry_format import EntryCodec
from asyncpq.options import MIB
from tests.caching.disk_folders import entry_files, held_bytes

# keys that share sub-folders, and fill more than the budget
KEYS = st.integers(0, 40).map(lambda number: bytes([number % 5]) * 31 + bytes([number]))
SIZES = st.sampled_from([0, 1, 4048, 4049, 30_000, 130_000, 140_000])
WRITERS = st.integers(0, 1)


class Folder(RuleBasedStateMachine):
    """Two processes' views of one folder, one after the other."""

    @initialize()
    def start(self) -> None:
        self.path = Path(tempfile.mkdtemp()) / "cache"
        self.views = [EntryFolder(str(self.path), MIB, EntryCodec(None)) for _ in range(2)]
        self.known: dict[bytes, list[bytes]] = {}  # the value; after exchanges, all that were put: one may come back
        self.puts = 0
        self.uncounted = False  # something came by another way than put
        self.exchanged = False

    def teardown(self) -> None:
        if hasattr(self, "path"):
            shutil.rmtree(self.path.parent)

    @rule(view=WRITERS, keys=st.lists(KEYS, max_size=6, unique=True), size=SIZES)
    def put(self, view: int, keys: list[bytes], size: int) -> None:
        self.puts += 1
        values = {key: self.puts.to_bytes(8, "little") + key + bytes(size) for key in keys}
        outcome = self.views[view].write_many(values)
        assert outcome.error is None
        if size < MIB // 8 - 100:
            for key, value in values.items():
                self.known[key] = [*(self.known.get(key, ()) if self.exchanged else ()), value]

    @rule(view=WRITERS, keys=st.lists(KEYS, max_size=10))
    def read(self, view: int, keys: list[bytes]) -> None:
        outcome = self.views[view].read_many(keys, Outcome([None] * len(keys)))
        assert outcome.error is None
        for key, value in zip(keys, outcome.values, strict=True):
            assert value in (None, *self.known.get(key, ()))

    @rule(key=KEYS)
    def drop(self, key: bytes) -> None:
        assert self.views[0].drop(key).error is None
        if not self.exchanged:
            self.known.pop(key, None)

    @rule(which=st.integers(0, 100), place=st.integers(0, 200_000), bits=st.integers(1, 255))
    def flip(self, which: int, place: int, bits: int) -> None:
        files = [path for path in entry_files(self.path) if path.stat().st_size]
        if files:
            path = files[which % len(files)]
            data = bytearray(path.read_bytes())
            data[place % len(data)] ^= bits
            path.write_bytes(data)

    @rule(which=st.integers(0, 100), size=st.integers(0, 200_000))
    def cut_or_lengthen(self, which: int, size: int) -> None:
        files = entry_files(self.path)
        if files and size < MIB // 8:
            os.truncate(files[which % len(files)], size)
            self.uncounted = True

    @rule(one=st.integers(0, 100), other=st.integers(0, 100))
    def exchange(self, one: int, other: int) -> None:
        files = entry_files(self.path)
        if files:
            shutil.copyfile(files[one % len(files)], files[0].with_name("copy"))
            os.replace(files[0].with_name("copy"), files[other % len(files)])
            self.uncounted = self.exchanged = True

    @rule(ages=st.lists(st.integers(-10_000, 10_000), max_size=10))
    def age(self, ages: list[int]) -> None:
        for path, age_s in zip(entry_files(self.path), ages, strict=False):
            os.utime(path, (0, time.time() - age_s))

    @rule(number=st.integers(0, 255))
    def forget_usage(self, number: int) -> None:
        (self.path / f"{number % 5:02x}.usage").unlink(missing_ok=True)
        self.uncounted = True

    @rule(number=st.integers(0, 4))
    def remove_subfolder(self, number: int) -> None:
        shutil.rmtree(self.path / f"{number:02x}", ignore_errors=True)

    @invariant()
    def within_budget(self) -> None:
        # each view may write 1/256 of the budget before it looks again
        if hasattr(self, "path") and not self.uncounted:
            assert held_bytes(self.path) <= MIB + MIB // 256


# without shrinking, which takes minutes
Folder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
TestFolder = pytest.mark.heavy(Folder.TestCase)


def test_a_folder_that_has_far_too_much_is_trimmed_by_many_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the budget of 200,000 entries kept one write for 16 s."""
    monkeypatch.setattr(disk_files, "MOST_EVICTED", 8)
    monkeypatch.setattr(disk_files, "SAMPLE_ENTRIES", 16)
    path, codec = tmp_path / "cache", EntryCodec(None)
    keys = [bytes([number]) * 32 for number in range(200)]
    EntryFolder(str(path), MIB, codec).write_many(dict.fromkeys(keys, b"value"))
    smaller, new = EntryFolder(str(path), 100 * disk_files.BLOCK_BYTES, codec), {b"n" * 32: b"new", b"m" * 32: b"new"}
    evicted: list[int] = []
    while smaller.read_many(list(new), Outcome([None, None])).values != [b"new", b"new"]:
        evicted.append(smaller.write_many(new).evicted)
        assert evicted[-1] <= 8 + 16 // 4 + 1, "those of a sample more"
    assert len(evicted) > 5
    assert held_bytes(path) <= 100 * disk_files.BLOCK_BYTES

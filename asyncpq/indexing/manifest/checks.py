"""Checks of what a decoded manifest says, so that code that uses its members need not check them again.

The functions raise ValueError, which :func:`asyncpq.indexing.manifest.manifest.decode` reports as a damaged manifest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from asyncpq.indexing.index_model import IndexTable, Segment
from asyncpq.indexing.key_encoding import MAX_GRAM_BYTES

#: A segment's name is part of an object's name, which must not lead out of the index's folder.
_NAME: Final = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,200}")
_TEXTS: Final = ("footer", "whole", "digest", "directory")
_COUNTS: Final = ("tail", "packed")

#: By kind, how many columns a table has at least and at most.
_COLUMNS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("files", "footers", "pages", "manifest"), (0, 0)),
    **dict.fromkeys(("bounds", "set", "ngram", "text", "bloom"), (1, 1)),
    "keys": (1, 1 << 16),
}

_ANY_NUMBER: Final = ((int,), 1, (1 << 63) - 1)
#: By kind and name: types, least and greatest value of the options that lookups and builds use.
_OPTIONS: Final[Mapping[tuple[str, str], tuple[tuple[type, ...], float, float]]] = {
    ("ngram", "n"): ((int,), 1, MAX_GRAM_BYTES),
    ("ngram", "max_ngrams"): _ANY_NUMBER,
    ("set", "max_values"): _ANY_NUMBER,
    ("keys", "max_postings"): _ANY_NUMBER,
    ("bloom", "fpp"): ((int, float), 1e-6, 0.5),
}


def check_table(index_table: IndexTable) -> None:
    """Check that a table has as many columns as its kind can have, and the options that lookups use."""
    least, most = _COLUMNS[index_table.kind]
    if not least <= len(index_table.columns) <= most:
        raise ValueError(f"a table of kind {index_table.kind!r} has {len(index_table.columns)} columns")
    if len({name for name, _ in index_table.options}) < len(index_table.options):
        raise ValueError(f"a table of kind {index_table.kind!r} has two options of one name")
    for name, value in index_table.options:
        types, lowest, highest = _OPTIONS.get((index_table.kind, name), ((), 0, 0))
        if types and not (type(value) in types and lowest <= value <= highest):
            raise ValueError(f"a table of kind {index_table.kind!r} has {name}={value!r}")
    if index_table.kind == "ngram" and "n" not in dict(index_table.options):
        raise ValueError("a table of n-grams does not say how long they are")


def check_segment(segment: Segment) -> None:
    """Check a segment's name, and those members of its ``extra`` that backends use."""
    if not _NAME.fullmatch(segment.name):
        raise ValueError(f"{segment.name!r} is not the name of a segment")
    extra = segment.extra
    for name in _TEXTS:
        if name in extra and not isinstance(extra[name], str):
            raise ValueError(f"the member {name!r} of a segment's extra is {extra[name]!r}, expected a string")
    counts = [extra[name] for name in _COUNTS if name in extra]
    if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) > segment.size:
        raise ValueError(f"the footer of segment {segment.name} has other bytes than the segment")


def check_dataset(dataset: Mapping[str, Any], partitions: Sequence[str], schema: pa.Schema) -> None:
    """Check the indexed dataset's description: the target of its files, and how their paths name partitions."""
    target, partitioning = dataset.get("target"), dataset.get("partitioning")
    is_list = isinstance(target, list) and target != [] and all(isinstance(url, str) and url for url in target)
    if (target is not None or dataset.get("kind") == "files" or partitioning is not None) and not (
        is_list or (isinstance(target, str) and target)
    ):
        raise ValueError(f"the dataset's target is {target!r}, expected a url or a list of urls")
    if partitioning not in (None, "hive") and not (
        isinstance(partitioning, list) and all(isinstance(name, str) for name in partitioning)
    ):
        raise ValueError(f"the dataset's partitioning is {partitioning!r}")
    if partitioning is not None:
        for name in partitions:
            if schema.get_field_index(name) < 0:
                raise ValueError(f"the partition column {name!r} is not in the dataset's schema once")

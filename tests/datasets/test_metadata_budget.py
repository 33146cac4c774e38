"""What a file of a table's metadata may decode to: a fixed number of bytes, or a multiple of its own."""

from __future__ import annotations

import pytest

from asyncpq.datasets.metadata_budget import MetadataBudget
from asyncpq.errors import ResourceLimitError
from asyncpq.options import LimitOptions


@pytest.mark.parametrize(
    ("file_bytes", "most", "bound"),
    [(10, 4096, "max_decoded_bytes=4096 bytes"), (100, 25_600, "256 times its own 100 bytes")],
)
def test_the_larger_bound_holds_and_is_named(file_bytes: int, most: int, bound: str) -> None:
    budget = MetadataBudget(file_bytes, LimitOptions(max_decoded_bytes=4096))
    budget.spend(most - 1)
    budget.spend(1)
    assert budget.left == 0
    with pytest.raises(ResourceLimitError, match=f"decodes to more than {bound}"):
        budget.spend(1)

"""Rules of lint at their limits: when they say nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncpq.reports.cures import CURES
from asyncpq.reports.lint_rules import RULES, cost_text, listed, severity
from asyncpq.reports.lookup_cost import LookupCost, Zone, truncated
from tests.reports.lookups import encoded, finding, linted, measured, rules, trips


def zone(low: bytes, high: bytes) -> Zone:
    return Zone(0, 1, low, high)


def test_truncated_bounds() -> None:
    prefix = b"https://example.com/"
    assert truncated([zone(prefix, prefix[:-1] + b"0")] * 2)
    assert not truncated([zone(prefix + b"a", prefix + b"b" * 3), zone(prefix + b"c" * 5, b"i")])
    assert not truncated([zone(b"a", b"a")] * 5)
    assert not truncated([Zone(0, 1, 1, 1)] * 5)


def test_each_rule_says_what_it_looks_at() -> None:
    assert all(rule.__doc__ for rule in RULES)


async def test_a_file_of_one_row_group_in_order_needs_no_sorting() -> None:
    data = encoded(trips(), row_group_size=None, write_page_index=False)
    assert "random-order" not in rules(await linted(data, ["id"]))


async def test_random_order_without_statistics_is_a_matter_of_statistics_first() -> None:
    found = rules(await linted(encoded(trips(), write_statistics=["amount"]), ["user"]))
    assert "no-statistics" in found or found == []
    assert "random-order" not in found


@pytest.mark.heavy
async def test_bloom_filters_make_up_for_random_order() -> None:
    table = trips()
    options = {"row_group_size": 20_000, "write_page_index": False, "compression": "none"}
    bare = finding(await linted(encoded(table, **options), ["user"]), "no-bloom-filter")
    blooms = encoded(table, **options, bloom_filter_options={"user": {"ndv": 20_000, "fpp": 0.01}})
    left = [
        cause
        for cause in (await linted(blooms, ["user"]))["findings"]
        if cause["id"] in ("random-order", "no-bloom-filter")
    ]
    assert bare["saves_bytes"] is not None
    assert sum(cause["saves_bytes"] or 0 for cause in left) < bare["saves_bytes"] / 4


@pytest.mark.parametrize("type_", [pa.bool_(), pa.null(), pa.list_(pa.int64()), pa.float16(), pa.decimal128(30, 2)])
async def test_keys_of_unusual_types(type_: pa.DataType) -> None:
    values = pa.nulls(5000, type_)
    data = encoded(pa.table({"key": values, "id": range(5000)}), use_dictionary=False)
    await linted(data, ["key"])


async def test_dictionaries_of_arrow() -> None:
    texts = pa.array(["a", "b"] * 2500).dictionary_encode()
    await linted(encoded(pa.table({"key": texts, "id": range(5000)}), use_dictionary=False))


async def test_pages_without_any_bounds() -> None:
    """Their row groups have some, so that there are keys, and nothing to take them from."""
    table = trips().slice(0, 50_000)
    assert rules(await linted(encoded(table, write_statistics=["amount"], row_group_size=10_000), ["note"])) is not None


def test_there_is_a_cure_for_each_rule() -> None:
    assert len(CURES) >= 15


@pytest.mark.heavy
async def test_pages_whose_bounds_are_not_known() -> None:
    """Pages of nothing but empty strings have bounds that some writers also write for other pages. Nulls have not."""
    texts = [
        "" if row // 2048 % 3 else f"{row:09} {row * 7919 % 1000003:09} {row * 104729:015}" for row in range(200_000)
    ]
    options = {"max_rows_per_page": 2048, "use_dictionary": False, "compression": "none", "row_group_size": None}
    table = pa.table({"key": texts, "note": trips()["note"].slice(0, 200_000)})
    cured = table.set_column(0, "key", pa.array([text or None for text in texts]))
    cause = finding(await linted(encoded(table, **options), ["key"]), "missing-bounds")
    assert "65 of 98 pages have no bounds" in cause["detail"]
    keys = [text for text in texts if text]
    chosen = keys[:: len(keys) // 5]
    before, after = [await measured(encoded(of, **options), "key", table, chosen) for of in (table, cured)]
    assert cause["saves_requests"] == pytest.approx(before.requests - after.requests, rel=0.2)
    assert cause["saves_bytes"] == pytest.approx(before.num_bytes - after.num_bytes, rel=0.2)
    assert "missing-bounds" not in rules(await linted(encoded(cured, **options), ["key"]))


@pytest.mark.parametrize(("share", "text"), [(0.9, "high"), (0.4, "high"), (0.2, "medium"), (0.05, "low"), (0, "low")])
def test_severities(share: float, text: str) -> None:
    assert severity(share) == text


def test_texts() -> None:
    assert cost_text(LookupCost(2.25, 1234567.4, 0.1)) == "2.2 requests and 1,234,567 bytes"
    assert cost_text(LookupCost(12.0, 0.0, 0.1)) == "12 requests and 0 bytes"
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(number) for number in range(7)]) == "0, 1, 2, 3, 4 and 2 more"

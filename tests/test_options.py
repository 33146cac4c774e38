"""Options refuse values that cannot work, and name the option and its rule."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

import asyncpq
from asyncpq.options import SessionOptions

CLASSES: list[type[Any]] = [
    asyncpq.RequestOptions,
    asyncpq.RetryOptions,
    asyncpq.LimitOptions,
    asyncpq.ReadOptions,
    asyncpq.BuildOptions,
]


@pytest.mark.parametrize("kind", CLASSES)
def test_options_are_frozen_and_changed_by_copies(kind: type[Any]) -> None:
    options = kind()
    name = fields(kind)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(options, name, 1)
    assert replace(options) == options
    assert pickle.loads(pickle.dumps(options)) == options


NUMBERS = [
    pytest.param(kind, field.name, id=f"{kind.__name__}.{field.name}")
    for kind in CLASSES
    for field in fields(kind)
    if type(getattr(kind(), field.name)) in (int, float)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("bad", [-1, "many"], ids=["negative", "text"])
def test_numbers_out_of_range_are_refused_by_name(kind: type[Any], name: str, bad: object) -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match=f"^{name}={bad!r}: must be"):
        kind(**{name: bad})


WHOLE_NUMBERS = [
    pytest.param(kind, required, field.name, id=f"{kind.__name__}.{field.name}")
    for kind, required in [
        *((kind, {}) for kind in (*CLASSES, SessionOptions)),
        (asyncpq.DiskCacheOptions, {"path": "cache"}),
        (asyncpq.SharedCacheOptions, {"url": "valkey://host"}),
    ]
    for field in fields(kind)
    if field.type in ("int", "int | None")
]


@pytest.mark.parametrize(("kind", "required", "name"), WHOLE_NUMBERS)
@pytest.mark.parametrize("bad", [2e9, 2e9 + 0.5, math.inf, math.nan, True], ids=str)
def test_counts_and_sizes_are_whole_numbers(kind: type[Any], required: dict[str, Any], name: str, bad: object) -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match=f"^{name}={re.escape(repr(bad))}: must be a whole number"):
        kind(**required, **{name: bad})


def test_latency_and_bandwidth_are_finite() -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match=r"^bandwidth_bytes_s=inf: must be finite"):
        asyncpq.RequestOptions(bandwidth_bytes_s=math.inf)
    with pytest.raises(asyncpq.InvalidOptionError, match=r"^latency_s=inf: must be finite"):
        asyncpq.RequestOptions(latency_s=math.inf)


@pytest.mark.parametrize(
    ("kind", "values", "rule"),
    [
        (asyncpq.RequestOptions, {"late_materialization": "perhaps"}, 'must be "auto", "always" or "never"'),
        (asyncpq.RetryOptions, {"hedge_ratio": 1.5}, "must not be more than 1"),
        (asyncpq.LimitOptions, {"max_connections": 4, "lookup_connections": 4}, "must be less than max_connections=4"),
        (asyncpq.ReadOptions, {"verify_crc": 1}, "must be True or False"),
        (asyncpq.ReadOptions, {"extension_types": {"a"}}, "must be a frozenset of names"),
        (asyncpq.DiskCacheOptions, {"path": ""}, "must be the path of a folder"),
        (asyncpq.CachePolicy, {"kind": "sometimes"}, 'must be "etag", "ttl" or "immutable"'),
        (SessionOptions, {"cache_policy": {"*": "etag"}}, "must be a CachePolicy, or a mapping"),
        (SessionOptions, {"cache_policy": "etag"}, r"Write asyncpq\.etag\(5\), "),
        (SessionOptions, {"limits": None}, "must be a LimitOptions"),
        (SessionOptions, {"retry": 3}, r"must be a RetryOptions\. Write retry=asyncpq\.RetryOptions\(\.\.\.\)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_rules(kind: type[Any], values: dict[str, Any], rule: str) -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match=rule):
        kind(**values)


def test_secrets_of_a_shared_cache_are_not_shown() -> None:
    options = asyncpq.SharedCacheOptions(url="valkey://user:SECRET@host", secret="SECRET")
    assert "SECRET" not in repr(options)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(options)
    bads: list[dict[str, Any]] = [{"url": "SECRET"}, {"url": "valkey://host", "secret": ""}]
    for bad in bads:
        with pytest.raises(asyncpq.InvalidOptionError) as caught:
            asyncpq.SharedCacheOptions(**bad)
        assert "SECRET" not in str(caught.value)


def test_the_first_pattern_that_matches_has_the_policy() -> None:
    options = SessionOptions(cache_policy={"s3://cold/*": asyncpq.immutable(), "s3://*": asyncpq.ttl(9.0)})
    assert options.policy("s3://cold/a") == asyncpq.immutable()
    assert options.policy("s3://hot/a") == asyncpq.ttl(9.0)
    assert options.policy("/local", "s3://hot/a") == asyncpq.ttl(9.0)
    assert options.policy("/local") == asyncpq.etag()


def test_a_whole_float_is_told_from_a_wrong_size() -> None:
    for value, hint in [(2e6, r"int\(2000000\.0\)"), (-2e6, None), (0.5, None), (math.inf, None), (math.nan, None)]:
        sizes: Any = {"memory_cache_bytes": value}
        with pytest.raises(asyncpq.InvalidOptionError, match=r"^memory_cache_bytes=.*: must be a whole") as caught:
            SessionOptions(**sizes)
        assert (caught.value.hint is None) if hint is None else re.search(hint, str(caught.value.hint))

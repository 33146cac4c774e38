"""The check of installed packages that runs where asyncpq was shipped."""

from __future__ import annotations

import sys

import pytest

from asyncpq.spark.requirements import check


def test_installed_packages_pass() -> None:
    check({"pyarrow": "1.0", "pytest": "1"})


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ImportError, match=r"lacks asyncpq_nothing>=1\.0 \(is missing\)") as raised:
        check({"asyncpq_nothing": "1.0"})
    assert raised.value.name == "asyncpq_nothing"
    assert sys.executable in str(raised.value)


def test_a_package_that_is_too_old_is_named_with_its_version() -> None:
    with pytest.raises(ImportError, match=r"lacks pyarrow>=9999\.1 \(is \d+\."):
        check({"pyarrow": "9999.1"})

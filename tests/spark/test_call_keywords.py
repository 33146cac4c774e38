"""Keyword arguments of functions: which there are, and which are settings."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from asyncpq.errors import InvalidOptionError
from asyncpq.spark.call_keywords import LakeBuildKeywords, ScanKeywords, TableKeywords, split_settings
from asyncpq.spark.joins import OpenKeywords
from asyncpq.spark.optimize_lake import OptimizeLakeKeywords
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.settings import SETTING_NAMES, SettingKeywords


def test_all_settings_are_arguments() -> None:
    assert sorted(SettingKeywords.__annotations__) == sorted(SETTING_NAMES)
    others = {"target", "index", "view"}
    assert LakeTarget.__dataclass_fields__.keys() - others == ScanKeywords.__annotations__.keys() - {*SETTING_NAMES}


def test_settings_and_arguments_of_the_dataset() -> None:
    assert split_settings({"format": "delta", "split_bytes": 5}, ScanKeywords) == (
        {"format": "delta"},
        {"split_bytes": 5},
    )
    assert split_settings({}, LakeBuildKeywords) == ({}, {})


@pytest.mark.parametrize(
    ("known", "name", "meant"),
    [
        (ScanKeywords, "on_bad_files", "on_bad_file"),
        (ScanKeywords, "split_byte", "split_bytes"),
        (TableKeywords, "schema", "The settings are"),
        (LakeBuildKeywords, "partition_type", "partition_types"),
        (OpenKeywords, "batch_key", "batch_keys"),
        (OptimizeLakeKeywords, "bloom_filter", "bloom_filters"),
    ],
)
def test_unknown_arguments_are_refused_with_the_nearest_name(known: type, name: str, meant: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"no argument '{name}'") as raised:
        split_settings({name: 1}, known)
    assert meant in str(raised.value)

"""Values in paths as Spark has them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, StringType

from asyncpq import DataFile
from asyncpq.datasets.providers import GivenFiles
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.reads.file_reads import PartitionTypes, SparkFiles, texts_in_paths
from asyncpq.spark.types.read_conf import ReadConf

_CONF = ReadConf()
_FILES = [
    DataFile(url="s3://lake/p=1/q=a%20b/0.parquet", partition={"p": 1, "q": "a b"}),
    DataFile(url="s3://lake/p=02/q=%C3%A4/1.parquet", partition={"p": 2, "q": "ä"}),
]
_NO_OPERATION: Any = None


def test_texts_keep_their_escapes() -> None:
    assert texts_in_paths(_FILES, ["p", "q"], _CONF, hive=True) == {"p": {"1", "02"}, "q": {"a%20b", "%C3%A4"}}
    by_value = [DataFile(url="s3://lake/1/x.parquet", partition={"p": "5%"})]
    assert texts_in_paths(by_value, ["p"], _CONF, hive=False) == {"p": {"5%25"}}
    named = [DataFile(url="s3://lake/%C3%A4=1/x.parquet", partition={"ä": 1})]
    with pytest.raises(UnsupportedFeatureError, match="Spark reads the column name"):
        texts_in_paths(named, ["ä"], _CONF, hive=True)


async def test_files_have_sparks_values() -> None:
    types = PartitionTypes((("p", IntegerType()), ("q", StringType())), hive=True)
    files = SparkFiles(GivenFiles(_FILES), _CONF, types)
    found = await files.files(ScanRequest(), _NO_OPERATION)
    assert [file.partition for file in found.files] == [{"p": 1, "q": "a b"}, {"p": 2, "q": "Ã¤"}]
    typed = SparkFiles(GivenFiles(_FILES), _CONF, types, typed=True)
    assert (await typed.files(ScanRequest(), _NO_OPERATION)).files == _FILES

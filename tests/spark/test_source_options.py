"""Options of the source: what they mean, in any case of their names, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from asyncpq.errors import AsyncpqError, ExpressionError, InvalidOptionError
from asyncpq.expressions import col, parse_filters
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.source_options import SourceOptions, predicate_option
from asyncpq.spark.types.read_conf import ReadConf


def test_what_becomes_of_digits_is_no_option() -> None:
    with pytest.raises(InvalidOptionError, match="no option 'timestamploss'"):
        _parse(timestampLoss="error")


def _parse(streaming: bool = False, **options: str) -> SourceOptions:
    return SourceOptions.parse({"path": "s3://b/lake/", **options}, streaming=streaming)


def test_names_come_in_any_case() -> None:
    given = {
        "PATH": "s3://b/lake/",
        "Columns": "a, b",
        "splitbytes": "1000000",
        "mergeSCHEMA": "True",
        "VIEW": "LISTED",
    }
    options = SourceOptions.parse(given)
    assert options.lake == LakeTarget(target="s3://b/lake/", view="listed")
    assert options.columns == ("a", "b")
    assert options.settings == SparkSettings(split_bytes=1_000_000)
    assert options.conf == ReadConf(merge_schema=True)


def test_defaults() -> None:
    options = _parse()
    assert options == SourceOptions(lake=LakeTarget(target="s3://b/lake/"))
    assert options.conf == ReadConf()
    assert options.settings == SparkSettings()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"path": "s3://b/a/"}, "s3://b/a/"),
        ({"paths": '["s3://b/a", "s3://b/c"]'}, ["s3://b/a", "s3://b/c"]),
        ({"paths": '["s3://b/a"]'}, "s3://b/a"),
    ],
)
def test_targets(given: dict[str, str], expected: object) -> None:
    assert SourceOptions.parse(given).lake.target == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("a", ("a",)), ("a,b ", ("a", "b")), ('["a", "b,c", " d"]', ("a", "b,c", " d"))]
)
def test_columns(text: str, expected: tuple[str, ...]) -> None:
    assert _parse(columns=text).columns == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("6712345678901234567", 6712345678901234567),
        ("2024-05-01T12:00:00Z", datetime(2024, 5, 1, 12, tzinfo=UTC)),
        ("main", "main"),
    ],
)
def test_versions(text: str, expected: object) -> None:
    assert _parse(format="iceberg", version=text).lake.version == expected


def test_options_of_many_kinds() -> None:
    options = _parse(
        index="s3://b/index/",
        format="Delta",
        pushdown="TRUE",
        where="a > 5",
        caseSensitive="true",
        datetimeRebaseMode="legacy",
        sessionTimeZone="Europe/Berlin",
        credentialsProvider="my.module:function",
    )
    assert (options.lake.index, options.lake.format) == ("s3://b/index/", "delta")
    assert (options.pushdown, options.where) == (True, "a > 5")
    assert options.conf == ReadConf(
        case_sensitive=True, datetime_rebase_mode="LEGACY", session_time_zone="Europe/Berlin"
    )
    assert options.settings.credentials_provider == "my.module:function"
    assert _parse(index="False").lake.index is False


VALUES: list[Any] = [
    1,
    -0.0,
    float("inf"),
    "text",
    True,
    b"\0\xff",
    date(2024, 5, 1),
    datetime(2024, 5, 1, 12, 30, 0, 5),
    datetime(2024, 5, 1, 12, 30, tzinfo=UTC),
    Decimal("1.20"),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_keep_their_types(value: Any) -> None:
    for where in ([("a", ">=", value)], [[("a", "==", value)], [("b", "in", [value, value])]]):
        assert repr(_parse(predicate=predicate_option(where)).where) == repr(parse_filters(where))


def test_predicates_of_plain_json() -> None:
    where = _parse(predicate='[["d", ">=", {"date": "2024-05-01"}], ["f", "<", {"float": "nan"}]]').where
    assert repr(where) == repr((col("d") >= date(2024, 5, 1)) & (col("f") < float("nan")))


@pytest.mark.parametrize("where", [[], [("a", "~", 1)], col("a") == 1, [("a", "==", object())]])
def test_no_predicate(where: object) -> None:
    with pytest.raises(ExpressionError):
        predicate_option(where)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604800), ("90 m", 5400), ("1500", 1.5), ("2H", 7200), ("10s", 10), ("5ms", 0.005)]
)
def test_ages(text: str, seconds: float) -> None:
    assert _parse(streaming=True, maxFileAge=text).max_file_age_s == seconds


def test_options_of_streams() -> None:
    options = _parse(streaming=True, maxFilesPerTrigger="5", ignoreMissingFiles="true")
    assert (options.max_files, options.max_bytes, options.conf.ignore_missing_files) == (5, None, True)


WRONG: list[tuple[dict[str, str], str]] = [
    ({"collumns": "a"}, "no option 'collumns'"),
    ({"paths": '["a"]'}, "paths"),
    ({"columns": ""}, "columns"),
    ({"columns": "[1]"}, "columns"),
    ({"columns": "[a"}, "must be JSON"),
    ({"predicate": "a > 5"}, "must be JSON"),
    ({"predicate": '[["a", "==", {"day": "2024-05-01"}]]'}, "is not a value"),
    ({"predicate": '[["a", "==", {"date": "2024-05-41"}]]'}, "is not a valid date"),
    ({"predicate": '[["a", "==", {"decimal": "x"}]]'}, "is not a valid decimal"),
    ({"predicate": '[["a", "=="]]'}, "tuple"),
    ({"predicate": '[["a", "==", 1]]', "where": "a = 1"}, "one of them"),
    ({"index": ""}, "index"),
    ({"view": "newest"}, "must be one of"),
    ({"format": "hudi"}, "must be one of"),
    ({"pushdown": "yes"}, "true or false"),
    ({"mergeSchema": "1"}, "true or false"),
    ({"int96RebaseMode": "julian"}, "must be one of"),
    ({"splitBytes": "many"}, "whole number"),
    ({"maxFilesPerTrigger": "5"}, "readStream"),
    ({"secretAccessKey": "x"}, "credentialsProvider"),
    ({"storageOptions": json.dumps({"secret": "x"})}, "credential"),
    ({"path": "https://user:password@host/a.parquet"}, "credential"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(AsyncpqError, match=message) as caught:
        SourceOptions.parse({"path": "s3://b/lake/", **given})
    assert "password" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"maxFilesPerTrigger": "0"},
        {"maxBytesPerTrigger": "1.5"},
        {"maxFileAge": "soon"},
        {"maxFilesPerTrigger": "1", "maxBytesPerTrigger": "1"},
    ],
    ids=str,
)
def test_what_streams_refuse(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError):
        _parse(streaming=True, **given)


@pytest.mark.parametrize("given", [{}, {"paths": "[]"}, {"paths": '"a"'}, {"path": ""}], ids=str)
def test_nothing_to_read(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError):
        SourceOptions.parse(given)


def test_options_of_a_table_of_the_catalog() -> None:
    # as Spark 4.3 gives them for CREATE TABLE ... USING asyncpq OPTIONS (path '/lake', caseSensitive 'true')
    given = {"location": "file:/lake", "owner": "me", "path": "file:/lake", "provider": "asyncpq"}
    given |= {"option.casesensitive": "true", "casesensitive": "true"}
    options = SourceOptions.parse(given)
    assert options == SourceOptions(lake=LakeTarget(target="file:///lake"), conf=ReadConf(case_sensitive=True))

"""A text in double quotes, which name columns in SQL: the error says how text is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.blocking import BlockingDataset, BlockingFile, BlockingSession

HINT = "In SQL, double quotes name columns, and text stands in single quotes: "


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ('user = "u-1"', "'u-1'"),
        ('"u-1" <> user', "'u-1'"),
        ('id = 1 AND (id = 2 OR user >= "it\'s")', "'it''s'"),
        ('user BETWEEN "a" AND "b"', "'a'"),
        ('user IS NOT DISTINCT FROM "u-1"', "'u-1'"),
        ('user IN ("u-1", "u-2")', "'u-1'"),
        ('user LIKE "u%"', "'u%'"),
        ('starts_with(user, "u")', "'u'"),
        ('list_contains(tags, "u")', "'u'"),
        ("user = u1", "'u1'"),
        (f'user = "{"x" * 99}"', f"'{'x' * 60}...'"),
    ],
)
def test_a_text_in_double_quotes(tmp_path: Path, where: str, shown: str, many: bool) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "user": ["u-1"], "tags": [["u"]]}), path)
    with BlockingSession() as session:
        opened: BlockingFile | BlockingDataset = session.open_dataset([path]) if many else session.open_file(path)
        with pytest.raises(asyncpq.QueryError) as caught:
            opened.count(where)
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(f"{HINT}{shown}.")


def test_a_mistyped_column_is_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "user": ["u-1"]}), tmp_path / "a.parquet")
    with BlockingSession() as session, pytest.raises(asyncpq.ColumnNotFoundError) as caught:
        session.open_file(tmp_path / "a.parquet").count("\"usr\" = 'u-1'")
    assert caught.value.hint == "Did you mean 'user'?"

"""What a plan says of one file."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from asyncpq.datasets.model import DataFile, IndexEntry, TableField
from asyncpq.distributed.scan_planning import plan_unopened
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.storage.base import Validator

_STRONG = Validator(size=1000, etag='"e"')
_FILE = DataFile(url="s3://lake/a.parquet", validator=_STRONG, num_rows=7, partition={"p": 1}, immutable=True)


def test_a_file_of_a_known_version_is_planned_unopened() -> None:
    planned = plan_unopened(_FILE, 1000, 0.25)
    assert planned is not None
    assert (planned.url, planned.validator, planned.rows, planned.filtered) == (_FILE.url, _STRONG, None, False)
    assert (planned.num_rows, planned.num_bytes, planned.partition, planned.immutable) == (7, 250, {"p": 1}, True)


@pytest.mark.parametrize(
    "file",
    [
        replace(_FILE, validator=None),
        replace(_FILE, validator=Validator(size=1000, etag='W/"e"')),
        replace(_FILE, validator=replace(_STRONG, size=1001)),
        replace(_FILE, content=b"PAR1"),
        replace(_FILE, fields=(TableField(name="a", type=None, names=("b",)),)),
        replace(_FILE, entry=IndexEntry(access=AccessPlan.row_groups([0]))),
    ],
    ids=["no version", "weak", "large", "inline", "other columns", "some rows"],
)
def test_other_files_are_opened(file: DataFile) -> None:
    assert plan_unopened(file, 1000, 1.0) is None


def test_an_index_that_selects_all_rows_changes_nothing() -> None:
    assert plan_unopened(replace(_FILE, entry=IndexEntry()), 1000, 1.0) == plan_unopened(_FILE, 1000, 1.0)

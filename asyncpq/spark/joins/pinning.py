"""What the tasks of a join are told of the lake: which versions of its files, and where its index is."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from asyncpq.datasets.model import View
from asyncpq.errors import InvalidOptionError
from asyncpq.indexing.open_index import OpenIndex
from asyncpq.indexing.places.objects import ObjectPlace
from asyncpq.session import Session
from asyncpq.spark.joins.lake import PinnedLake
from asyncpq.spark.reads.lakes import LakeTarget, OpenLake
from asyncpq.spark.reads.partitioned import index_of, is_index_list, partition_types_of
from asyncpq.spark.reads.planning import lake_of, plan_lake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.storage.urls import absolute


async def pin_lake(
    session: Session,
    opened: OpenLake,
    target: LakeTarget,
    read: Sequence[int],
    conf: ReadConf,
    settings: SparkSettings,
) -> PinnedLake:
    """The versions of the lake's files, as tasks are told them.

    Args:
        read: places of the columns that are read.

    Raises:
        InvalidOptionError: tasks cannot open the index by a url.
    """
    index, token = index_of(opened.state.source), uuid.uuid4().hex
    lake, splits = None, tuple[bytes, ...]()
    lists = is_index_list(opened.state.source)
    if not lists:
        columns = [opened.struct.names[at] for at in read]
        plan = await plan_lake(opened, conf=conf, settings=settings, columns=columns)
        lake, splits = plan.lake, tuple(plan.tasks())
        if index is None or opened.state.source.view is View.TABLE:
            return PinnedLake(token=token, lake=lake, splits=splits)
    assert index is not None, "it lists the files"
    return PinnedLake(
        token=token,
        lake=lake or lake_of(opened, read, conf, settings),
        target=target.target,
        index=_url_of(index, target),
        snapshot=index.manifest.snapshot,
        root=None if lists else index.manifest.root,
        partitions=partition_types_of(opened.state.source),
        splits=splits,
    )


def _url_of(index: OpenIndex, target: LakeTarget) -> str:
    """By which tasks open the index."""
    url = target.index
    if not isinstance(url, str):
        if not isinstance(index.place, ObjectPlace):
            raise InvalidOptionError("index: tasks open it by its url, so give that")
        url = index.place.description
    found: str = absolute(url)
    return found

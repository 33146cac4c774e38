"""What the tasks of a join are told of the lake: which versions of its files, and where its index is."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from asyncpq.errors import InvalidOptionError
from asyncpq.indexing.places.objects import ObjectPlace
from asyncpq.session import Session
from asyncpq.spark.joins.lake import PinnedLake
from asyncpq.spark.reads.lakes import LakeTarget, OpenLake
from asyncpq.spark.reads.partitioned import partition_types_of, snapshot_of
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
    source, token = snapshot_of(opened.state.source), uuid.uuid4().hex
    if source is None:
        columns = [opened.struct.names[at] for at in read]
        plan = await plan_lake(opened, conf=conf, settings=settings, columns=columns)
        return PinnedLake(token=token, lake=plan.lake, splits=tuple(plan.tasks()))
    place, url = source._index.place, target.index
    if not isinstance(url, str):
        if not isinstance(place, ObjectPlace):
            raise InvalidOptionError("index: tasks open it by its url, so give that")
        url = place.description
    return PinnedLake(
        token=token,
        lake=lake_of(opened, read, conf, settings),
        target=target.target,
        index=absolute(url),
        snapshot=source._index.manifest.snapshot,
        partitions=partition_types_of(opened.state.source),
    )

"""Which of the listed files Spark reads: empty files, and files beside partition folders, are left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from urllib.parse import unquote

from asyncpq import DataFile
from asyncpq.errors import PartitionError
from asyncpq.spark.types.read_conf import ReadConf

logger: logging.Logger = logging.getLogger(__name__)


def read_by_spark(files: Sequence[DataFile], root: str | None, conf: ReadConf) -> Callable[[DataFile], bool]:
    """Return a function that says whether Spark reads a file. Spark reads files that are not empty; if the folder
    ``root`` has partition folders, only files in these. ``root`` is None for patterns and lists of files.

    Raises PartitionError, as Spark does, if the folders of two files have different partition columns, or a column in
    them has no name. Names are compared with Spark's case sensitivity.
    """

    def columns_in(file: DataFile) -> tuple[str, ...]:
        folders = [] if root is None else file.url[len(root) :].split("/")[:-1]
        return tuple([conf.key(unquote(folder.partition("=")[0])) for folder in folders if "=" in folder])

    firsts: dict[tuple[str, ...], DataFile] = {}
    for file in files:
        if file.size != 0:
            firsts.setdefault(columns_in(file), file)
    nameless = next((file for names, file in firsts.items() if "" in names), None)
    if nameless is not None:
        raise PartitionError(
            "a folder has an empty name of a partition column (Spark: EMPTY_PARTITION_COLUMN_NAME)",
            url=nameless.url,
            hint="Rename the folder to key=value, or pass partitioning=None for the files' own columns.",
        )
    outside = firsts.pop((), None)
    if len(firsts) > 1:
        one, other, *_ = ("/".join(names) for names in firsts)
        raise PartitionError(
            f"the files are in folders of different partition columns, {one} and {other} (Spark:"
            " CONFLICTING_PARTITION_COLUMN_NAMES)",
            url=[*firsts.values()][1].url,
            hint="Read each of these folders by itself, or pass partitioning=None for the files' own columns.",
        )
    if firsts and outside is not None:
        logger.warning("%s and files like it are not read, as by Spark: they are beside partition folders", outside.url)
    return lambda file: file.size != 0 and (not firsts or columns_in(file) != ())

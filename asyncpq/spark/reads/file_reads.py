"""The files of a lake that Spark reads, with the values in their paths as Spark has them.

An index is asked only by conditions that its columns, which are from when it was built, can evaluate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.types import DataType

from asyncpq import DataFile, errors
from asyncpq.distributed import EngineFiles
from asyncpq.errors import PartitionError
from asyncpq.spark.types.partition_types import partition_scalar, unescaped
from asyncpq.spark.types.read_conf import ReadConf


@dataclass(frozen=True)
class PartitionTypes:
    """Spark's types of partition columns whose values are parsed from the texts in paths. Picklable."""

    dtypes: tuple[tuple[str, DataType], ...]
    hive: bool  # parse the texts of `key=value` folders; otherwise the texts are asyncpq's partition values


class SparkFiles(EngineFiles):
    """The files of another provider with partition values of Spark's types, ``types``. With ``typed``, the files of
    ``source`` have Spark's values already. ``schemas``: see :class:`asyncpq.distributed.EngineFiles`."""

    def __init__(
        self,
        source: Any,
        conf: ReadConf,
        types: PartitionTypes | None = None,
        *,
        typed: bool = False,
        schemas: tuple[pa.Schema, pa.Schema] | None = None,
    ) -> None:
        values = None if types is None or typed else partial(_values, types, conf, {})
        retyped = () if types is None else dict(types.dtypes)
        super().__init__(source, conf, values=values, retyped=retyped, schemas=schemas)
        self.types = types


def _values(
    types: PartitionTypes, conf: ReadConf, known: dict[str, Mapping[str, Any]], file: DataFile
) -> Mapping[str, Any]:
    """Return Spark's values for a file; ``known`` keeps them by folder."""
    folder = file.url.rpartition("/")[0]
    if folder not in known:
        dtypes = dict(types.dtypes)
        texts = _path_texts(file, dtypes, conf, hive=types.hive)
        known[folder] = {name: partition_scalar(texts.get(name), dtype, conf).as_py() for name, dtype in dtypes.items()}
    return known[folder]


def narrowed_for_index(source: Any, schema: pa.Schema, partitions: Collection[str], conf: ReadConf) -> Any:
    """Return ``source``, or a wrapper that passes only some conditions to an index whose column types differ from the
    lake's ``schema``. Types of the columns ``partitions``, which come from paths, are not compared."""
    index = source.index
    if index is None:
        return source
    known = index.manifest.schema
    columns = [field for field in schema if field.name not in partitions and field.name in known.names]
    if all(field.type.equals(known.field(field.name).type) for field in columns):
        return source
    inner, types = (source.source, source.types) if isinstance(source, SparkFiles) else (source, None)
    return SparkFiles(inner, conf, types, schemas=(schema, known))


def texts_in_paths(
    files: Sequence[DataFile], names: Collection[str], conf: ReadConf, *, hive: bool
) -> dict[str, set[str | None]]:
    """Return the texts of each partition column in all paths, with their ``%xx`` escapes. With ``hive``, texts are
    parsed from ``key=value`` folders; otherwise they are asyncpq's partition values."""
    folders = {file.url.rpartition("/")[0]: file for file in files}
    texts: dict[str, set[str | None]] = {name: set() for name in names}
    for file in folders.values():
        for name, text in _path_texts(file, names, conf, hive=hive).items():
            texts[name].add(text)
    return texts


def _path_texts(file: DataFile, names: Collection[str], conf: ReadConf, *, hive: bool) -> dict[str, str | None]:
    if not hive:
        values = ((name, file.partition.get(name)) for name in names)
        return {name: None if text is None else text.replace("%", "%25") for name, text in values}
    texts: dict[str, str | None] = {}
    by_key = {conf.key(name): name for name in names}
    for segment in reversed(file.url.split("/")[:-1]):  # folders above the dataset's root may repeat a name
        key, equals, text = segment.partition("=")
        spelled = unquote(key) if equals else ""
        name = by_key.get(conf.key(spelled), "")
        if name in file.partition and name not in texts:
            if unescaped(key) != spelled:
                raise errors.UnsupportedFeatureError(
                    f"from the folder {segment!r}, Spark reads the column name {unescaped(key)!r}, asyncpq {spelled!r}",
                    column=name,
                    hint="Rename the folder, or read it with spark.read.parquet.",
                )
            texts[name] = text
    return texts


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

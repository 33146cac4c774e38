"""Reads of files as Spark finds columns in them: by names, whose cases may not matter."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from asyncpq.datasets.files_read import DatasetState, FilesRead
from asyncpq.datasets.model import TableField
from asyncpq.datasets.opened_file import Ask, OpenedFile
from asyncpq.errors import AmbiguousColumnError
from asyncpq.events import Operation
from asyncpq.spark.types.read_conf import ReadConf


class SparkRead(FilesRead):
    """A read whose files may spell the columns in other cases, where Spark's settings say that cases do not matter.

    Attributes:
        variants: how files have the columns, where that is not how the dataset has them.
        needs_jvm_zone: see :class:`asyncpq.spark.reads.planning.ReadPlan`.
    """

    def __init__(self, state: DatasetState, ask: Ask, operation: Operation, conf: ReadConf) -> None:
        super().__init__(state, ask, operation, scan=True)
        self.variants: list[tuple[TableField, ...]] = []
        self.needs_jvm_zone = False
        self.conf = conf
        self._spelt: dict[tuple[bytes, str | None], tuple[TableField, ...] | None] = {}

    def _check_schema(self, opened: OpenedFile) -> None:
        super()._check_schema(opened)
        if self.conf.case_sensitive or self._state.columns.fields is not None or opened.file.fields is not None:
            return
        key = opened.schema_bytes
        if key not in self._spelt:
            self._spelt[key] = spelt_fields(opened, self._state.columns.schema, self.conf)
        fields = self._spelt[key]
        if fields is not None:
            opened.file = replace(opened.file, fields=fields)

    @property
    def is_table(self) -> bool:
        """Whether a table says how files have its columns."""
        return self._state.columns.fields is not None

    def variant(self, fields: tuple[TableField, ...] | None) -> int:
        """Number of a way to have the columns: 0 for the dataset's."""
        if fields is None:
            return 0
        for at, known in enumerate(self.variants):
            if known is fields or known == fields:
                return at + 1
        self.variants.append(fields)
        return len(self.variants)


def spelt_fields(opened: OpenedFile, schema: pa.Schema, conf: ReadConf) -> tuple[TableField, ...] | None:
    """The columns by the names that a file has for them; None where these are the dataset's.

    Raises:
        AmbiguousColumnError: the file has a column that the dataset has under another spelling, more than once.
    """
    have = [one.name for one in opened.version.metadata.schema.fields]
    known, fields, differs = set(have), list[TableField](), False
    lowered: dict[str, list[str]] = {}
    for one in schema:
        names: tuple[str, ...] = ()
        if one.name not in known and one.name not in opened.file.partition:
            if not lowered:
                for name in have:
                    lowered.setdefault(conf.key(name), []).append(name)
            found = lowered.get(conf.key(one.name), [])
            if len(found) > 1:
                raise AmbiguousColumnError(
                    f"the file has it as {' and '.join(found)}", url=opened.version.url, column=one.name
                )
            names = tuple(found)
            differs |= bool(found)
        fields.append(TableField(name=one.name, type=one.type, nullable=one.nullable, names=names))
    return tuple(fields) if differs else None

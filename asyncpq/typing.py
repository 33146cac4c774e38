"""Types of the arguments of public calls, for the annotations of code that passes them on.

::

    from asyncpq.typing import DatasetTarget, Predicate

    async def newest(target: DatasetTarget, where: Predicate) -> pyarrow.Table: ...

Tables and expressions of other packages are protocols here: a type checker needs none of these packages, and refuses
what only looks similar.

Attributes:
    DatasetTarget: the files of a dataset: the url of a prefix, a pattern or a table; a list of urls; or a table object.
    DecryptionProperties: the ``FileDecryptionProperties`` of pyarrow, which ships no types: made with
        ``pyarrow.parquet.encryption``.
    FilterTuple: one comparison of a list as in pyarrow's ``filters=``: column, operator, value.
    IndexChoice: the index of a dataset's reads: an open :class:`asyncpq.indexing.Index`; the url or backend of one; a
        :class:`asyncpq.indexing.FileIndex` of your own; or a list of one index and any number of your own. None: the
        index below the prefix, if there is one. False: no index.
    IndexTarget: where an index is or will be: a url, or a backend of :mod:`asyncpq.indexing`.
    Predicate: the condition of a read, ``where=``; docs/filter.md defines the meaning of each form: an expression of
        :func:`asyncpq.col`, a condition in SQL, filter tuples that must all hold, lists of them of which one must hold,
        a ``pyarrow.compute`` expression, or what :meth:`asyncpq.Dataset.bind` made of one of them for its reads.
    TableVersion: the version of a table, ``version=``: a number, the name of a branch or tag, or a time.
    Url: a url, or the path of a local file or folder.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from asyncpq.datasets.model import Catalog
    from asyncpq.expressions import Expression
    from asyncpq.indexing.index_model import IndexBackend
    from asyncpq.indexing.query.file_selection import FileIndex

__all__ = [
    "ArrowExpression",
    "DatasetTarget",
    "DecryptionProperties",
    "DeltaTable",
    "FilterTuple",
    "IcebergTable",
    "IndexChoice",
    "IndexHandle",
    "IndexTarget",
    "Predicate",
    "TableVersion",
    "Url",
]

Url: TypeAlias = str | os.PathLike[str]

FilterTuple: TypeAlias = tuple[str, str, Any]


class ArrowExpression(Protocol):
    """A ``pyarrow.compute.Expression``."""

    def is_valid(self) -> Any:
        """The method of ``pyarrow.compute.Expression``, by which type checkers recognise one."""

    def isin(self, values: Any) -> Any:
        """The method of ``pyarrow.compute.Expression``, by which type checkers recognise one."""


Predicate: TypeAlias = "Expression | str | Sequence[FilterTuple] | Sequence[Sequence[FilterTuple]] | ArrowExpression"


class DeltaTable(Protocol):
    """A ``deltalake.DeltaTable``."""

    @property
    def table_uri(self) -> str:
        """Url of the table."""

    def version(self) -> int | None:
        """Return the number of the loaded version."""


class IcebergTable(Protocol):
    """A ``pyiceberg.table.Table``.

    Attributes:
        metadata_location: url of the table's current metadata file.
    """

    metadata_location: str

    def current_snapshot(self) -> Any:
        """Return pyiceberg's current snapshot; None for an empty table."""


DatasetTarget: TypeAlias = "Url | Sequence[Url] | DeltaTable | IcebergTable | Catalog"

TableVersion: TypeAlias = int | str | dt.datetime

IndexTarget: TypeAlias = "Url | IndexBackend"


class IndexHandle(Protocol):
    """An :class:`asyncpq.indexing.Index`, or its form in :mod:`asyncpq.blocking`."""

    @property
    def url(self) -> str:
        """Url of the index without secrets; "memory" for an index in memory."""

    @property
    def snapshot(self) -> int:
        """Number of the snapshot that the handle holds."""


IndexChoice: TypeAlias = (
    "IndexHandle | IndexTarget | FileIndex | Sequence[IndexHandle | IndexTarget | FileIndex] | Literal[False] | None"
)

DecryptionProperties: TypeAlias = Any

"""``asyncpq optimize``: rewrite files or a table for lookups, on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Literal, cast

from asyncpq import BloomFilter, RewriteResult, Session, WriteOptions
from asyncpq.cli.arguments import with_session
from asyncpq.cli.index_commands import Workers, parse_kind
from asyncpq.cli.output import Format, ReportFormat, console, count_text, print_facts, write_report
from asyncpq.cli.parameters import Argument, Option
from asyncpq.cli.running import interruptible
from asyncpq.cli.url_targets import Url, target_of
from asyncpq.errors import plural, size_text
from asyncpq.options import MIB, BuildOptions
from asyncpq.reports.documents import Optimization

_DEFAULTS = WriteOptions()


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Which rows are written, where, and in which order."""

    url: Url
    target: Annotated[str, Argument(metavar="TARGET", help="Url of a new folder.", show_default=False)]
    sort_by: Annotated[
        str | None,
        Option("--sort-by", metavar="A,B,...", help="Columns by which rows are sorted: a,b.", show_default=False),
    ] = None
    zorder_by: Annotated[
        str | None, Option("--zorder-by", metavar="A,B,...", help="2 to 8 columns of ranges: a,b.", show_default=False)
    ] = None
    columns: Annotated[
        str | None,
        Option("--columns", metavar="A,B,...", help="Columns to write: a,b. Default: all.", show_default=False),
    ] = None
    where: Annotated[
        str | None, Option("--where", metavar="SQL", help="Condition of the rows to write, in SQL.", show_default=False)
    ] = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the files are laid out: see :class:`asyncpq.WriteOptions`."""

    bloom_filters: Annotated[
        str | None,
        Option("--bloom", metavar="A,B,...", help="Columns of lookups that are not sorted: a,b.", show_default=False),
    ] = None
    compression: Annotated[str, Option("--compression", metavar="CODEC", help="Codec.")] = _DEFAULTS.compression
    compression_level: Annotated[
        int | None, Option("--compression-level", help="Level of the codec.", show_default=False)
    ] = None
    page_rows: Annotated[int, Option("--page-rows", help="Rows of a page.")] = _DEFAULTS.page_rows
    page_bytes: Annotated[int, Option("--page-bytes", help="Bytes of a page, encoded.")] = _DEFAULTS.page_bytes
    row_group_rows: Annotated[int, Option("--row-group-rows", help="Rows of a row group.")] = _DEFAULTS.row_group_rows
    row_group_bytes: Annotated[int, Option("--row-group-bytes", help="Bytes of a row group, in memory.")] = (
        _DEFAULTS.row_group_bytes
    )
    file_bytes: Annotated[int, Option("--file-bytes", help="Bytes of a file.")] = _DEFAULTS.file_bytes

    def options(self) -> WriteOptions:
        """Return the layout for :meth:`asyncpq.Session.optimize`."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "bloom_filters"}
        return WriteOptions(**own, bloom_filters=tuple(BloomFilter(column=name) for name in _names(self.bloom_filters)))


@dataclass(frozen=True, slots=True)
class _Sorting:
    """Options of the memory and folder that sorting may use."""

    memory: Annotated[int, Option("--memory-mib", help="Memory of each process; more goes to local files.", min=1)] = (
        256
    )
    folder: Annotated[
        str | None, Option("--temporary-folder", metavar="FOLDER", help="Folder of local files.", show_default=False)
    ] = None
    workers: Workers = 1

    def options(self) -> BuildOptions:
        """Return the options for :meth:`asyncpq.Session.optimize`."""
        return BuildOptions(memory_bytes=self.memory * MIB, folder=self.folder)


def _names(text: str | None) -> list[str]:
    return [name for name in (text or "").split(",") if name]


@with_session
async def optimize(
    session: Session,
    *,
    rewrite: _Rewrite,
    layout: _Layout,
    kind: Annotated[
        list[str] | None,
        Option("--kind", "-k", metavar="KIND", help="Kind of the new index, as of index build.", show_default=False),
    ] = None,
    publish: Annotated[
        str, Option("--publish", help='"plain": readers may list the folder. "index": by its index alone.')
    ] = "plain",
    sorting: _Sorting,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Sort rows into files of which lookups read little, with page indexes and an index of the files.

    The files are read back and compared before they are committed: if anything fails, readers see none of them.
    """
    with interruptible("Readers see nothing of it. Repeat the command with another folder."):
        named = await target_of(session, rewrite.url)
        done = await session.optimize(
            named.target,
            rewrite.target,
            _names(rewrite.sort_by),
            zorder_by=_names(rewrite.zorder_by),
            columns=_names(rewrite.columns) or None,
            where=rewrite.where,
            layout=layout.options(),
            kinds=None if kind is None else [parse_kind(text) for text in kind],
            publish=cast("Literal['plain', 'index']", publish),
            building=sorting.options(),
            progress=True,
            workers=sorting.workers,
            format=named.format,
        )
    document: Optimization = {"document": "optimization", **asdict(done)}  # type: ignore[typeddict-item]
    write_report(document, format_, lambda _: _show(done))


def _show(done: RewriteResult) -> None:
    out = console()
    out.print(f"{plural(done.rows, 'row')} at {done.target}", soft_wrap=True)
    print_facts(
        out,
        [
            ("files", count_text(len(done.files))),
            ("bytes", f"{size_text(done.bytes_after)}; {size_text(done.bytes_before)} before"),
            ("verified", "the files hold the rows that were read"),
            ("seconds", ", ".join(f"{step} {seconds:.1f}" for step, seconds in done.seconds.items())),
        ],
    )

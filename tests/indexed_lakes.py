"""Files with an index beside them that was made value by value, in any place."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

import asyncpq
from asyncpq.indexing.build.file_rows import footer_rows
from asyncpq.indexing.manifest.manifest import Manifest, encode
from asyncpq.indexing.model import TABLE_SCHEMAS, IndexBackend, IndexTable
from asyncpq.objects.opening import load_version, open_source
from asyncpq.storage.base import RequestContext
from tests.brute_indexes import BruteFile, write_index

FOOTERS = IndexTable("footers")


async def indexed(
    session: asyncpq.Session,
    backend: IndexBackend,
    root: str,
    paths: Sequence[str],
    parts: Sequence[IndexTable],
    schema: pa.Schema,
    *,
    snapshot: int = 1,
    retired: Sequence[str] = (),
) -> Manifest:
    """An index of what is there, files that are ``retired`` being out of use."""
    files: list[BruteFile] = []
    footers: list[pa.Table] = []
    for number, path in enumerate(paths):
        source = await open_source(session._runtime, f"{root}{path}")
        try:
            context = RequestContext(asyncpq.ReadMetrics())
            version = await load_version(source, context)
            groups = tuple(group.num_rows for group in version.metadata.row_groups)
            footers.append(await footer_rows(source, version, number, context))
            file = await session.open_file(f"{root}{path}")
            files.append(
                BruteFile((await file.read()).cast(schema), groups, path, version.validator, path not in retired)
            )
        finally:
            await source.handle.close()
    more = {FOOTERS: pa.concat_tables([TABLE_SCHEMAS["footers"].empty_table(), *footers])}
    manifest = await write_index(backend, parts, files, schema, root=root, more=more, snapshot=snapshot)
    await backend.commit(manifest.snapshot, encode(manifest))
    return manifest

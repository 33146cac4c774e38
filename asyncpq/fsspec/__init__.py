"""asyncpq's caches, coalescing, pinning and retries for every reader of bytes that takes fsspec urls or filesystems.

::

    pandas.read_parquet("asyncpq::s3://bucket/trips.parquet")
    pyarrow.dataset.dataset("bucket/lake/", filesystem=fsspec.filesystem("asyncpq", target_protocol="s3"))

The filesystem reads and does not write. An open file is one version of its object: if the object is replaced, reads
fail with :class:`asyncpq.ObjectChangedError`. Filesystems and open files can be pickled, and used in threads and after
a fork: each process, and each event loop, has a session of its own (docs/tools.md).

fsspec finds this module by the entry point of the package. Needs fsspec 2025.10 or newer, which
the extra ``asyncpq-parquet[fsspec]`` installs.
"""

from __future__ import annotations

from importlib.util import find_spec

from asyncpq.errors import UsageError, install_hint

if find_spec("fsspec.implementations.chained") is None:
    raise UsageError("asyncpq.fsspec needs fsspec 2025.10 or newer", hint=install_hint("a newer fsspec", "fsspec"))

from asyncpq.fsspec.filesystem import AsyncpqFileSystem

__all__ = ["AsyncpqFileSystem"]

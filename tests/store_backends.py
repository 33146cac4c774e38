"""Every kind of store behind one face; an object on a server that misbehaves, and reads of it."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from asyncpq.metrics import ReadMetrics
from asyncpq.options import RetryOptions
from asyncpq.storage import open_store
from asyncpq.storage.base import RangeResult, RequestContext, Store, StoredObject, StoreLimits
from asyncpq.storage.fsspec import FsspecStore
from asyncpq.testing import Fault, ObjectServer
from localstack.seed import seed, storage_options

#: Short waits between attempts, long ones for answers: a pause of the machine is no fault, and attempts are counted.
FAST_RETRIES = RetryOptions(
    max_attempts=4,
    backoff_base_s=0.001,
    backoff_max_s=0.01,
    connect_timeout_s=10.0,
    first_byte_timeout_s=10.0,
    stall_timeout_s=10.0,
)
#: For servers that fall silent.
FAST_TIMEOUTS = replace(FAST_RETRIES, connect_timeout_s=0.3, first_byte_timeout_s=0.7, stall_timeout_s=0.7)
LIMITS = StoreLimits(max_connections=8, scan_connections=6)


def open_test_store(protocol: str, options: Mapping[str, Any], retry: RetryOptions = FAST_RETRIES) -> Store:
    """A store that gives up fast."""
    return open_store(protocol, options, retry=retry, limits=LIMITS)


def retries_for(request: pytest.FixtureRequest) -> RetryOptions:
    """Timeouts are short for the tests alone whose parameter ``fault`` is a silence."""
    callspec = getattr(request.node, "callspec", None)
    fault = None if callspec is None else callspec.params.get("fault")
    silent = isinstance(fault, Fault) and (fault.stall_headers or fault.stall_body or fault.drip_s is not None)
    return FAST_TIMEOUTS if silent else FAST_RETRIES


def new_context(*, scan: bool = False) -> RequestContext:
    """A read of its own."""
    return RequestContext(ReadMetrics(), scan)


class Backend:
    """A store and a way to change what it holds. Keys are plain names."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.prefix = prefix

    def url(self, key: str) -> str:
        return self.prefix + key

    async def put(self, key: str, data: bytes) -> None:
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError


class ServerBackend(Backend):
    def __init__(self, server: ObjectServer, protocol: str, options: Mapping[str, Any]) -> None:
        prefix = f"{server.endpoint}/bucket/" if protocol == "http" else f"{protocol}://bucket/"
        super().__init__(open_test_store(protocol, options), prefix)
        self.server = server

    async def put(self, key: str, data: bytes) -> None:
        self.server.put(f"bucket/{key}", data)

    async def delete(self, key: str) -> None:
        self.server.delete(f"bucket/{key}")


def obstore_options(server: ObjectServer, protocol: str) -> dict[str, Any]:
    """What obstore needs for objects of ``server``, whose S3 is what it asks of Google, too; and of Azure, to read."""
    client = {"client_options": {"allow_http": True}}
    if protocol == "gs":
        return {"obstore": {"base_url": server.endpoint, "bearer_token": "SECRET", **client}}
    if protocol == "az":
        account = {"account_name": "devstoreaccount1", "bearer_token": "SECRET"}
        return {"obstore": {"endpoint": server.endpoint, **account, **client}}
    keys = {"access_key_id": "test", "secret_access_key": "SECRET", "region": "us-east-1"}
    return {"obstore": {"endpoint": server.endpoint, **keys, **client}}


class RedirectedBackend(ServerBackend):
    """Objects of ``server`` as ``origin`` names them, which has none itself."""

    def __init__(self, server: ObjectServer, origin: ObjectServer) -> None:
        super().__init__(server, "http", {})
        self.prefix = f"{origin.endpoint}/bucket/"
        origin.faults = lambda request: Fault(redirect=f"{server.endpoint}{request.target}")


class LocalStackBackend(Backend):
    def __init__(self, endpoint: str, bucket: str) -> None:
        super().__init__(open_test_store("s3", storage_options(endpoint), RetryOptions()), f"s3://{bucket}/")
        self.endpoint, self.bucket = endpoint, bucket

    async def put(self, key: str, data: bytes) -> None:
        await seed(self.endpoint, self.bucket, {key: data})

    async def delete(self, key: str) -> None:
        filesystem = fsspec.filesystem(
            "s3", asynchronous=True, skip_instance_cache=True, **storage_options(self.endpoint)
        )
        client = await filesystem.set_session()
        try:
            await client.delete_object(Bucket=self.bucket, Key=key)
        finally:
            await client.close()


class LocalBackend(Backend):
    def __init__(self, folder: Path, store: Store) -> None:
        super().__init__(store, f"{folder}{os.sep}")
        self.folder = folder

    async def put(self, key: str, data: bytes) -> None:
        temporary = self.folder / uuid.uuid4().hex
        temporary.write_bytes(data)
        temporary.replace(self.folder / key)

    async def delete(self, key: str) -> None:
        (self.folder / key).unlink()


class MemoryBackend(Backend):
    def __init__(self) -> None:
        prefix = f"/{uuid.uuid4().hex}/"
        super().__init__(open_test_store("memory", {}), f"memory:/{prefix}")
        self.filesystem = fsspec.filesystem("memory")
        self.folder = prefix

    async def put(self, key: str, data: bytes) -> None:
        self.filesystem.pipe_file(self.folder + key, data)

    async def delete(self, key: str) -> None:
        self.filesystem.rm_file(self.folder + key)


def local_through_fsspec(folder: Path) -> LocalBackend:
    """Local files as FsspecStore reads them: a synchronous filesystem, in threads."""
    return LocalBackend(folder, FsspecStore("file", {}, retry=FAST_RETRIES, limits=LIMITS))


@asynccontextmanager
async def running_backend(
    kind: str, folder: Path, request: pytest.FixtureRequest, content: bytes
) -> AsyncIterator[Backend]:
    """A store of that kind whose object "key" has ``content``; LocalStack is started where it is asked for."""
    async with ObjectServer() as server, ObjectServer() as origin:
        made: Backend
        if kind == "s3":
            made = ServerBackend(server, "s3", server.storage_options)
        elif kind == "s3-unsigned":
            made = ServerBackend(server, "s3", {"anon": True, "endpoint_url": server.endpoint})
        elif kind == "s3-through-s3fs":
            made = ServerBackend(
                server,
                "s3",
                {**server.storage_options, "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}},
            )
        elif kind == "s3-extras":
            extras = {"ServerSideEncryption": "AES256"}
            made = ServerBackend(server, "s3", {**server.storage_options, "s3_additional_kwargs": extras})
        elif kind.endswith("-through-obstore"):
            protocol = kind.partition("-")[0]
            made = ServerBackend(server, protocol, obstore_options(server, protocol))
        elif kind == "s3-localstack":
            made = LocalStackBackend(request.getfixturevalue("localstack"), f"contract-{os.urandom(8).hex()}")
        elif kind == "http":
            made = ServerBackend(server, "http", {})
        elif kind == "http-redirected":
            made = RedirectedBackend(server, origin)
        elif kind == "local":
            made = LocalBackend(folder, open_test_store("file", {}))
        elif kind == "memory":
            made = MemoryBackend()
        else:
            made = local_through_fsspec(folder)
        await made.put("key", content)
        yield made
        await made.store.close()


DATA = random.Random(3).randbytes(100_000)


async def opened(store: Store) -> tuple[StoredObject, RangeResult]:
    stored = await store.open_object("s3://bucket/key")
    return stored, await stored.fetch_tail(1000, context=new_context())


def shown(error: BaseException) -> list[str]:
    """What a traceback says: the error's text, and those of its causes and contexts that it shows."""
    following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [str(error), *(shown(following) if following is not None else [])]

"""Objects read through s3fs: pinned like others, and the metrics say why."""

from __future__ import annotations

import pytest

from asyncpq.errors import ObjectChangedError
from asyncpq.storage.base import Guarantee, Store, writable
from asyncpq.testing import ObjectServer
from tests.store_backends import DATA, new_context, opened


async def test_the_metrics_name_the_reason(s3fs_store: Store) -> None:
    stored, tail = await opened(s3fs_store)
    assert (stored.client, stored.guarantee) == ("s3fs", Guarantee.PINNED)
    context = new_context()
    result = await stored.fetch_range(5, 9, context=context, pin=tail.validator)
    assert (result.data, result.validates) == (DATA[5:9], True)
    assert context.metrics.fallbacks == ["read through s3fs: header x-amz-expected-bucket-owner"]


async def test_another_version_is_refused(s3fs_store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(s3fs_store)
    for path in list(server.objects):
        server.put(path, DATA[::-1])
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(5, 9, context=new_context(), pin=tail.validator)
    assert (await stored.fetch_tail(4, context=new_context())).data == DATA[::-1][-4:]


async def test_writes_do_not_wait_for_the_server_to_expect_them(s3fs_store: Store, server: ObjectServer) -> None:
    """aiohttp would wait for ever, behind a proxy that does not pass ``100 Continue`` on."""
    await writable(s3fs_store, "s3://bucket/").put_object("s3://bucket/new", DATA, context=new_context())
    assert server.log[-1].method == "PUT"
    assert "expect" not in server.log[-1].headers

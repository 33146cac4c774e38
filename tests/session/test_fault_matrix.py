"""Every fault of the catalogue times every operation, through every client; docs/faults.md is made by this.

Holds: pyarrow's rows, of one version, or a typed error that names the url; an end in time; requests and bytes
within bounds; no descriptor, task, thread or byte of the budget left behind; no redirect of S3 followed. And what
comes of each fault is what the page says: ASYNCPQ_UPDATE_DOCS=1 writes it anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from asyncpq.testing import CATALOGUE, ObjectServer
from tests.faults import page
from tests.faults.matrix import CLIENTS, run_clients

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@contextlib.asynccontextmanager
async def servers_for(*clients: str) -> AsyncIterator[dict[str, tuple[ObjectServer, ObjectServer]]]:
    """By client, a server to ask, and one that it redirects to."""
    async with contextlib.AsyncExitStack() as stack:
        started = [await stack.enter_async_context(ObjectServer()) for _ in range(2 * len(clients))]
        yield dict(zip(clients, zip(started[::2], started[1::2], strict=True), strict=True))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", CATALOGUE)
async def test_every_operation(name: str) -> None:
    async with servers_for(*CLIENTS) as servers:
        page.check(name, await run_clients(name, servers))


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", CATALOGUE)
async def test_at_every_request(name: str, client: str) -> None:
    async with servers_for(client) as servers:
        await run_clients(name, servers, every_request=True)


def test_the_page_has_all_faults() -> None:
    assert page.names() == [list(CATALOGUE)] * 2

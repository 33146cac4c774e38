"""Every fault of the catalogue times every operation, through every client; docs/faults.md is made by this.

Holds: pyarrow's rows, of one version, or a typed error that names the url; an end in time; requests and bytes
within bounds; no descriptor, task, thread or byte of the budget left behind; no redirect of S3 followed. And what
comes of each fault is what the page says: ASYNCPQ_UPDATE_DOCS=1 writes it anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from asyncpq.testing import CATALOGUE, ObjectServer
from tests.faults import page
from tests.faults.matrix import CLIENTS, Matrix


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


@pytest.fixture
async def servers() -> AsyncIterator[tuple[ObjectServer, ObjectServer]]:
    """The one that is asked, and one that it redirects to."""
    async with ObjectServer() as server, ObjectServer() as elsewhere:
        yield server, elsewhere


@pytest.mark.parametrize("name", CATALOGUE)
async def test_every_operation(name: str, servers: tuple[ObjectServer, ObjectServer]) -> None:
    page.check(name, {client: await Matrix(client, *servers).run(name) for client in CLIENTS})


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", CATALOGUE)
async def test_at_every_request(name: str, client: str, servers: tuple[ObjectServer, ObjectServer]) -> None:
    await Matrix(client, *servers).run(name, every_request=True)


def test_the_page_has_all_faults() -> None:
    assert page.names() == [list(CATALOGUE)] * 2

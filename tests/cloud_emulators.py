"""The emulators of Azure Blob Storage and Google Cloud Storage: Azurite and fake-gcs-server, each a process of its own.

`make test-services` installs them into .services, where npm and go are there. Tests skip what is not installed.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.servers import DIE_WITH_PARENT

ACCOUNT = "tester"
KEY = base64.b64encode(b"SECRET, of the tests' own account").decode()
BUCKET = "bucket"
_PROGRAMS = Path(__file__).parent.parent / ".services"
_START_S = 60.0
_PLAIN = {"client_options": {"allow_http": True}}


def require(program: str, folder: str, needs: str) -> str:
    """The path of an installed program; skips the test if there is none."""
    found = shutil.which(program, path=str(_PROGRAMS / folder)) or shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (make test-services installs it, where {needs} is there)")
    return found


def require_package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install -r tests/storage/services.txt)")


@contextmanager
def running(command: list[str], port: int, log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a server until the block ends; it is waited for until its port answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd=log.parent,
        )
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(log.read_text(errors="replace")) from None
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Emulator:
    """A running emulator with one empty bucket.

    ``obstore`` and ``filesystem`` are the storage options with which each of the two reads it.
    """

    protocol: str
    obstore: dict[str, Any]
    filesystem: dict[str, Any]

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError


class Azurite(Emulator):
    protocol = "az"

    def __init__(self, port: int) -> None:
        from azure.storage.blob import BlobServiceClient

        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self.obstore = {"obstore": {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint, **_PLAIN}}
        parts = {
            "DefaultEndpointsProtocol": "http",
            "AccountName": ACCOUNT,
            "AccountKey": KEY,
            "BlobEndpoint": endpoint,
        }
        self.filesystem = {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}
        self._container = BlobServiceClient.from_connection_string(
            self.filesystem["connection_string"]
        ).create_container(BUCKET)

    def put(self, key: str, data: bytes) -> None:
        self._container.upload_blob(key, data, overwrite=True)

    def delete(self, key: str) -> None:
        self._container.delete_blob(key)


class FakeGoogle(Emulator):
    protocol = "gs"

    def __init__(self, port: int) -> None:
        self._endpoint = f"http://127.0.0.1:{port}"
        self.obstore = {"obstore": {"base_url": self._endpoint, "bearer_token": "SECRET", **_PLAIN}}
        self.filesystem = {"endpoint_url": self._endpoint, "token": "anon"}
        self._send("POST", "/storage/v1/b?project=tests", json.dumps({"name": BUCKET}).encode(), "application/json")

    def put(self, key: str, data: bytes) -> None:
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}"
        self._send("POST", path, data, "application/octet-stream")

    def delete(self, key: str) -> None:
        self._send("DELETE", f"/storage/v1/b/{BUCKET}/o/{quote(key, safe='')}")

    def _send(self, method: str, path: str, data: bytes | None = None, kind: str = "text/plain") -> None:
        headers = {"Content-Type": kind}
        request = urllib.request.Request(self._endpoint + path, data=data, method=method, headers=headers)
        urllib.request.urlopen(request, timeout=30).close()


@contextmanager
def running_azurite(folder: Path, environment: Mapping[str, str]) -> Iterator[Emulator]:
    program = require("azurite-blob", "node_modules/.bin", "npm")
    require_package("azure.storage.blob" if importlib.util.find_spec("azure") else "azure")
    port = free_port()
    options = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command = [program, *options, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with running(command, port, folder / "azurite.log", {**environment, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}):
        yield Azurite(port)


@contextmanager
def running_fake_google(folder: Path, environment: Mapping[str, str]) -> Iterator[Emulator]:
    program = require("fake-gcs-server", ".", "go")
    port = free_port()
    place = ["-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}"]
    command = [program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), *place]
    with running(command, port, folder / "fake-gcs-server.log", environment):
        yield FakeGoogle(port)

"""Object stores that others wrote, each started as its users start it: a process of its own, on a free port.

`make test-stores` installs them into .services, where pip, npm, go, cargo and Maven are there. Tests skip what is not
installed.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import botocore.session
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
        pytest.skip(f"{program} is not installed (make test-stores installs it, where {needs} is there)")
    return found


def require_package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (make test-stores installs it)")


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
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # SeaweedFS, now and then
            process.kill()
            process.wait(10)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RealStore:
    """A running server with one empty bucket, and what it does otherwise than Amazon's S3 (docs/stores-s3.md)."""

    name: str
    options: dict[str, Any]  # storage options of ``protocol``
    wrong: dict[str, Any] | None = None  # the same with a wrong secret; None: the server checks none
    protocol: str = "s3"
    guarantee: str = "pinned"
    tail_requests: int = 1  # for the last bytes; more where it does not send every range of them
    creates_once: bool = True  # it refuses to create what exists
    #: Keys that it does not keep as they are, each with the reason.
    lost_keys: Mapping[str, str] = field(default_factory=dict)
    names_bucket: bool = True  # it says that a bucket is missing, not only a key
    root: Path | None = None  # the folder of the bucket, of a server that only reads

    @property
    def url(self) -> str:
        """Of the bucket, with a slash."""
        return f"{self.protocol}://{BUCKET}/"


#: Starts a server with its files in a folder and an environment, until the block ends.
StartStore: TypeAlias = Callable[[Path, Mapping[str, str]], AbstractContextManager[RealStore]]


def s3_options(port: int, key: str = "tester", secret: str = "sesame") -> dict[str, Any]:
    """Storage options of an S3 server on this machine."""
    endpoint = f"http://127.0.0.1:{port}"
    return {"key": key, "secret": secret, "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}


def wait_for_bucket(options: dict[str, Any]) -> None:
    """Of a server that makes its bucket only after its port is open."""
    client = botocore.session.Session().create_client(
        "s3",
        options["client_kwargs"]["region_name"],
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )
    client.get_waiter("bucket_exists").wait(Bucket=BUCKET, WaiterConfig={"Delay": 1})
    client.close()


NO_EMPTY_NAMES = {"a//b": "names of files have no empty parts", "/a": "names of files have no empty parts"}


@contextmanager
def running_moto(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("moto_server", "python/bin", "pip"), free_port()
    with running([program, "-H", "127.0.0.1", "-p", str(port)], port, folder / "moto.log", environment):
        create = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(create, timeout=30).close()
        yield RealStore(name="moto", options=s3_options(port))


@contextmanager
def running_ministack(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("ministack", "python/bin", "pip"), free_port()
    place = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "SERVICES": "s3", "IOT_MTLS_ENABLED": "0"}
    with running([program], port, folder / "ministack.log", {**environment, **place}):
        create = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(create, timeout=30).close()
        yield RealStore(name="ministack", options=s3_options(port))


@contextmanager
def running_rclone(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("rclone", "python/bin", "pip"), free_port()
    (folder / "root" / BUCKET).mkdir(parents=True)
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", "tester,sesame", "--config", "/dev/null"]
    command = [program, "serve", "s3", *options, str(folder / "root")]
    with running(command, port, folder / "rclone.log", environment):
        yield RealStore(
            name="rclone",
            options=s3_options(port),
            wrong=s3_options(port, secret="wrong"),
            tail_requests=2,
            creates_once=False,
            lost_keys=NO_EMPTY_NAMES,
        )


@contextmanager
def running_versitygw(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("versitygw", ".", "go"), free_port()
    (folder / "root" / BUCKET).mkdir(parents=True)
    keys = {"ROOT_ACCESS_KEY": "tester", "ROOT_SECRET_KEY": "sesame"}
    command = [program, "--port", f"127.0.0.1:{port}", "posix", str(folder / "root")]
    with running(command, port, folder / "versitygw.log", {**environment, **keys}):
        yield RealStore(
            name="versitygw", options=s3_options(port), wrong=s3_options(port, secret="wrong"), lost_keys=NO_EMPTY_NAMES
        )


@contextmanager
def running_minio(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("minio", ".", "go"), free_port()
    (folder / "root" / BUCKET).mkdir(parents=True)
    keys = {"MINIO_ROOT_USER": "tester", "MINIO_ROOT_PASSWORD": "open sesame", "MINIO_UPDATE": "off"}
    console = ["--console-address", f"127.0.0.1:{free_port()}"]
    command = [program, "server", str(folder / "root"), "--address", f"127.0.0.1:{port}", *console]
    with running(command, port, folder / "minio.log", {**environment, **keys}):
        yield RealStore(
            name="minio",
            options=s3_options(port, secret="open sesame"),
            wrong=s3_options(port, secret="wrong"),
            lost_keys=NO_EMPTY_NAMES,
        )


@contextmanager
def running_gofakes3(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("gofakes3", ".", "go"), free_port()
    command = [program, "-backend", "memory", "-initialbucket", BUCKET, "-host", f"127.0.0.1:{port}"]
    with running(command, port, folder / "gofakes3.log", environment):
        yield RealStore(name="gofakes3", options=s3_options(port), tail_requests=2)


@contextmanager
def running_s3rver(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("s3rver", "node_modules/.bin", "npm"), free_port()
    command = [program, "-d", str(folder / "root"), "-a", "127.0.0.1", "-p", str(port), "--configure-bucket", BUCKET]
    (folder / "root").mkdir()
    old_ciphers = {"NODE_OPTIONS": "--openssl-legacy-provider"}  # without, its second page of a listing is a 500
    with running(command, port, folder / "s3rver.log", {**environment, **old_ciphers}):
        yield RealStore(
            name="s3rver",
            options=s3_options(port, "S3RVER", "S3RVER"),
            tail_requests=3,  # it takes bytes=0-0 for no range, so a HEAD follows
            creates_once=False,
            lost_keys=NO_EMPTY_NAMES,
        )


@contextmanager
def running_hadro(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    """A server that reads only: objects are files of its folder."""
    program, port = require("hadro", "python/bin", "pip"), free_port()
    (folder / "root" / BUCKET).mkdir(parents=True)
    keys = ["--access-key", "tester", "--secret-key", "sesame"]
    command = [program, str(folder / "root"), "--port", str(port), *keys]
    with running(command, port, folder / "hadro.log", environment):
        yield RealStore(
            name="hadro",
            options=s3_options(port),
            wrong=s3_options(port, secret="wrong"),
            root=folder / "root" / BUCKET,
            lost_keys=NO_EMPTY_NAMES,
        )


@contextmanager
def running_seaweedfs(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program = require("weed", ".", "go")
    parts = ("master", "volume", "filer", "s3")
    ports = {f"-{part}.port{kind}": free_port() for part in parts for kind in ("", ".grpc")}
    only_s3 = ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    places = ["-dir", str(folder), "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command = [program, "mini", *places, *only_s3, *(f"{name}={port}" for name, port in ports.items())]
    keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "sesame", "S3_BUCKET": BUCKET}
    port = ports["-s3.port"]
    try:
        with running(command, port, folder / "seaweedfs.log", {**environment, **keys}):
            wait_for_bucket(s3_options(port))
            wrong = s3_options(port, secret="wrong")
            yield RealStore(name="seaweedfs", options=s3_options(port), wrong=wrong, lost_keys=NO_EMPTY_NAMES)
    finally:
        for each in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{each}.sock"):
                left.unlink(missing_ok=True)


@contextmanager
def running_garage(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("garage", "bin", "cargo"), free_port()
    key, secret = f"GK{'0' * 24}", "0" * 64
    (folder / "garage.toml").write_text(f"""\
metadata_dir = "{folder / "meta"}"
data_dir = "{folder / "data"}"
db_engine = "lmdb"
replication_factor = 1
rpc_bind_addr = "127.0.0.1:{free_port()}"
rpc_secret = "{"0" * 64}"
s3_api = {{ api_bind_addr = "127.0.0.1:{port}", s3_region = "us-east-1" }}
""")
    command = [program, "--config", "garage.toml", "server", "--single-node", "--default-bucket"]
    keys = {"GARAGE_DEFAULT_ACCESS_KEY": key, "GARAGE_DEFAULT_SECRET_KEY": secret, "GARAGE_DEFAULT_BUCKET": BUCKET}
    with running(command, port, folder / "garage.log", {**environment, **keys}):
        yield RealStore(
            name="garage",
            options=s3_options(port, key, secret),
            wrong=s3_options(port, key, "wrong"),
            creates_once=False,
        )


@contextmanager
def running_s3s(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port = require("s3s-fs", "bin", "cargo"), free_port()
    (folder / "root" / BUCKET).mkdir(parents=True)
    keys = ["--access-key", "tester", "--secret-key", "sesame"]
    command = [program, "--host", "127.0.0.1", "--port", str(port), *keys, str(folder / "root")]
    with running(command, port, folder / "s3s-fs.log", environment):
        yield RealStore(
            name="s3s-fs",
            options=s3_options(port),
            wrong=s3_options(port, secret="wrong"),
            tail_requests=2,
            lost_keys=NO_EMPTY_NAMES,
            names_bucket=False,
        )


@contextmanager
def running_s3proxy(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    program, port, jars = require("java", ".", "Maven"), free_port(), _PROGRAMS / "s3proxy"
    if not jars.is_dir():
        pytest.skip("s3proxy is not installed (make test-stores installs it, where Maven is there)")
    (folder / "root" / BUCKET).mkdir(parents=True)
    (folder / "logback.xml").write_text("<configuration/>")  # else each request is logged in detail
    (folder / "s3proxy.properties").write_text(f"""\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v4
s3proxy.identity=tester
s3proxy.credential=sesame
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={folder / "root"}
""")
    command = [program, "-Dlogback.configurationFile=logback.xml", "-cp", f"{jars}/*", "org.gaul.s3proxy.Main"]
    command += ["--properties", "s3proxy.properties"]
    any_name = {"LC_ALL": "C.UTF-8"}  # without, names of files beyond ASCII are a 400
    with running(command, port, folder / "s3proxy.log", {**environment, **any_name}):
        yield RealStore(
            name="s3proxy", options=s3_options(port), wrong=s3_options(port, secret="wrong"), lost_keys=NO_EMPTY_NAMES
        )


def _cloud_store(emulator: Emulator, name: str, options: dict[str, Any], **traits: Any) -> RealStore:
    return RealStore(name=name, protocol=emulator.protocol, options=options, **traits)


@contextmanager
def running_azurite_through_obstore(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    with running_azurite(folder, environment) as emulator:
        wrong = {"obstore": {**emulator.obstore["obstore"], "account_key": "d3Jvbmc="}}
        traits = {"tail_requests": 2, "lost_keys": _OBSTORE_KEYS, "names_bucket": False}
        yield _cloud_store(emulator, "azurite", emulator.obstore, wrong=wrong, **traits)


@contextmanager
def running_azurite_through_adlfs(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    require_package("adlfs")
    with running_azurite(folder, environment) as emulator:
        yield _cloud_store(
            emulator, "azurite", emulator.filesystem, guarantee="bracketed", tail_requests=3, names_bucket=False
        )


@contextmanager
def running_fake_google_through_gcsfs(folder: Path, environment: Mapping[str, str]) -> Iterator[RealStore]:
    require_package("gcsfs")
    with running_fake_google(folder, environment) as emulator, pytest.MonkeyPatch.context() as variables:
        # gcsfs reads it when it is imported: else it asks by gRPC what kind of bucket this is
        variables.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        traits = {"tail_requests": 2, "names_bucket": False}
        yield _cloud_store(emulator, "fake-gcs-server", emulator.filesystem, **traits)


_OBSTORE_KEYS = {"a//b": "obstore refuses empty parts"}

#: By name; CI has those that pip and npm install.
STORES: Mapping[str, StartStore] = {
    "moto": running_moto,
    "ministack": running_ministack,
    "rclone": running_rclone,
    "s3rver": running_s3rver,
    "versitygw": running_versitygw,
    "gofakes3": running_gofakes3,
    "minio": running_minio,
    "hadro": running_hadro,
    "seaweedfs": running_seaweedfs,
    "garage": running_garage,
    "s3s-fs": running_s3s,
    "s3proxy": running_s3proxy,
    "azurite-obstore": running_azurite_through_obstore,
    "azurite-adlfs": running_azurite_through_adlfs,
    "fake-gcs-server-gcsfs": running_fake_google_through_gcsfs,
}

"""A Ceph cluster for tests: one monitor, one OSD in memory, one RADOS gateway, all on 127.0.0.1."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
MISSING = [program for program in PROGRAMS if shutil.which(program) is None]
START_S = 90.0

CONFIG = """
[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{mon_port}]
public addr = 127.0.0.1
keyring = {folder}/keyring
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
auth allow insecure global id reclaim = false
mon data = {folder}/mon
mon allow pool size one = true
mon data avail warn = 1
mon data avail crit = 1
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{rgw_port} tcp_nodelay=1
"""

ENTITIES = {
    "mon.": ["mon", "allow *"],
    "client.admin": ["mon", "allow *", "osd", "allow *", "mgr", "allow *"],
    "client.rgw": ["mon", "allow rwx", "osd", "allow rwx"],
    "osd.0": ["mon", "allow profile osd", "osd", "allow *"],
}


@dataclass(frozen=True)
class Gateway:
    """A running gateway and the keys of its one user."""

    endpoint: str
    key: str
    secret: str


@contextlib.contextmanager
def running_gateway() -> Iterator[Gateway]:
    """Start the cluster; it and its files are gone afterwards.

    Raises:
        RuntimeError: a program failed or did not become ready; the message ends with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="rgw-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)  # short: sockets' paths are limited to some 100 bytes
        mon_port, rgw_port = _free_ports(2)
        fsid, osd_uuid = str(uuid.uuid4()), str(uuid.uuid4())
        config = folder / "ceph.conf"
        config.write_text(CONFIG.format(folder=folder, fsid=fsid, mon_port=mon_port, rgw_port=rgw_port))
        for data in ("mon", "osd", "rgw"):
            (folder / data).mkdir()
        _make_keyring(folder / "keyring")

        common = ["-c", str(config)]
        monmap = str(folder / "monmap")
        _run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{mon_port}]", "--fsid", fsid, monmap)
        _run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", str(folder / "keyring"), *common)
        stack.enter_context(_daemon(folder, "ceph-mon", "-f", "-i", "a", *common))
        _run("ceph", *common, "--connect-timeout", "30", "osd", "new", osd_uuid)
        _run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd_uuid, *common)
        stack.enter_context(_daemon(folder, "ceph-osd", "-f", "-i", "0", *common))
        gateway = stack.enter_context(_daemon(folder, "radosgw", "-f", "-n", "client.rgw", *common))
        found = Gateway(f"http://127.0.0.1:{rgw_port}", "tester", secrets.token_hex(20))
        _wait_until_ready(found.endpoint, gateway, folder)
        user = ["user", "create", "--uid=tester", "--display-name=tester"]
        _run("radosgw-admin", *common, *user, f"--access-key={found.key}", f"--secret-key={found.secret}")
        yield found


def _make_keyring(path: Path) -> None:
    create = ["--create-keyring"]
    for entity, caps in ENTITIES.items():
        pairs = [part for at in range(0, len(caps), 2) for part in ("--cap", *caps[at : at + 2])]
        _run("ceph-authtool", *create, str(path), "--gen-key", "-n", entity, *pairs)
        create = []


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=START_S
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{command[0]} did not end within {START_S} s: {(error.output or b'')[-2000:]!r}") from None
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout.decode(errors='replace')[-2000:]}")


@contextlib.contextmanager
def _daemon(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / f"{command[0]}.out").open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(endpoint: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    said = "".join(path.read_text(errors="replace")[-1000:] for path in sorted(folder.glob("*.out")))
    raise RuntimeError(f"the gateway is not ready after {START_S} s:\n{said}")


def _free_ports(count: int) -> Sequence[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]

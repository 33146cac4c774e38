#!/usr/bin/env bash
# sshfs 2026.8.0: cat_file(start=, end=) and cat_ranges() give the whole file for every part.
#
# fsspec's interface has both for reading parts: "start, end: Bytes limits of the read". SSHFileSystem takes the two and
# does not look at them, so 4 bytes asked for at the end of a file are all of it. open(), seek() and read() give the
# part, and so does the sftp filesystem of fsspec itself, of the same server.
# Expected: the bytes that were asked for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    sshfs==2026.8.0 asyncssh==2.24.1 fsspec==2026.9.0 paramiko==5.1.0
mkdir "$folder/served"
"$folder/venv/bin/python" - "$folder/served" <<'PYTHON'
import asyncio
import os
import pathlib
import sys
import threading

import asyncssh
from fsspec.implementations.sftp import SFTPFileSystem
from sshfs import SSHFileSystem


class Server(asyncssh.SSHServer):
    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == ("reader", "sesame")


folder = pathlib.Path(sys.argv[1])
(folder / "a.bin").write_bytes(bytes(range(100)))
ready, ports = threading.Event(), []


async def serve() -> None:
    server = await asyncssh.create_server(
        Server,
        "127.0.0.1",
        0,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(folder)),
    )
    ports.append(server.get_port())
    ready.set()
    await asyncio.Event().wait()


threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
assert ready.wait(30)
place = {"port": ports[0], "username": "reader", "password": "sesame"}
wanted, seen = bytes(range(10, 14)), {}
for name, files in (("sshfs", SSHFileSystem("127.0.0.1", **place)), ("fsspec", SFTPFileSystem("127.0.0.1", **place))):
    one, many = files.cat_file("/a.bin", start=10, end=14), files.cat_ranges(["/a.bin"], [10], [14])[0]
    with files.open("/a.bin", "rb") as file:
        file.seek(10)
        assert file.read(4) == wanted
    seen[name] = (len(one), len(many))
    print(f"{name}: asked for 4 bytes; cat_file: {len(one)}, right: {one == wanted}; cat_ranges: {len(many)}")
sys.stdout.flush()
if seen != {"sshfs": (100, 100), "fsspec": (4, 4)}:
    print("otherwise now", file=sys.stderr)
    os._exit(1)
os._exit(0)  # the connections of both have threads
PYTHON

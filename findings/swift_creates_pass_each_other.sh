#!/usr/bin/env bash
# OpenStack Swift 2.38.3: of PUTs at once with `If-None-Match: *`, several create the object; each later one gets 412.
#
# `If-None-Match: *` creates an object only if there is none (RFC 9110, 13.1.2); S3, Google's and Azure's stores let one
# of several such PUTs succeed, and locks, logs and table formats commit so. Swift looks for the object when a PUT
# begins and writes it when its body is there, without a lock between: 8 PUTs at once of one name often give two to four
# 201, and the newest body stays. One PUT after another is refused, so a client that tries the condition once finds it
# kept. Swift's S3 API is a filter over the same PUT.
# Expected: one 201, the others 412.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir swift==2.38.3
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import collections
import concurrent.futures
import http.client
import os
import pathlib
import socket
import subprocess
import sys
import time

folder = pathlib.Path(sys.argv[1])
programs = folder / "venv" / "bin"
(folder / "devices" / "d1").mkdir(parents=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


shared = f"swift_dir = {folder}\nbind_ip = 127.0.0.1\nlog_level = ERROR\nuser = {os.environ.get('USER', 'root')}\n"
(folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n")
environment = {**os.environ, "SWIFT_DIR": str(folder)}
ports = {name: free_port() for name in ("account", "container", "object", "proxy")}
for name, port in ports.items():
    app = "proxy-server" if name == "proxy" else f"{name}-server"
    kind = "proxy" if name == "proxy" else name
    own = "account_autocreate = true" if name == "proxy" else ""
    (folder / f"{name}.conf").write_text(
        f"[DEFAULT]\n{shared}bind_port = {port}\nworkers = 0\nmount_check = false\ndevices = {folder / 'devices'}\n"
        f"[pipeline:main]\npipeline = {app}\n[app:{app}]\nuse = egg:swift#{kind}\n{own}\n"
    )
    if name != "proxy":
        builder = [programs / "swift-ring-builder", folder / f"{name}.builder"]
        for step in (["create", "2", "1", "0"], ["add", f"r1z1-127.0.0.1:{port}/d1", "1"], ["rebalance"]):
            subprocess.run([*builder, *step], check=True, stdout=subprocess.DEVNULL)


def put(path, body, headers):
    connection = http.client.HTTPConnection("127.0.0.1", ports["proxy"], timeout=30)
    connection.request("PUT", f"/v1/AUTH_test{path}", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


servers = []
try:
    for name in ports:
        with (folder / f"{name}.log").open("wb") as log:
            command = [programs / f"swift-{name}-server", folder / f"{name}.conf"]
            servers.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    ends = time.monotonic() + 60
    while True:
        try:
            if put("/bucket", b"", {}) in (201, 202):
                break
        except OSError:
            pass
        assert time.monotonic() < ends, "Swift does not start"
        time.sleep(0.5)
    created = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number in range(100):
            path = f"/bucket/{number}"
            statuses = list(pool.map(lambda one: put(path, b"%d" % one, {"If-None-Match": "*"}), range(8)))
            assert set(statuses) <= {201, 412}, statuses
            assert put(path, b"later", {"If-None-Match": "*"}) == 412
            created[statuses.count(201)] += 1
            if number >= 19 and max(created) > 1:
                break
    print(f"of 8 PUTs at once, these many created the object, and how often: {dict(sorted(created.items()))}")
    assert max(created) > 1, "otherwise now: only one creates"
finally:
    for server in servers:
        server.terminate()
    for server in servers:
        server.wait()
PYTHON

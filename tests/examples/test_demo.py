"""``make demo`` leaves no server running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

# The demo, with a server that accepts connections and answers none, and a process in place of LocalStack's.
SCRIPT = """
import contextlib, socket, subprocess, sys
from examples import demo

server = sys.argv.pop()

@contextlib.contextmanager
def running_localstack():
    if server == "refused":
        endpoint = "http://127.0.0.1:1"
    else:
        silent = socket.create_server(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        print("server", process.pid, flush=True)
        yield endpoint
    finally:
        process.kill()
        process.wait()

demo.running_localstack = running_localstack
demo.main()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, None])
def test_the_demo_stops_its_server(number: signal.Signals | None) -> None:
    arguments = ["--rows", "1000", "refused" if number is None else "silent"]
    environment = {**os.environ, "AWS_MAX_ATTEMPTS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        pid = next(int(line.split()[1]) for line in process.stdout if line.startswith("server"))
        if number is not None:
            time.sleep(0.5)  # it waits for the server
            process.send_signal(number)
        process.stdout.read()
        assert process.wait(60) == (1 if number is None else 128 + number)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

"""Start the S3 that the tests and the examples run against: LocalStack, without Docker.

    python localstack/start.py [--port PORT] [--install]

makes a virtual environment in .localstack/ the first time (it is some 200 MB and takes half a minute),
starts LocalStack on 127.0.0.1, prints its endpoint, and runs until it is interrupted or terminated.
In code: ``with running_localstack() as endpoint: ...``. Where ASYNCPQ_LOCALSTACK_ENDPOINT is set, that
endpoint is used and nothing is started. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
HOME = HERE.parent / ".localstack"
REQUIREMENTS = HERE / "requirements.txt"

_SETTINGS = {
    "SERVICES": "s3",
    "EAGER_SERVICE_LOADING": "1",
    "DISABLE_EVENTS": "1",
    "SKIP_SSL_CERT_DOWNLOAD": "1",
    "DNS_ADDRESS": "0",
    "PERSISTENCE": "0",
    "OVERRIDE_IN_DOCKER": "0",
    "S3_SKIP_SIGNATURE_VALIDATION": "0",
    "LS_LOG": "error",
}


class LocalStackError(RuntimeError):
    """LocalStack could not be installed or started; the message ends with what it said."""


def install(home: Path = HOME) -> Path:
    """Make the virtual environment if it is missing, of other requirements, or of a Python that is gone. Returns its
    interpreter, which need not be of the version that runs this.

    Safe to call from several processes at once.
    """
    home.mkdir(parents=True, exist_ok=True)
    environment = home / "venv"
    python = environment / "bin" / "python"
    stamp = environment / "requirements.sha256"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists() and stamp.exists() and stamp.read_text() == _stamp(environment):
            return python
        print("installing LocalStack into", environment, file=sys.stderr, flush=True)
        venv.create(environment, with_pip=True, clear=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
            check=False,
        )
        if done.returncode != 0:
            raise LocalStackError(f"LocalStack cannot be installed:\n{done.stdout[-2000:]}")
        stamp.write_text(_stamp(environment))
    return python


def _stamp(environment: Path) -> str:
    """Digest of the requirements and of the version of Python (3.11) that made the environment."""
    settings = (environment / "pyvenv.cfg").read_text()
    version = settings.partition("version = ")[2].split()[0]
    major_minor = ".".join(version.split(".")[:2])
    return hashlib.sha256(REQUIREMENTS.read_bytes() + major_minor.encode()).hexdigest()


@contextlib.contextmanager
def running_localstack(port: int | None = None, *, timeout_s: float = 120.0) -> Iterator[str]:
    """A running LocalStack's endpoint, ``http://127.0.0.1:port``; it is stopped on leaving.

    Args:
        port: None for a free one.
        timeout_s: how long it may take to start.

    Raises:
        LocalStackError: it cannot be installed or does not start.
    """
    given = os.environ.get("ASYNCPQ_LOCALSTACK_ENDPOINT")
    if given:
        yield given.rstrip("/")
        return
    python = install()
    chosen = port or _free_port()
    endpoint = f"http://127.0.0.1:{chosen}"
    # A folder of its own, also to start in: LocalStack breaks where there is a folder named moto.
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=HOME))
    log = folder / "log"
    settings = {"GATEWAY_LISTEN": f"127.0.0.1:{chosen}", "FILESYSTEM_ROOT": str(folder / "files")}
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [python, "-m", "localstack.runtime.main"],
                cwd=folder,
                env={**_environment(), **_SETTINGS, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_until_ready(process, endpoint, log, timeout_s)
            yield endpoint
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """This process's environment without what would leak this project's Python into LocalStack's."""
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], endpoint: str, log: Path, timeout_s: float) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise LocalStackError(f"LocalStack ended with {process.returncode}:\n{_tail(log)}")
        try:
            with opener.open(f"{endpoint}/_localstack/health", timeout=2) as response:
                if json.load(response)["services"].get("s3") == "running":
                    return
        except (OSError, ValueError, KeyError):
            pass  # not listening yet, or not ready
        time.sleep(0.1)
    raise LocalStackError(f"LocalStack was not ready within {timeout_s:.0f} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_bytes()[-2000:].decode("utf-8", "replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group."""
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    # SIGKILL is sent in any case: the leader may have left children behind.


def stop_on_signals(status: int | None = None) -> None:
    """Let SIGTERM, SIGINT and SIGHUP end this process by SystemExit: it leaves :func:`running_localstack`, which
    stops the server. Later ones are ignored meanwhile.

    ``status``: the exit status; None for the shell's, 128 and the signal's number.
    """
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def leave(number: int, frame: FrameType | None) -> None:
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number if status is None else status)

    for number in signals:
        signal.signal(number, leave)


def main() -> None:
    parser = argparse.ArgumentParser(description="Start LocalStack's S3 and print its endpoint.")
    parser.add_argument("--port", type=int, default=None, help="default: a free one")
    parser.add_argument("--install", action="store_true", help="only make its virtual environment")
    arguments = parser.parse_args()
    if arguments.install:
        install()
        return
    stop_on_signals(0)
    with running_localstack(arguments.port) as endpoint:
        print(endpoint, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()

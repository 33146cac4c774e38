"""A Spark standalone cluster on this machine, as a user would start it: a master and two workers.

    python tests/spark/cluster.py FOLDER

keeps their logs and working files in FOLDER, prints the master's url, and stops everything when its standard input
ends: whoever started it may die without a word. Needs nothing but the standard library, pyspark and Java. A worker has
one core and 1 GiB, and Spark speculates only onto another host than the first attempt's: the workers are
127.0.0.1 and 127.0.0.2.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")
#: For JVMs that live for minutes on a small machine.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_START_S = 120.0
_STOP_S = 5.0


class ClusterError(RuntimeError):
    """The cluster did not start; the message ends with what its processes said."""


@dataclass(frozen=True)
class Executor:
    """A process of the application: Spark's id of it, its host, its process id."""

    id: int
    host: str
    pid: int


@dataclass(frozen=True)
class Cluster:
    """``folder`` holds the logs, and below ``events`` and ``driver.log`` what the session's driver writes."""

    url: str
    folder: Path

    @property
    def events(self) -> Path:
        """Folder of the event logs."""
        return self.folder / "events"

    @property
    def driver_log(self) -> Path:
        return self.folder / "driver.log"

    def logs(self) -> list[Path]:
        """Of master, workers and driver, and the standard output and error of every executor there was."""
        executors = self.folder.glob("work-*/app-*/*/std*")
        return sorted([*self.folder.glob("*.log"), *executors])

    def executors(self, application: str) -> list[Executor]:
        """Those that run now, by ``spark.sparkContext.applicationId``."""
        return [executor for executor, owner in _executors() if owner == application]

    def wait_for_executors(self, application: str, count: int = len(WORKER_HOSTS), timeout_s: float = 60.0) -> None:
        """A worker starts another executor for one that died: wait until there are ``count``."""
        until = time.monotonic() + timeout_s
        while len(self.executors(application)) < count:
            if time.monotonic() > until:
                raise ClusterError(f"{application} has {self.executors(application)}, not {count}")
            time.sleep(0.05)

    def kill_executor(self, application: str, host: str | None = None) -> Executor:
        """End one without warning, and its Python workers with it. Returns which."""
        executor = next(found for found in self.executors(application) if host in (None, found.host))
        os.kill(executor.pid, signal.SIGKILL)
        return executor


def kill_own_executor(once: Path) -> None:
    """Called in a task: end the executor that runs it, unless a task did so before, which ``once`` remembers.

    Does not return, but where it does nothing.
    """
    try:
        once.touch(exist_ok=False)
    except FileExistsError:
        return
    pid = own_executor()
    os.kill(pid, signal.SIGKILL)
    time.sleep(60)  # the end of the executor ends this process


def own_executor() -> int:
    """Called in a task: the process id of its executor, which is some parent of the Python worker."""
    pid = os.getpid()
    while _EXECUTOR not in _command(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid <= 1:
            raise RuntimeError("not in a task of a cluster")
    return pid


@contextlib.contextmanager
def running_cluster(folder: Path, environment: dict[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster with its files in ``folder``, stopped on leaving. Its executors inherit ``environment``.

    Raises:
        ClusterError: it did not start.
    """
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    with process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise ClusterError(f"no Spark cluster:\n{_tails(folder)}")
            yield Cluster(url, folder)
        finally:
            process.stdin.close()
            process.wait(60)


def _executors() -> Iterator[tuple[Executor, str]]:
    """All on this machine, with the ids of their applications."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        words = _command(int(entry.name))
        if _EXECUTOR in words:
            options = dict(itertools.pairwise(words))
            found = Executor(int(options["--executor-id"]), options["--hostname"], int(entry.name))
            yield found, options["--app-id"]


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
    except OSError:
        return []  # it ended


def _tails(folder: Path) -> str:
    return "\n".join(f"{log.name}: {log.read_text('utf-8', 'replace')[-2000:]}" for log in sorted(folder.glob("*.log")))


def _start(folder: Path, name: str, *arguments: str, host: str) -> tuple[subprocess.Popen[bytes], Path]:
    """One daemon. It stays in this process's group, as do the executors that a worker starts."""
    import pyspark

    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    with log.open("wb") as output:
        command = [str(home / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    return process, log


def _wait_for_line(process: subprocess.Popen[bytes], log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        if found := pattern.search(log.read_text("utf-8", "replace")):
            return found
        time.sleep(0.05)
    raise SystemExit(f"{log.name} has no {pattern.pattern!r}")


def _keep(folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start all; ports are free ones."""
    ports = ("--port", "0", "--webui-port", "0")
    master, log = _start(
        folder, "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *ports, host="127.0.0.1"
    )
    url = _wait_for_line(master, log, _MASTER_URL)[1]
    workers = []
    for number, host in enumerate(WORKER_HOSTS, start=1):
        place = ["--host", host, "--work-dir", str(folder / f"work-{number}")]
        size = ["--cores", "1", "--memory", "1g"]
        kind = "org.apache.spark.deploy.worker.Worker"
        workers.append(_start(folder, f"worker-{number}", kind, *place, *size, *ports, url, host=host))
    for worker, log in workers:
        _wait_for_line(worker, log, re.compile("Successfully registered with master"))
    print(url, flush=True)  # noqa: T201
    return [master, *(worker for worker, _ in workers)]


def main() -> None:
    folder = Path(sys.argv[1])
    for name in ("events", "local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # sent to the whole group below; SIG_IGN is inherited
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes = _keep(folder)
        sys.stdin.read()
    finally:
        os.killpg(0, signal.SIGTERM)
        until = time.monotonic() + _STOP_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        shutil.rmtree(folder / "local", ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # this process, too


if __name__ == "__main__":
    main()

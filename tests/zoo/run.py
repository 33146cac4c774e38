"""``make zoo``: install the writers, let them write, ask about their files, and write docs/files-read-right.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.zoo.ask import Verdict
from tests.zoo.environments import NotInstalledError
from tests.zoo.registry import PROGRAMS, WRITERS, Writer
from tests.zoo.report import ROOT, markdown, write_page

WRITE_TIMEOUT_S = 300
FILE_TIMEOUT_S = 120


@dataclass(kw_only=True)
class Result:
    """What came of one writer."""

    name: str
    version: str
    said: str = ""  # its own name and version
    not_installed: str = ""
    failed: str = ""  # how its program ended, if not well
    skipped: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


class AskingError(Exception):
    """The process that asks did not begin."""


class Zoo:
    """The folders of one run."""

    def __init__(self, folder: Path, questions: int) -> None:
        self.folder = folder
        self.questions = questions
        self._told = threading.Lock()

    def tell(self, text: str) -> None:
        """Print one line of progress."""
        with self._told:
            sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            sys.stdout.flush()

    def ask_again(self, writer: Writer) -> None:
        """Ask only about the files that were not right, and store the result."""
        result = self.stored(writer)
        if result is None:
            return
        good = [verdict for verdict in result.verdicts if verdict.outcome == "right"]
        left = [verdict.variant for verdict in result.verdicts if verdict.outcome != "right"]
        result.verdicts = sorted(
            good + self._ask(self.folder / "files" / writer.folder, left), key=lambda verdict: verdict.variant
        )
        self._store(writer, result)

    def run(self, writer: Writer, *, rewrite: bool, ask_only: bool) -> None:
        """All steps for one writer, up to its stored result."""
        result = self.stored(writer) or Result(name=writer.name, version=writer.version)
        files = self.folder / "files" / writer.folder
        if ask_only and not files.is_dir():
            return
        if not ask_only and (rewrite or result.failed or not files.is_dir()):
            result = Result(name=writer.name, version=writer.version)
            try:
                self.write(writer, files, result)
            except NotInstalledError as error:
                result.not_installed = self._shown(str(error))
        if files.is_dir():
            try:
                result.verdicts = self._ask(files, sorted(path.stem for path in files.glob("*.parquet")))
            except AskingError as error:
                result.failed = f"asking failed: {error}"
        self._store(writer, result)

    def _store(self, writer: Writer, result: Result) -> None:
        (self.folder / "results").mkdir(exist_ok=True)
        self._result_path(writer).write_text(json.dumps(asdict(result), indent=1))
        self.tell(f"{writer.folder}: {summary(result)}")

    def stored(self, writer: Writer) -> Result | None:
        """The result of an earlier run."""
        path = self._result_path(writer)
        if not path.is_file():
            return None
        fields = json.loads(path.read_text())
        fields["verdicts"] = [Verdict(**verdict) for verdict in fields["verdicts"]]
        return Result(**fields)

    def _result_path(self, writer: Writer) -> Path:
        return self.folder / "results" / f"{writer.folder}.json"

    def _command(self, writer: Writer) -> list[str]:
        """The installed writer's command; installs it if that is still to be done."""
        folder = self.folder / "environments" / writer.folder
        stamp, program = folder / "command.json", PROGRAMS / writer.program
        state = f"{writer.environment!r} {_digest(program)}"
        if stamp.is_file():
            known = json.loads(stamp.read_text())
            if known["state"] == state:
                return [str(part) for part in known["command"]]
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        self.tell(f"{writer.folder}: installing")
        command = writer.environment.prepare(folder, program)
        stamp.write_text(json.dumps({"state": state, "command": command}))
        return command

    def write(self, writer: Writer, files: Path, result: Result) -> None:
        """Let a writer write into ``files``, whose old content goes.

        Raises:
            NotInstalledError: it cannot be installed here.
        """
        command = self._command(writer)
        shutil.rmtree(files, ignore_errors=True)
        fresh = files.with_name(f".{files.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        with subprocess.Popen(
            [*command, str(fresh)],
            cwd=self.folder / "environments" / writer.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            try:
                out, err = process.communicate(timeout=WRITE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                result.failed = f"not done after {WRITE_TIMEOUT_S} s"
        for line in out.splitlines():
            if line.startswith("writer "):
                result.said = line.removeprefix("writer ")
            elif line.startswith("skipped "):
                result.skipped.append(line.removeprefix("skipped "))
        if process.returncode and not result.failed:
            result.failed = self._shown(
                f"exit status {process.returncode}: {' / '.join(err.strip().splitlines()[-3:])}"
            )
        fresh.rename(files)

    def _shown(self, text: str) -> str:
        """Without the paths of this machine."""
        return text.replace(str(self.folder), ".zoo").replace(f"{ROOT}/", "")

    def _ask(self, files: Path, left: list[str]) -> list[Verdict]:
        """Verdicts of these files; a process that dies or hangs is that of the file it was at."""
        verdicts: list[Verdict] = []
        while left:
            done, at, how = self._ask_once(files, left)
            verdicts += done
            if at is not None:
                verdicts.append(Verdict(variant=at, outcome="crashed", failures=[f"crashed: {how}"]))
            judged = {verdict.variant for verdict in verdicts}
            if not done and at is None:
                raise AskingError(how)
            left = [variant for variant in left if variant not in judged]
        return sorted(verdicts, key=lambda verdict: verdict.variant)

    def _ask_once(self, files: Path, variants: list[str]) -> tuple[list[Verdict], str | None, str]:
        command = [sys.executable, "-m", "tests.zoo.ask", str(files), str(self.questions), *variants]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        verdicts: list[Verdict] = []
        at: str | None = None
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            alarm = threading.Timer(FILE_TIMEOUT_S * len(variants), process.kill)
            alarm.start()
            for line in process.stdout:
                fields = json.loads(line)
                if "begin" in fields:
                    at = fields["begin"]
                else:
                    verdicts.append(Verdict(**fields))
                    at = None
            alarm.cancel()
            errors = process.stderr.read().strip().splitlines()
        return verdicts, at, f"the process ended with {process.returncode}: {' / '.join(errors[-3:])}"


def _digest(program: Path) -> str:
    """Of the sources of a program: a file, or a folder of one. A Python program needs no new environment."""
    digest = hashlib.sha256()
    paths = sorted(program.rglob("*")) if program.is_dir() else [] if program.suffix == ".py" else [program]
    for path in paths:
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def summary(result: Result) -> str:
    """One line."""
    if result.not_installed:
        return f"not installed: {result.not_installed}"
    outcomes = [verdict.outcome for verdict in result.verdicts]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes)))
    failed = f"; the program failed: {result.failed}" if result.failed else ""
    return f"{len(outcomes)} files: {counts}{failed}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".zoo", help="where all is kept (.zoo)")
    parser.add_argument("--only", action="append", default=[], help="writers whose name-version begins so")
    parser.add_argument("--rewrite", action="store_true", help="write files again that are there")
    parser.add_argument("--ask-only", action="store_true", help="install and write nothing")
    parser.add_argument("--again", action="store_true", help="ask only about files that were not right")
    parser.add_argument("--questions", type=int, default=50, help="of each file (50)")
    parser.add_argument("--jobs", type=int, default=2, help="writers at a time (2)")
    arguments = parser.parse_args()
    zoo = Zoo(arguments.folder.resolve(), arguments.questions)
    zoo.folder.mkdir(parents=True, exist_ok=True)
    wanted = [w for w in WRITERS if not arguments.only or w.folder.startswith(tuple(arguments.only))]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        if arguments.again:
            list(pool.map(zoo.ask_again, wanted))
        else:
            list(pool.map(lambda w: zoo.run(w, rewrite=arguments.rewrite, ask_only=arguments.ask_only), wanted))
    results = [stored for writer in WRITERS if (stored := zoo.stored(writer)) is not None]
    if len(results) < len(WRITERS):
        lacking = len(WRITERS) - len(results)
        zoo.tell(f"docs/files-read-right.md stays as it is: {lacking} of {len(WRITERS)} writers have no results yet")
        return
    write_page("files-read-right.md", markdown([asdict(result) for result in results]))
    zoo.tell("written: docs/files-read-right.md")


if __name__ == "__main__":
    main()

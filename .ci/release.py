"""What must hold before a release: `make release-check`.

Builds the wheel and the source archive twice, from what git holds, and compares them byte by byte; checks contents and
metadata; installs `asyncpq-parquet[cli]` from the wheel, as users do, and the wheel into a fresh environment, where
mypy, pyright and pyrefly check a user's program and pyright the types of all public names; writes the bill of materials
of what a user gets. Ends with an error at the first thing that does not hold. Leaves all of it in dist/.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CHECKERS = ["mypy>=1.18", "pyright>=1.1.400", "pyrefly>=1.0"]
OPTIONAL = ["cli", "ducklake", "fsspec", "iceberg", "obstore", "otel", "polars", "serve", "spark", "valkey"]
NAME = "asyncpq-parquet"
TOOLS = ["build>=1.2", "twine>=6.0", "cyclonedx-bom>=7.0"]


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command; return what it prints. Ends the program if the command fails."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """Make a virtual environment with the packages; return the folder of its programs."""
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages)
    return folder / "bin"


def step(title: str) -> None:
    """Say what comes next."""
    sys.stdout.write(f"== {title}\n")
    sys.stdout.flush()


def clean_copy(folder: Path) -> None:
    """Copy what git holds of the tree."""
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each archive."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def build(tools: Path, work: Path) -> dict[str, str]:
    """Build twice, in two folders, a second apart and more; return the digests, which must be the same."""
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    found = []
    for name in ("one", "two"):
        source, out = work / name / "source", work / name / "dist"
        clean_copy(source)
        run(tools / "python", "-m", "build", "--outdir", out, source, SOURCE_DATE_EPOCH=epoch)
        found.append(digests(out))
    if found[0] != found[1]:
        sys.exit(f"two builds differ: {found}")
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(work / "one" / "dist", DIST)
    return found[0]


def check_versions(version: str) -> None:
    """The version is the same everywhere, and the change log has it."""
    places = {
        "asyncpq/__init__.py": rf'^__version__ = "{re.escape(version)}"$',
        "CITATION.cff": rf"^version: {re.escape(version)}$",
        "CHANGELOG.md": rf"^## \[{re.escape(version)}\]",
        "conda/recipe.yaml": rf'^  version: "{re.escape(version)}"$',
    }
    for name, pattern in places.items():
        if not re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
            sys.exit(f"{name} does not have version {version}")


def check_types(work: Path, wheel: Path) -> None:
    """Three checkers accept a user's program; the types of all public names are complete."""
    # With what the optional parts import: classes of packages that are missing would count as unknown.
    programs = environment(work / "user", f"{wheel}[{','.join(OPTIONAL)}]", *CHECKERS)
    program = work / "program"
    shutil.copytree(ROOT / "tests" / "typing", program)
    python = programs / "python"
    run(python, "-m", "mypy", "--strict", ".", cwd=program)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    run(programs / "pyright", cwd=program, PATH=path)
    run(programs / "pyrefly", "check", "--python-interpreter-path", python, *program.glob("*.py"), cwd=program)
    verify_types(programs / "pyright", cwd=program, PATH=path)


def check_installation(work: Path, version: str) -> None:
    """The name and extra that the documents name install the module and the command, from the built wheel."""
    programs = environment(work / "installed", "--find-links", DIST, f"{NAME}[cli]=={version}")
    for said in (run(programs / "asyncpq", "--version", cwd=work), run(programs / "asyncpq", "--help", cwd=work)):
        sys.stdout.write(f"{said.strip().splitlines()[0]}\n")
    if f"asyncpq {version}" not in run(programs / "asyncpq", "--version", cwd=work):
        sys.exit(f"the installed command is not version {version}")


def verify_types(pyright: Path, cwd: Path, **environment: str) -> None:
    """Check that all public names have types, bar what asyncpq.fsspec inherits from fsspec, which is untyped."""
    command: list[str | Path] = [pyright, "--verifytypes", "asyncpq", "--ignoreexternal"]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, text=True, capture_output=True, check=False
    )
    wrong, name = list[str](), ""
    for line in done.stdout.splitlines():
        name = line if line.startswith("asyncpq.") else name
        if "error:" in line and not ("unknown" in line and name.startswith("asyncpq.fsspec.")):
            wrong.append(f"{name}: {line.strip()}")
    scores = re.findall(r"Type completeness score: (\S+)%", done.stdout)
    if wrong or not scores:
        sys.exit("\n".join(wrong) or done.stdout + done.stderr)
    sys.stdout.write(f"types of public names: {scores[0]} %, the rest being fsspec's\n")


def main() -> None:
    """Check everything."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    step("versions")
    check_versions(version)
    with tempfile.TemporaryDirectory(prefix="asyncpq-release-") as folder:
        work = Path(folder)
        tools = environment(work / "tools", *TOOLS)
        step("two builds")
        for name, digest in build(tools, work).items():
            sys.stdout.write(f"{digest}  {name}\n")
        step("contents and metadata")
        stem = f"asyncpq_parquet-{version}"
        wheel, archive = DIST / f"{stem}-py3-none-any.whl", DIST / f"{stem}.tar.gz"
        sys.stdout.write(
            run(tools / "python", ROOT / ".ci" / "check_wheel.py", wheel, work / "one" / "source" / "asyncpq")
        )
        with tarfile.open(archive) as packed:
            held = {name.partition("/")[2] for name in packed.getnames()}
        lacking = {"pyproject.toml", "mkdocs.yml", "tests/conftest.py", "docs/index.md", "Makefile"} - held
        if lacking:
            sys.exit(f"{archive.name} lacks {sorted(lacking)}")
        run(tools / "python", "-m", "twine", "check", "--strict", wheel, archive)
        step("types")
        check_types(work, wheel)
        step("as users install it")
        check_installation(work, version)
        step("bill of materials")
        bare = environment(work / "bare", wheel)
        bill = DIST / f"{stem}.cdx.json"
        run(tools / "cyclonedx-py", "environment", bare / "python", "--output-reproducible", "-o", bill)
    step("done")


if __name__ == "__main__":
    main()

"""``--html``, ``--svg`` and ``--png`` write the page map, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import app


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"id": range(100)}), folder / f"{name}.parquet", write_page_index=True)
    return folder


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


@pytest.mark.parametrize("target", ["", "a.parquet"])
def test_pictures_are_written_beside_the_report(lake: Path, tmp_path: Path, target: str) -> None:
    pictures = {option: tmp_path / f"map.{option}" for option in ("png", "html", "svg")}
    options = [part for option, path in pictures.items() for part in (f"--{option}", path)]
    done = run(lake / target, *options, "--format", "json")
    assert done.exit_code == 0, done.output
    assert done.stdout == run(lake / target, "--format", "json").stdout
    assert done.stderr.splitlines() == [f"page map: {path}" for path in pictures.values()]
    assert [path.read_bytes()[:8] for path in pictures.values()] == [b"\x89PNG\r\n\x1a\n", b"<!doctyp", b"<svg xml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "map.html", "map.png", "map.svg"]


def test_a_folder_that_is_not_there_is_one_line(lake: Path, tmp_path: Path) -> None:
    done = run(lake / "a.parquet", "--html", tmp_path / "none" / "map.html")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "No such file or directory" in done.stderr


def test_a_png_without_its_package_is_wrong_usage(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    done = run(lake / "a.parquet", "--png", tmp_path / "map.png")
    assert (done.exit_code, "[png]" in done.stderr) == (2, True)
    assert not (tmp_path / "map.png").exists()


@pytest.mark.parametrize("option", ["--html", "--svg", "--png"])
def test_a_page_map_replaces_no_parquet_file(lake: Path, option: str) -> None:
    path = next(lake.rglob("*.parquet"))
    content = path.read_bytes()
    done = CliRunner().invoke(app, ["inspect", str(path), option, str(path)])
    assert done.exit_code == 2
    assert f"{option} {path}: a Parquet file of this name is there" in done.stderr
    assert path.read_bytes() == content

"""``asyncpq serve --check`` finds what is wrong before the service starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncpq.serve.__main__ import main
from asyncpq.serve.configuration import load_configuration
from asyncpq.serve.datasets import configuration_faults
from tests.serve.services import write_lake


def written(folder: Path, url: str, rights: str) -> Path:
    lines = [
        "[datasets.trips]", f"url = {json.dumps(url)}", "[tokens.reader]", f'sha256 = "{"0" * 64}"',
        f"datasets = {{ trips = {rights} }}",
    ]  # fmt: skip
    path = folder / "service.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def lake(tmp_path: Path) -> str:
    (tmp_path / "lake").mkdir()
    write_lake(tmp_path / "lake")
    return f"{tmp_path}/lake/"


async def test_nothing_is_wrong(tmp_path: Path, lake: str) -> None:
    path = written(tmp_path, lake, '{ columns = ["id", "user"], rows = "id > 5" }')
    assert await configuration_faults(load_configuration(path)) == []


async def test_a_missing_dataset(tmp_path: Path) -> None:
    (fault,) = await configuration_faults(load_configuration(written(tmp_path, f"{tmp_path}/missing/", "{}")))
    assert fault.startswith("dataset trips: ")


@pytest.mark.parametrize(("name", "value"), [("view", "snapshot"), ("index", "none/")])
async def test_a_missing_index_is_built_by_a_command(tmp_path: Path, lake: str, name: str, value: str) -> None:
    path = written(tmp_path, lake, "{}")
    path.write_text(path.read_text().replace("[tokens", f'{name} = "{value}"\n[tokens'))
    (fault,) = await configuration_faults(load_configuration(path))
    assert "`asyncpq index build` builds" in fault
    assert "build_index()" not in fault


async def test_misspelt_columns(tmp_path: Path, lake: str) -> None:
    path = written(tmp_path, lake, '{ columns = ["idd"], rows = "usr = 5" }')
    columns, rows = await configuration_faults(load_configuration(path))
    assert columns.startswith("token reader, dataset trips: columns: there is no column 'idd'")
    assert rows.startswith("token reader, dataset trips: rows: ")
    assert "usr" in rows


def test_the_exit_code(
    tmp_path: Path, lake: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main([str(written(tmp_path, lake, "{}")), "--check"]) == 0
    assert capsys.readouterr().out == "Datasets that are open: 1; tokens whose rights fit them: 1.\n"
    assert main([str(written(tmp_path, f"{tmp_path}/missing/", "{}")), "--check"]) == 2
    assert capsys.readouterr().err.startswith("asyncpq: dataset trips: ")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []  # each fault is told once
    assert main(["--check"]) == 2


async def test_options_of_a_store_are_named_as_in_the_file(tmp_path: Path, lake: str) -> None:
    path = written(tmp_path, lake, "{}")
    path.write_text(f'[storage]\nendpoint_url = "http://127.0.0.1:9"\n{path.read_text()}')
    (fault,) = await configuration_faults(load_configuration(path))
    assert "have no option endpoint_url" in fault
    assert "[storage.s3]" in fault

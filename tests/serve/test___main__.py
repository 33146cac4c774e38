"""``python -m asyncpq.serve``: what ends before anything is served."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpq.serve.__main__ import DEMO_ROWS, demo_greeting, main, make_demo
from asyncpq.serve.access import token_digest
from tests.serve.services import bearer, client_of


def test_a_new_token_comes_with_its_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--new-token"]) == 0
    (_, token), (_, digest) = (line.split() for line in capsys.readouterr().out.splitlines())
    assert token_digest(token).hex() == digest


@pytest.mark.heavy
@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_one_line(package: str) -> None:
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['--demo', '--port', '0']\n"
        "runpy.run_module('asyncpq.serve', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"asyncpq: the service requires the package {package}, which is not installed. Inst")
    assert done.stderr.count("\n") == 1
    assert not done.stdout  # nor tokens


@pytest.mark.parametrize("arguments", [[], ["a.toml", "--demo"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "--demo" in capsys.readouterr().err


def test_a_wrong_configuration_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.toml"
    path.write_text("[serve]\n")
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


async def test_the_demo_serves_what_it_made(tmp_path: Path) -> None:
    configuration, tokens = make_demo(str(tmp_path))
    async with client_of(configuration, token=tokens["all"]) as client:
        assert (await client.get("/v1/trips/count")).json()["rows"] == DEMO_ROWS
        assert (await client.get("/v1/trips/lookup?id=42")).json()["rows"][0]["id"] == 42
        north = (await client.get("/v1/trips/scan?limit=3", headers=bearer(tokens["north"]))).json()["rows"]
        assert {row["region"] for row in north} == {"north"}
    text = demo_greeting(configuration, tokens)
    assert all(token in text for token in tokens.values())
    requests = re.findall(r"^curl -H 'Authorization: Bearer (\S+)' 'http://[^/]+(\S+)'$", text, re.MULTILINE)
    assert [token for token, _ in requests] == [*tokens.values()]
    for token, request in requests:
        assert not re.search(r"[<> \"]", request)  # which curl and others refuse, or encode differently
        async with client_of(configuration, token=token) as client:
            assert (await client.get(request)).json()["rows"]

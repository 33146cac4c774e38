"""examples/container/Containerfile is Debian slim, runs without rights, and copies what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import asyncpq
from asyncpq.serve import Service
from asyncpq.serve.__main__ import parser
from asyncpq.serve.access import token_digest
from asyncpq.serve.configuration import Configuration, load_configuration

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "examples" / "container" / "Containerfile").read_text(encoding="utf-8").splitlines()


def test_the_image_is_slim_and_its_user_has_no_rights() -> None:
    bases = [line.split()[1] for line in LINES if line.startswith("FROM")]
    assert all("-slim" in base for base in bases)
    users = [line.split()[1] for line in LINES if line.startswith("USER")]
    assert users == ["10001"]
    assert LINES.index("USER 10001") < next(at for at, line in enumerate(LINES) if line.startswith("ENTRYPOINT"))


def test_it_copies_what_exists() -> None:
    copied = [line.split()[1:-1] for line in LINES if re.match(r"COPY (?!--)", line)]
    assert copied
    # Where the tests run against the installed wheel, the tree has no asyncpq folder: the package stands for it.
    folders = {"asyncpq": Path(asyncpq.__file__).parent}
    assert all(folders.get(name, ROOT / name).exists() for names in copied for name in names)


def test_the_files_beside_it_are_a_configuration_and_name_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "examples" / "container"
    services = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))["services"]
    service = services["service"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    loaded = load_configuration(folder / "service.toml")
    (token,) = loaded.tokens
    assert token.sha256 == token_digest(service["environment"]["TRIPS_TOKEN"])
    assert loaded.session["storage_options"]["s3"]["endpoint_url"] == "http://store:9000"
    assert (folder / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert parser().parse_args(service["command"]).workers == 2


def test_the_manifest_of_kubernetes_names_what_the_service_has() -> None:
    page = (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {route.path for route in Service(Configuration()).app.routes}
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("readiness", "liveness")} <= paths
    assert pod["securityContext"]["runAsUser"] == 10001
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}

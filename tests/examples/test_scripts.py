"""`make demo` and `make bench` do what they say, on small files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.heavy
def test_demo(localstack: str) -> None:
    output = run("examples.demo", "--rows", "100000", ASYNCPQ_LOCALSTACK_ENDPOINT=localstack)
    assert output.count("the rows are equal") == 2
    assert max(map(len, output.partition("What the range read")[0].splitlines())) <= 100
    asked = re.findall(r"(\S[\w.% ]+?) +asyncpq +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+) ", output)
    assert [question for question, *_ in asked] == ["cold lookup", "warm lookup", "0.1 % range", "take 5 rows"] * 2
    assert [rows for _, rows, *_ in asked] == ["1", "1", "100", "5"] * 2
    assert all(int(rounds) <= (2 if question == "cold lookup" else 1) for question, _, _, rounds, _ in asked)


@pytest.mark.slow
def test_benchmark(tmp_path: Path) -> None:
    options = ["--rows", "30000", "--repeats", "1", "--limit-s", "1", "--first-byte-ms", "2"]
    options += ["--peers", "asyncpq", "asyncpq-no-pages", "--workloads", "W1", "W2", "W3_16", "W5c"]
    output = run("benchmarks.run", *options, "--data", str(tmp_path / "data"), "--results", str(tmp_path / "results"))
    assert "### W3_16: warm lookups, 16 at once" in output
    (written,) = (tmp_path / "results").glob("*.json")
    results = json.loads(written.read_text())
    runs = {(one["peer"], one["workload"]): one for one in results["runs"]}
    assert len(runs) == 8
    unsorted = runs["asyncpq", "W5c"]
    assert unsorted["head"] == unsorted["list"] == 0
    assert results["least_bytes"].keys() == {"events", "events-bloom"}
    warm = runs["asyncpq-no-pages", "W2"]
    # One round trip has to take every page that overlaps the key's page, and need not take more.
    assert 0.9 <= warm["bytes"] / results["least_bytes"]["events"] <= 2.5
    assert warm["rounds"] <= 1.2
    assert warm["head"] == warm["list"] == 0

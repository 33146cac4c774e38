"""Settings of the whole test run: hypothesis profiles, and which asyncpq is tested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import asyncpq

# Examples decode files, so a wall-clock deadline would only measure the machine.
_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large]
_EXAMPLES = 50  # of each property; `make test-all` takes 500
settings.register_profile("dev", deadline=None, suppress_health_check=_slow_is_fine, max_examples=_EXAMPLES)
# Derandomised: a red build is about the change, not about luck. New examples are found by developers and
# by `make test-all`.
settings.register_profile(
    "ci",
    deadline=None,
    suppress_health_check=_slow_is_fine,
    max_examples=_EXAMPLES,
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.register_profile(
    "thorough", deadline=None, suppress_health_check=_slow_is_fine, max_examples=500, print_blob=True
)
settings.load_profile(os.environ.get("ASYNCPQ_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_report_header() -> str:
    return f"asyncpq: {_installed_from()}"


def pytest_configure() -> None:
    # .ci/run tests the built wheel, and must notice if the source tree is imported instead.
    if os.environ.get("ASYNCPQ_TEST_WHEEL") and "site-packages" not in _installed_from().parts:
        raise pytest.UsageError(f"ASYNCPQ_TEST_WHEEL is set, but asyncpq was imported from {_installed_from()}")


def _installed_from() -> Path:
    return Path(asyncpq.__file__).parent

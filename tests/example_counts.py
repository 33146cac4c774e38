"""How many examples there are of what takes long to test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int, *, thorough: int) -> int:
    """``count``, and by ``make test-all`` (see tests/conftest.py) ``thorough``."""
    return thorough if settings.get_current_profile_name() == "thorough" else count


def second_slow(cases: Iterable[Any]) -> list[Any]:
    """The cases of a parameter, every second of them as a slow test."""
    marked = []
    for number, case in enumerate(cases):
        values, marks, name = (
            (case.values, case.marks, case.id)
            if hasattr(case, "marks")
            else (case if isinstance(case, tuple) else (case,), (), None)
        )
        marked.append(pytest.param(*values, marks=[*marks, *[pytest.mark.slow] * (number % 2)], id=name))
    return marked

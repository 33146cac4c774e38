"""How many examples there are of what takes long to test."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int, *, thorough: int) -> int:
    """``count``, and by ``make test-all`` (see tests/conftest.py) ``thorough``."""
    return thorough if settings.get_current_profile_name() == "thorough" else count

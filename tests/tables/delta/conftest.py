from __future__ import annotations

from pathlib import Path

import pytest

from tests.delta_tables import DeltaWriter


@pytest.fixture
def writer(tmp_path: Path) -> DeltaWriter:
    """A writer of a table that is empty so far."""
    return DeltaWriter(tmp_path / "a table")

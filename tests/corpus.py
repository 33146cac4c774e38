"""Real Parquet files that this project did not write: the data of apache/parquet-testing.

They are found through the environment variable ``ASYNCPQ_CORPUS``, or at ``../shared/corpus`` from the
project's root. Tests that need them skip, with the reason, where they are absent.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("ASYNCPQ_CORPUS") or _ROOT.parent / "shared" / "corpus")
DATA = CORPUS / "parquet-testing" / "data"
BAD_DATA = CORPUS / "parquet-testing" / "bad_data"

requires_corpus = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no parquet-testing files at {CORPUS}; set ASYNCPQ_CORPUS to a folder that has them"
)


def corpus_files(folder: Path = DATA) -> list[Path]:
    """All Parquet files below ``folder``, sorted; none where the corpus is absent."""
    return sorted(folder.rglob("*.parquet")) if folder.is_dir() else []

"""What findings weigh."""

from __future__ import annotations

import pytest

from asyncpq.reports.lint_subject import cost_text, listed, severity
from asyncpq.reports.lookup_cost import LookupCost


@pytest.mark.parametrize(("share", "text"), [(0.9, "high"), (0.4, "high"), (0.2, "medium"), (0.05, "low"), (0, "low")])
def test_severities(share: float, text: str) -> None:
    assert severity(share) == text


def test_texts() -> None:
    assert cost_text(LookupCost(2.25, 1234567.4, 0.1)) == "2.2 requests and 1,234,567 bytes"
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(number) for number in range(7)]) == "0, 1, 2, 3, 4 and 2 more"

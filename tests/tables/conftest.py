from __future__ import annotations

import pytest

from tests.tables import comparisons


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in comparisons.lines():
        terminalreporter.write_line(line)

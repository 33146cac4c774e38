"""examples/tour.ipynb is an executed notebook: its cells print again what it shows."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_readme import compiled

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "tour.ipynb"


@pytest.mark.heavy
def test_every_cell_prints_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    names: dict[str, Any] = {"__name__": "__notebook__"}
    with asyncio.Runner() as runner:
        for cell in cells:
            code = compiled("".join(cell["source"]), f"cell {cell['execution_count']}")
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, names))
            else:
                exec(code, names)
            shown = "".join("".join(output["text"]) for output in cell["outputs"])
            printed = capsys.readouterr().out
            if " bytes of " in shown:  # other versions of pyarrow write files of another size
                shown, printed = shown.partition(",")[0], printed.partition(",")[0]
            assert printed == shown

"""Show the progress of a long call on stderr, with rate and remaining time, for ``progress=True`` and the command line.

Nothing is shown during the first second. The package rich draws the bars; it is loaded after that second. If stderr is
neither a terminal nor a notebook, such as the log of a job, a line is written every ten seconds.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Self

from asyncpq.errors import UsageError, install_hint
from asyncpq.events import Event, FileEnded, Progress

if TYPE_CHECKING:
    import rich.progress as bars
    from rich.console import Console

_WAIT_S: Final = 1.0
_LINE_S: Final = 10.0  # between two lines


class ProgressBars:
    """An event hook of a session that draws a progress bar for each step of a call. Use it as a context manager.

    Raises UsageError if rich is not installed.
    """

    def __init__(self) -> None:
        if find_spec("rich") is None:
            raise UsageError(
                "progress=True requires the package rich, which is not installed", hint=install_hint("rich", "cli")
            )
        self._console: Console | None = None
        self._began = time.monotonic()
        self._told = self._began  # when a line was written
        self._closed = False
        self._drawn: bars.Progress | None = None
        self._steps: dict[str, bars.TaskID] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._show(event.step, event.unit, event.done, event.total)
        elif isinstance(event, FileEnded) and event.operation != "open":
            self._show("read", "files", event.files_done, event.files_total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing, for example before other text is written to the terminal. Idempotent."""
        self._closed = True
        if self._drawn is not None:
            self._drawn.stop()

    def _show(self, step: str, unit: str, done: int, total: int | None) -> None:
        if self._closed or time.monotonic() - self._began < _WAIT_S:
            return
        if self._console is None:
            self._console = _console()
        if not (self._console.is_terminal or self._console.is_jupyter):
            self._tell(f"{step}: {done:,}{'' if total is None else f' of {total:,}'} {unit}", self._console)
            return
        if self._drawn is None:
            self._drawn = _bars(self._console)
            self._drawn.start()
        if step not in self._steps:
            self._steps[step] = self._drawn.add_task(step, total=total, unit=unit)
        self._drawn.update(self._steps[step], completed=done, total=total)

    def _tell(self, text: str, console: Console) -> None:
        now = time.monotonic()
        if now - self._told >= _LINE_S:
            self._told = now
            console.print(f"{text}, {now - self._began:,.0f} s", highlight=False, markup=False, soft_wrap=True)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _bars(console: Console) -> bars.Progress:
    from rich import progress
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            rate = task.finished_speed or task.speed
            return Text("" if rate is None else f"{rate:,.0f} {task.fields['unit']}/s")

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}"),
        Rate(),
        progress.TimeRemainingColumn(),
        console=console,
    )

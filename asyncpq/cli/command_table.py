"""The commands of the command line as data, and the first page of the help, which shows them.

The table says which module has each command: it is loaded when the command runs, or when its own help is asked for. The
page is written here as typer and rich write it, without loading them.
"""

from __future__ import annotations

import os
import sys

ABOUT = "Read the few pages a query needs out of Parquet files, and see why that is fast or slow."
OPTIONS = {"--debug": "Show debug logs, and tracebacks of errors.", "--version": "Print the version."}

#: For each panel of the help: a command, its module in asyncpq.cli, and the first paragraph of its help.
PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Read rows": (
        ("query", "reads", "Read the rows that match a condition."),
        ("lookup", "reads", "Read the rows with the given keys."),
        ("head", "reads", "Show the first rows; no more is read than these need."),
        ("take", "reads", "Read rows of one file by their numbers, in the order given."),
        ("count", "reads", "Count the rows that match a condition; without one, from metadata alone."),
        (
            "serve",
            "serve",
            "Serve datasets over HTTP: lookups, scans and counts as JSON, NDJSON, CSV, Arrow and Parquet.",
        ),
    ),
    "See why reads are fast or slow": (
        (
            "inspect",
            "inspect",
            "Show schema, row groups, pages, indexes, Bloom filters, encodings, codecs, sizes, writer and order.",
        ),
        ("schema", "inspect", "Show the columns and their types."),
        ("meta", "inspect", "Show a file's footer: writer, key-value metadata, row groups, column chunks."),
        (
            "lint",
            "why_commands",
            "Find what makes lookups in a file or lake slow, and show what each cure saves and how to apply it.",
        ),
        (
            "explain",
            "why_commands",
            "Show what a read would fetch, and why: footers and indexes are read, data is not.",
        ),
        (
            "why",
            "why_commands",
            "Run a read and report what was pruned and why, its requests, bytes and time, and what would make it "
            "faster.",
        ),
    ),
    "Make and keep files fast": (
        (
            "optimize",
            "optimize_command",
            "Sort rows into files of which lookups read little, with page indexes and an index of the files.",
        ),
        ("index", "index_commands", "Build and keep an index beside the files."),
        ("cache", "cache", "Show or clear the caches on disk and in a server."),
    ),
    "Help": (
        (
            "doctor",
            "doctor",
            "Show versions, credentials and where they came from, and how a store answers. Nothing secret is shown.",
        ),
    ),
}


# -- the first page of the help -------------------------------------------------------------------


# Typer adds the last three; its own words.
_OPTIONS = {
    **OPTIONS,
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or customize the installation.",
    "--help": "Show this message and exit.",
}
_SHORT = {"--help": "-h"}
_BOLD, _DIM, _NAME, _SWITCH = "1", "2", "1;36", "1;32"  # of ANSI terminals, as typer has them
_LEAST = 40  # characters of a page


def help_page(program: str, width: int, *, styled: bool) -> str:
    """Return the page for the name of the program, ``width`` characters wide. ``styled``: coloured, for terminals."""
    width = max(width, _LEAST)
    lines = [
        "",
        " " + _styled(f"Usage: {program} [OPTIONS] COMMAND [ARGS]...", _BOLD, styled),
        "",
        *(f" {line}" for line in _wrapped(ABOUT, width - 2)),
        "",
    ]
    names = max(map(len, _OPTIONS))
    rows = [
        (
            _styled(name.ljust(names), _NAME, styled)
            + "  "
            + _styled(_SHORT.get(name, "").ljust(2), _SWITCH, styled)
            + "  ",
            names + 6,
            text,
        )
        for name, text in _OPTIONS.items()
    ]
    lines += _panel("Options", rows, width, styled)
    names = max(len(name) for commands in PANELS.values() for name, _, _ in commands)
    for title, commands in PANELS.items():
        rows = [(_styled(name.ljust(names), _NAME, styled) + "  ", names + 2, text) for name, _, text in commands]
        lines += _panel(title, rows, width, styled)
    return "\n".join([*lines, ""])


def _panel(title: str, rows: list[tuple[str, int, str]], width: int, styled: bool) -> list[str]:
    """Return the lines of a box. A row has a head, the characters of the head, and a text that is wrapped beside it."""
    bar = _styled("│", _DIM, styled)
    lines = [_styled(f"╭─ {title} {'─' * (width - len(title) - 5)}╮", _DIM, styled)]
    for head, size, text in rows:
        for number, line in enumerate(_wrapped(text, width - 4 - size)):
            lines.append(f"{bar} {' ' * size if number else head}{line.ljust(width - 4 - size)} {bar}")
    return [*lines, _styled(f"╰{'─' * (width - 2)}╯", _DIM, styled)]


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def _styled(text: str, style: str, styled: bool) -> str:
    return f"\33[{style}m{text}\33[0m" if styled else text


def print_help_page() -> None:
    """Print the page to stdout, as wide as its terminal, and 80 characters without one."""
    program = os.path.basename(sys.argv[0])
    program = "python -m asyncpq" if program == "__main__.py" else program
    try:
        sys.stdout.write(help_page(program, _width(), styled=_styles()))
    except UnicodeEncodeError:  # a terminal without lines to draw boxes of
        page = help_page(program, _width(), styled=False)
        sys.stdout.write(page.translate(str.maketrans("╭╮╰╯─│", "++++-|")))
    sys.stdout.flush()


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _styles() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return sys.stdout.isatty() and not plain

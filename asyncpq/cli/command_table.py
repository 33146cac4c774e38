"""The commands of the command line as data: what the help shows, and which module has each command.

A command's module is loaded when the command runs, or when its own help is asked for.
"""

from __future__ import annotations

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

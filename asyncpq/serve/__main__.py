"""``python -m asyncpq.serve CONFIG``: run the service without the rest of the command line."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import secrets
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.errors import AsyncpqError, InvalidOptionError
from asyncpq.serve import needed_packages
from asyncpq.serve.access import token_digest
from asyncpq.serve.configuration import Configuration, load_configuration, parse_configuration

DEMO_ROWS = 200_000
_REGIONS = ("north", "east", "south", "west")
_FILES = 4


def make_demo(folder: str) -> tuple[Configuration, dict[str, str]]:
    """Write the demo's files below ``folder``; return the configuration and the tokens by their names."""
    lake = os.path.join(folder, "trips")
    os.mkdir(lake)
    size = DEMO_ROWS // _FILES
    for number in range(_FILES):
        pq.write_table(
            _trips(number * size, size),
            os.path.join(lake, f"part-{number}.parquet"),
            row_group_size=size,
            data_page_size=32 << 10,
            write_page_index=True,
        )
    tokens = {name: secrets.token_urlsafe(24) for name in ("all", "north")}
    configuration = parse_configuration(
        {
            "datasets": {"trips": {"url": f"{lake}/", "description": "Trips that the demo has made."}},
            "tokens": {
                "all": {
                    "sha256": token_digest(tokens["all"]).hex(),
                    "metrics": True,
                    "datasets": {"trips": {"plans": True}},
                },
                "north": {
                    "sha256": token_digest(tokens["north"]).hex(),
                    "datasets": {"trips": {"columns": ["id", "region", "price"], "rows": "region = 'north'"}},
                },
            },
        }
    )
    return configuration, tokens


def _trips(first: int, size: int) -> pa.Table:
    numbers = range(first, first + size)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "user": [f"u{number * 7919 % 5000}" for number in numbers],
            "region": [_REGIONS[number * 31 % 4] for number in numbers],
            "price": [number * 37 % 10_000 / 100 for number in numbers],
        }
    )


def demo_greeting(configuration: Configuration, tokens: dict[str, str]) -> str:
    """Return a text for the terminal with example requests to the demo service."""
    server = configuration.server
    root = f"http://{server.host}:{server.port}"
    lines = [f"Docs: {root}/docs", ""]
    for name, token in tokens.items():
        lines.append(f"Token {name!r}: {token}")
    lines += [
        "",
        f"curl -H 'Authorization: Bearer {tokens['all']}' '{root}/v1/trips/lookup?id=42'",
        f"curl -H 'Authorization: Bearer {tokens['north']}' '{root}/v1/trips/scan?where=price%3E99&limit=3'",
    ]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments of :func:`start`, which ``asyncpq serve`` takes, too."""
    made = argparse.ArgumentParser(prog="python -m asyncpq.serve", description="Serve datasets over HTTP.")
    made.add_argument("configuration", nargs="?", help="a TOML file (docs/serve-configuration.md)")
    made.add_argument("--demo", action="store_true", help="serve data that is made for it")
    made.add_argument("--check", action="store_true", help="open all datasets, check all tokens, and end")
    made.add_argument("--new-token", action="store_true", help="print a new token and its sha256, and end")
    made.add_argument("--host", help="address to listen at, instead of that of the configuration")
    made.add_argument("--port", type=int, help="port to listen at, instead of that of the configuration")
    made.add_argument("--workers", type=int, default=1, help="processes that serve the port (1)")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the service until a signal ends it; return the exit code."""
    try:
        return start(**vars(parser().parse_args(arguments)))
    except OSError as error:
        if error.filename is not None:
            raise
        if sys.stdout is not None:  # Python's last flush would fail, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"asyncpq: cannot write to stdout: {error.strerror or error}.\n")
        return 1


def _print(text: str) -> None:
    """Write to stdout. Raises OSError if nothing can be written there."""
    if sys.stdout is None:  # the process was started without it
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout.write(text)
    sys.stdout.flush()


def start(
    configuration: str | None,
    *,
    demo: bool = False,
    check: bool = False,
    new_token: bool = False,
    host: str | None = None,
    port: int | None = None,
    workers: int = 1,
) -> int:
    """Run the service until a signal ends it; return the exit code.

    Args:
        configuration: the configuration file, unless ``demo``.
        demo: serve data that is made for it.
        check: only open all datasets and check the rights of all tokens; the exit code is 2 if anything is wrong.
        new_token: only print a new token and its sha256.
        host, port: address to listen at, instead of that of the configuration; None keeps it.
        workers: processes that serve the port.
    """
    if new_token:
        token = secrets.token_urlsafe(32)
        _print(f"token  {token}\nsha256 {token_digest(token).hex()}\n")
        return 0
    try:
        with needed_packages():
            from asyncpq.serve.workers import start_log
        start_log(logging.WARNING if check else logging.INFO)
        if demo == (configuration is not None):
            raise InvalidOptionError("name a configuration, or pass --demo")
        if check:
            if configuration is None:
                raise InvalidOptionError(
                    "--check needs a configuration", hint="Leave out --demo, and name the TOML file of the service."
                )
            return _check(configuration)
        if configuration is not None:
            _run(load_configuration(configuration).at(host, port), configuration, workers)
            return 0
        with tempfile.TemporaryDirectory(prefix="asyncpq-serve-") as folder:
            made, tokens = make_demo(folder)
            made = made.at(host, port)
            _run(made, None, workers, f"{demo_greeting(made, tokens)}\n")
    except AsyncpqError as error:
        sys.stderr.write(f"asyncpq: {' '.join(error.command_text({'workers': '--workers'}).split())}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _run(configuration: Configuration, path: str | None, workers: int, greeting: str = "") -> None:
    with needed_packages():
        import uvicorn  # noqa: F401  # its lack is told before the greeting
    from asyncpq.serve.server import require_free_address, run
    from asyncpq.serve.workers import require_workers, run_workers

    require_workers(workers)
    require_free_address(configuration.server)  # before the greeting, and without uvicorn's log
    if greeting:
        _print(greeting)
    if workers == 1:
        run(configuration, path)
    else:
        run_workers(configuration, path, workers)


def _check(configuration: str) -> int:
    from asyncpq.serve.datasets import configuration_faults

    loaded = load_configuration(configuration)
    faults = asyncio.run(configuration_faults(loaded))
    for fault in faults:
        sys.stderr.write(f"asyncpq: {fault}\n")
    if faults:
        return 2
    tokens = [token for token in loaded.tokens if token.sha256 is not None]
    anonymous = ", and those of [anonymous]" if len(tokens) < len(loaded.tokens) else ""
    _print(f"Datasets that are open: {len(loaded.datasets)}; tokens whose rights fit them: {len(tokens)}{anonymous}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

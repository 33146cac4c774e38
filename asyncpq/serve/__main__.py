"""``python -m asyncpq.serve CONFIG``: run the service without the rest of the command line."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import tempfile

from asyncpq.errors import AsyncpqError
from asyncpq.serve.configuration import load_configuration, token_digest
from asyncpq.serve.demo import greeting, make_demo
from asyncpq.serve.server import listening, run


def main(arguments: list[str] | None = None) -> int:
    """Run the service until a signal ends it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m asyncpq.serve", description="Serve datasets over HTTP.")
    parser.add_argument("configuration", nargs="?", help="a TOML file (docs/serve.md)")
    parser.add_argument("--demo", action="store_true", help="serve data that is made for it")
    parser.add_argument("--new-token", action="store_true", help="print a new token and its sha256, and end")
    parser.add_argument("--host", help="address to listen at, instead of that of the configuration")
    parser.add_argument("--port", type=int, help="port to listen at, instead of that of the configuration")
    given = parser.parse_args(arguments)
    if given.new_token:
        token = secrets.token_urlsafe(32)
        sys.stdout.write(f"token  {token}\nsha256 {token_digest(token).hex()}\n")
        return 0
    if given.demo == (given.configuration is not None):
        parser.error("name a configuration, or pass --demo")
    return serve(given.configuration, given.host, given.port)


def serve(path: str | None, host: str | None = None, port: int | None = None) -> int:
    """Run the service until a signal ends it; return the exit code.

    Args:
        path: the configuration file; None to serve demo data.
        host, port: address to listen at, instead of that of the configuration; None keeps it.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        if path is not None:
            asyncio.run(run(listening(load_configuration(path), host, port), path))
            return 0
        with tempfile.TemporaryDirectory(prefix="asyncpq-serve-") as folder:
            configuration, tokens = make_demo(folder)
            configuration = listening(configuration, host, port)
            sys.stdout.write(f"{greeting(configuration, tokens)}\n")
            sys.stdout.flush()
            asyncio.run(run(configuration))
    except AsyncpqError as error:
        sys.stderr.write(f"asyncpq: {' '.join(str(error).split())}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

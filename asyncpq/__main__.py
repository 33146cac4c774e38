"""``python -m asyncpq``: the command line."""

from asyncpq.cli import main

if __name__ == "__main__":
    main()

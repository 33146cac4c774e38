"""What a project that uses asyncpq can test with. Shipped, and covered by the version promise."""

from __future__ import annotations

from asyncpq.testing.answers import LoggedRequest, ServedObject
from asyncpq.testing.faults import Fault
from asyncpq.testing.server import ObjectServer

__all__ = ["Fault", "LoggedRequest", "ObjectServer", "ServedObject"]

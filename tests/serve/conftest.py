"""Tests of the service need the packages of the extra ``serve``, and httpx."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("starlette", "uvicorn", "prometheus_client", "httpx"))) else ["test_*"]

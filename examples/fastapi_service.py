"""The service of asyncpq below /data of a FastAPI application, which adds an endpoint of its own.

    ASYNCPQ_SERVE=service.toml uvicorn --factory examples.fastapi_service:create_app

The application's lifespan enters the service; requests below /data are the service's, with its tokens and limits.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from asyncpq.serve import Configuration, Service, load_configuration


def create_app(configuration: Configuration | None = None) -> FastAPI:
    """Return the application; without a configuration, that of the file that ASYNCPQ_SERVE names."""
    service = Service(load_configuration(os.environ["ASYNCPQ_SERVE"]) if configuration is None else configuration)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    app = FastAPI(title="An application with data", lifespan=lifespan)

    async def hello() -> dict[str, str]:
        return {"data": "/data/v1/datasets"}

    app.add_api_route("/", hello)
    app.mount("/data", service.app)
    return app

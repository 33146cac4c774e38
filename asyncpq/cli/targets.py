"""What a url on the command line names: one file, or many files under one schema."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from asyncpq.dataset import Dataset
from asyncpq.errors import ObjectNotFoundError
from asyncpq.file import File
from asyncpq.session import Session

Url = Annotated[
    str,
    typer.Argument(
        help="A file, prefix, pattern or table: a local path, s3://bucket/key, https://..., or any url of fsspec.",
        show_default=False,
    ),
]
Profile = Annotated[str | None, typer.Option("--profile", help="Profile of the AWS configuration.")]
EndpointUrl = Annotated[str | None, typer.Option("--endpoint-url", help="Url of an S3-compatible server.")]
Region = Annotated[str | None, typer.Option("--region", help="Region of the bucket.")]
NoSignRequest = Annotated[bool, typer.Option("--no-sign-request", help="Read a public bucket without credentials.")]


def storage_options(
    profile: str | None, endpoint_url: str | None, region: str | None, no_sign_request: bool
) -> dict[str, Any]:
    """Return the ``storage_options`` of a :class:`asyncpq.Session` for the options of the command line."""
    options: dict[str, Any] = {}
    if profile is not None:
        options["profile"] = profile
    if endpoint_url is not None:
        options["endpoint_url"] = endpoint_url
    if region is not None:
        options["client_kwargs"] = {"region_name": region}
    if no_sign_request:
        options["anon"] = True
    return options


def names_many(url: str) -> bool:
    """Return whether ``url`` shows that it names many files: a prefix, a pattern or a local folder."""
    return url.endswith("/") or "*" in url or os.path.isdir(url)


@asynccontextmanager
async def opened(session: Session, url: str) -> AsyncIterator[File | Dataset]:
    """Open the file or dataset at ``url``; where a url may name either, the file if one is there."""
    if names_many(url):
        async with await session.open_dataset(url) as dataset:
            yield dataset
        return
    try:
        file = await session.open_file(url)
    except ObjectNotFoundError as missing:
        try:
            found = await session.open_dataset(url)
        except ObjectNotFoundError:
            raise missing from None
        async with found:
            yield found
        return
    async with file:
        yield file

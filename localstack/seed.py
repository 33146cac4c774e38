"""Put objects into a LocalStack: ``.venv/bin/python localstack/seed.py ENDPOINT BUCKET FILE...`` or :func:`seed`.

It needs aiobotocore, which is installed with asyncpq: run it with the interpreter that has asyncpq.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

#: What s3fs, and so asyncpq, is told to reach LocalStack. It accepts any credentials.
CREDENTIALS = {"key": "test", "secret": "test"}
REGION = "us-east-1"


def storage_options(endpoint: str) -> dict[str, object]:
    """s3fs's options for this endpoint."""
    return {**CREDENTIALS, "endpoint_url": endpoint, "client_kwargs": {"region_name": REGION}}


async def seed(endpoint: str, bucket: str, objects: Mapping[str, bytes]) -> dict[str, str]:
    """Make the bucket, if it is missing, and put the objects. Returns their ETags by key."""
    from aiobotocore.session import get_session  # here, so that --help and the message below need nothing

    client = get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["key"],
        aws_secret_access_key=CREDENTIALS["secret"],
    )
    async with client as s3:
        await s3.create_bucket(Bucket=bucket)  # in us-east-1 no error if it is there and one's own
        return {key: (await s3.put_object(Bucket=bucket, Key=key, Body=data))["ETag"] for key, data in objects.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a bucket and put files into it.")
    parser.add_argument("endpoint")
    parser.add_argument("bucket")
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    if importlib.util.find_spec("aiobotocore") is None:
        sys.exit(
            f"{sys.executable} has no aiobotocore, which is installed with asyncpq. In a clone, run `make venv` "
            "and then .venv/bin/python localstack/seed.py ..."
        )
    if missing := [str(path) for path in arguments.files if not path.is_file()]:
        sys.exit(f"no such file: {', '.join(missing)}")
    objects = {path.name: path.read_bytes() for path in arguments.files}
    asyncio.run(seed(arguments.endpoint, arguments.bucket, objects))
    for key in objects:
        print(f"s3://{arguments.bucket}/{key}")


if __name__ == "__main__":
    main()

"""A folder in LocalStack's S3 that a test has to itself, for driver and executors alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from botocore.session import Session as BotocoreSession

from localstack.seed import REGION, storage_options
from tests.parquet_bytes import parquet_bytes
from tests.spark.credentials import PROVIDER, localstack


@dataclass(frozen=True)
class LakeStore:
    """``url`` is ``s3://bucket``; ``client`` botocore's own client, which blocks."""

    endpoint: str
    bucket: str
    client: Any

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def session_options(self) -> dict[str, object]:
        """Storage options with credentials, as a Session of the test's own process takes them."""
        return {**storage_options(self.endpoint), **localstack()}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments for asyncpq.spark's functions: storage options without credentials, and who gives those."""
        shown = {name: value for name, value in self.session_options.items() if name not in localstack()}
        return {"storage_options": shown, "credentials_provider": PROVIDER}

    def put(self, key: str, data: bytes) -> str:
        """Returns the object's url."""
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)
        return f"{self.url}/{key}"

    def put_table(self, key: str, table: pa.Table, **options: Any) -> str:
        """As a Parquet file of pyarrow's, written with ``options``. Returns its url."""
        return self.put(key, parquet_bytes(table, **options))

    def get(self, key: str) -> bytes:
        with self.client.get_object(Bucket=self.bucket, Key=key)["Body"] as body:
            data: bytes = body.read()
            return data

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)


def new_client(endpoint: str) -> Any:
    """Of botocore's, for :class:`LakeStore`."""
    given = localstack()
    return BotocoreSession().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=given["key"],
        aws_secret_access_key=given["secret"],
    )

#!/usr/bin/env bash
# pyarrow 26.0.1 on S3 (moto 5.2.5): a file that is replaced while it is open gives rows of both versions, in one table.
#
# S3FileSystem asks for the size once, and for ranges then, without If-Match: which object answers, it never learns.
# Where both versions have the same size, as those of numbers without compression have, the footer of one fits the pages
# of the other. s3fs 2026.9.0 sends the ETag that it saw with each range, and fails.
# Expected: an error, as each response has the ETag.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 'moto[s3,server]==5.2.5' boto3==1.43.117 s3fs==2026.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import io
import logging
import os

for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_CONFIG_FILE=os.devnull)
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import s3fs
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
by_arrow = pyarrow.fs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True)
by_fsspec = s3fs.S3FileSystem(client_kwargs={"endpoint_url": endpoint})
by_arrow.create_dir("bucket")


def put(value: int) -> None:
    sink = io.BytesIO()
    table = pa.table({"x": pa.array([value] * 20_000)})
    pq.write_table(table, sink, row_group_size=10_000, use_dictionary=False, compression="none", write_statistics=False)
    by_fsspec.pipe_file("bucket/a.parquet", sink.getvalue())


seen = {}
for name, opened in (
    ("pyarrow", lambda: by_arrow.open_input_file("bucket/a.parquet")),
    ("s3fs", lambda: by_fsspec.open("bucket/a.parquet", block_size=1000, cache_type="none")),
):
    put(1)
    with opened() as file:
        reader = pq.ParquetFile(file)
        first = reader.read_row_group(0)
        put(2)
        try:
            seen[name] = pa.concat_tables([first, reader.read_row_group(1)])["x"].unique().to_pylist()
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {error}"
    print(f"{name}: {seen[name]}")
server.stop()
assert seen["pyarrow"] == [1, 2], "pyarrow sees that the object is another now"
assert seen["s3fs"].startswith("FileExpired")
PYTHON

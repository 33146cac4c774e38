#!/usr/bin/env bash
# datasets 5.2.0 (Hugging Face): load_dataset(..., streaming=True) fails at every .gz file on S3, and at no other.
#
# The filesystem that decompresses gives two options of aiohttp's session, trust_env and requote_redirect_url, to
# whatever filesystem holds the file. s3fs hands its client_kwargs to botocore, which refuses them, so a .jsonl.gz on S3
# is a TypeError about "_create_client() got an unexpected keyword argument", with storage_options and without. The same
# rows without .gz stream, and so do both without streaming=True, and .gz files from disk.
# Expected: rows, as for the same file without .gz.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    datasets==5.2.0 s3fs==2026.9.0 fsspec==2026.9.0 aiobotocore==3.10.0 boto3==1.43.117 'moto[server]==5.2.5'
export HF_HOME=$folder/home HF_HUB_DISABLE_TELEMETRY=1
"$folder/venv/bin/python" - "$folder" 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import gzip
import os
import pathlib
import sys

for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
os.environ |= {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}",
}
import datasets
import s3fs

datasets.disable_progress_bars()
store, folder = s3fs.S3FileSystem(), pathlib.Path(sys.argv[1])
store.mkdir("bucket")
rows = b'{"a": 1}\n{"a": 2}\n'
(folder / "x.jsonl.gz").write_bytes(gzip.compress(rows))
store.pipe({"bucket/x.jsonl": rows, "bucket/x.jsonl.gz": gzip.compress(rows)})
seen = {}
for url in ("s3://bucket/x.jsonl", str(folder / "x.jsonl.gz"), "s3://bucket/x.jsonl.gz"):
    for streaming in (False, True):
        name = f"{url.removeprefix(str(folder))}, streaming={streaming}"
        try:
            found = datasets.load_dataset(
                "json", data_files=url, split="train", streaming=streaming, cache_dir=str(folder / "cache")
            )
            seen[name] = [row["a"] for row in found]
        except TypeError as error:
            seen[name] = str(error)
        print(f"{name}: {seen[name]}")
server.stop()
*good, bad = seen.values()
assert good == [[1, 2]] * 5, "others fail, too"
assert "requote_redirect_url" in bad, "it streams now"
PYTHON

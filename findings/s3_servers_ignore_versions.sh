#!/usr/bin/env bash
# s3rver 3.7.1 and hadro 0.7.1: a GET that names a version gets the current object, whatever the version is.
#
# Servers without versioning take no notice of ?versionId=: they answer 200 with the current bytes, and name no version
# in the answer. So boto3 returns other rows than those that the version's owner pinned, without an error, where an
# object was moved from AWS to such a server. moto 5.2.5 answers NoSuchVersion, as AWS does.
# Expected: that error, or NotImplemented.
set -euo pipefail
folder=$(mktemp -d)
servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    boto3==1.44.8 hadro==0.7.1 'moto[s3]==5.2.5' flask==3.1.3 flask-cors==6.0.5
npm install --prefix "$folder" --no-audit --no-fund --silent s3rver@3.7.1
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

mkdir -p "$folder/hadro/bucket" "$folder/s3rver"
printf current > "$folder/hadro/bucket/key"
hadro_port=$(free_port)
"$folder/venv/bin/hadro" "$folder/hadro" --port "$hadro_port" --access-key S3RVER --secret-key S3RVER \
    > "$folder/hadro.log" 2>&1 &
servers+=($!)
s3rver_port=$(free_port)
NODE_OPTIONS=--openssl-legacy-provider "$folder/node_modules/.bin/s3rver" \
    -d "$folder/s3rver" -a 127.0.0.1 -p "$s3rver_port" \
    --configure-bucket bucket > "$folder/s3rver.log" 2>&1 &
servers+=($!)
moto_port=$(free_port)
"$folder/venv/bin/moto_server" -H 127.0.0.1 -p "$moto_port" > "$folder/moto.log" 2>&1 &
servers+=($!)
"$folder/venv/bin/python" - "$s3rver_port" "$hadro_port" "$moto_port" <<'PYTHON'
import contextlib
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

answers = {}
for name, port in zip(("s3rver", "hadro", "moto"), sys.argv[1:], strict=True):
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="S3RVER",
        aws_secret_access_key="S3RVER",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
    )
    ends = time.monotonic() + 60
    while True:
        try:
            s3.head_bucket(Bucket="bucket")
            break
        except ClientError:
            break  # it answers
        except BotoCoreError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
    if name != "hadro":  # which only reads
        with contextlib.suppress(ClientError):
            s3.create_bucket(Bucket="bucket")
        s3.put_object(Bucket="bucket", Key="key", Body=b"current")
    try:
        answer = s3.get_object(Bucket="bucket", Key="key", VersionId="3sL4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY")
        answers[name] = (answer["Body"].read(), answer.get("VersionId"))
    except ClientError as error:
        answers[name] = error.response["Error"]["Code"]
    print(f"{name}: {answers[name]}")
assert answers["s3rver"] == answers["hadro"] == (b"current", None), "a server heeds versions now"
assert isinstance(answers["moto"], str), "moto has such a version now"
PYTHON

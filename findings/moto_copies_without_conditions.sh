#!/usr/bin/env bash
# moto 5.2.5: the conditions of a copy are ignored, while those of a put, a read and a delete hold.
#
# Table formats commit by a put or a copy that must not overwrite. moto answers 412 to a put with If-None-Match: * on an
# object that is there, but copies over it; and copies whatever version of the source there is, with
# x-amz-copy-source-if-match. So tests of a commit by copy pass against moto where two writers would lose rows.
# Expected: 412, or 501 for what is not there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir 'moto[s3]==5.2.5' boto3==1.43.117
"$folder/venv/bin/python" - <<'PYTHON'
import os

for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ["AWS_CONFIG_FILE"] = os.devnull
import boto3
import botocore.exceptions
import moto

with moto.mock_aws():
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="new", Body=b"new")
    client.put_object(Bucket="bucket", Key="old", Body=b"old")
    new, old = {"Bucket": "bucket", "Key": "new"}, {"Bucket": "bucket", "Key": "old"}
    calls = {
        "put, If-None-Match": lambda: client.put_object(**old, Body=b"new", IfNoneMatch="*"),
        "put, If-Match": lambda: client.put_object(**old, Body=b"new", IfMatch='"another"'),
        "get, If-Match": lambda: client.get_object(**new, IfMatch='"another"'),
        "copy, If-None-Match": lambda: client.copy_object(**old, CopySource=new, IfNoneMatch="*"),
        "copy, If-Match of the source": lambda: client.copy_object(
            **old, CopySource=new, CopySourceIfMatch='"another"'
        ),
    }
    seen = {}
    for name, call in calls.items():
        client.put_object(**old, Body=b"old")
        try:
            seen[name] = call()["ResponseMetadata"]["HTTPStatusCode"]
        except botocore.exceptions.ClientError as error:
            seen[name] = error.response["ResponseMetadata"]["HTTPStatusCode"]
        print(f"{name}: {seen[name]}; the object is {client.get_object(**old)['Body'].read()}")
assert list(seen.values()) == [412, 412, 412, 200, 200], "otherwise now"
PYTHON

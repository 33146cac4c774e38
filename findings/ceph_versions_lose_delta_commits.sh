#!/usr/bin/env bash
# Ceph 16.2.15 meets deltalake 1.6.6: in a bucket with versioning, appends at once all succeed, and one of them is kept.
#
# `If-None-Match: *` creates an object only if there is none; deltalake commits a version of a table so, and on S3 and
# in Ceph's other buckets four appends at once become four versions. In a bucket with versioning the RADOS Gateway takes
# the condition and does not check it, not even for an object that has long been there: each writer is told that its
# version 1 is committed, the last one is what the table holds, and the rows of the others are gone without an error.
# The same holds for Ceph 18.2.7, and for every log, lock or catalog that commits by such a PUT.
# Expected: five rows, or an error for each append that is not in the table. It runs on Debian 12, whose packages it
# unpacks: a monitor, a store in memory and a gateway.
set -euo pipefail
folder=$(mktemp -d)
trap 'for file in "$folder"/*.pid; do kill "$(cat "$file")" 2> /dev/null || true; done; sleep 2; rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p debs/partial mon osd gateway
apt-get -qq -o Dir::Cache::archives="$folder/debs" install --download-only --no-install-recommends --yes \
    radosgw=16.2.15+ds-0+deb12u2 ceph-mon=16.2.15+ds-0+deb12u2 ceph-osd=16.2.15+ds-0+deb12u2 > apt.log 2>&1
for package in debs/*.deb; do dpkg -x "$package" root; done
/usr/bin/python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-cache-dir deltalake==1.6.6 boto3==1.40.61 pyarrow==26.0.1
libraries=$folder/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$libraries:$libraries/ceph:$folder/root/lib/x86_64-linux-gnu PATH=$folder/root/usr/bin:$PATH
export CEPH_CONF=$folder/ceph.conf
read -r first second gateway < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*[each.getsockname()[1] for each in sockets])')
cluster=$(cat /proc/sys/kernel/random/uuid) disk=$(cat /proc/sys/kernel/random/uuid)
cat > ceph.conf <<CONF
[global]
fsid = $cluster
mon host = [v2:127.0.0.1:$first,v1:127.0.0.1:$second]
keyring = $folder/keyring
auth allow insecure global id reclaim = true
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run dir = $folder
admin socket = $folder/\$name.asok
pid file = $folder/\$name.pid
log file = $folder/\$name.log
mon data = $folder/mon
mon data avail crit = 0
osd data = $folder/osd
osd objectstore = memstore
osd class dir = $libraries/rados-classes
erasure code dir = $libraries/ceph/erasure-code
plugin dir = $libraries/ceph
[client.rgw]
rgw data = $folder/gateway
rgw frontends = beast endpoint=127.0.0.1:$gateway
CONF
for name in mon. client.admin client.rgw osd.0; do
    printf '[%s]\n\tkey = %s\n\tcaps mon = "allow *"\n\tcaps osd = "allow *"\n' "$name" "$(ceph-authtool --gen-print-key)"
done > keyring
{
    monmaptool --create --fsid "$cluster" --addv a "[v2:127.0.0.1:$first,v1:127.0.0.1:$second]" monmap
    ceph-mon --mkfs -i a --monmap monmap --keyring keyring
    ceph-mon -i a
    PYTHONPATH=$folder/root/usr/lib/python3/dist-packages /usr/bin/python3 root/usr/bin/ceph osd new "$disk" 0
    ceph-osd -i 0 --osd-uuid "$disk" --mkfs
    ceph-osd -i 0
    timeout 120 radosgw -n client.rgw
    radosgw-admin user create --uid=u --display-name=u --access-key=key --secret=secret
} > start.log 2>&1 || { tail start.log; exit 1; }
unset LD_LIBRARY_PATH
"$folder/venv/bin/python" - "http://127.0.0.1:$gateway" <<'PYTHON'
import concurrent.futures
import sys

import boto3
import pyarrow as pa
from botocore.config import Config
from deltalake import DeltaTable, write_deltalake

endpoint = sys.argv[1]
client = boto3.client(
    "s3",
    endpoint_url=endpoint,
    region_name="us-east-1",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
    config=Config(s3={"addressing_style": "path"}),
)
options = {
    "AWS_ENDPOINT_URL": endpoint,
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "aws_conditional_put": "etag",
}


def rows_after_appends(bucket):
    """The rows of a table after four appends at once; none of these may raise."""
    url = f"s3://{bucket}/table"
    write_deltalake(url, pa.table({"x": [0]}), storage_options=options)

    def append(number):
        write_deltalake(url, pa.table({"x": [number]}), mode="append", storage_options=options)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(append, [1, 2, 3, 4]))
    return sorted(DeltaTable(url, storage_options=options).to_pyarrow_table()["x"].to_pylist())


def creates(bucket):
    client.put_object(Bucket=bucket, Key="created", Body=b"one")
    try:
        client.put_object(Bucket=bucket, Key="created", Body=b"two", IfNoneMatch="*")
    except client.exceptions.ClientError as error:
        return error.response["Error"]["Code"]
    return "created again"


for bucket in ("plain", "versioned"):
    client.create_bucket(Bucket=bucket)
client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
assert creates("plain") == "PreconditionFailed"
assert creates("versioned") == "created again", "otherwise now: the condition is kept"
assert rows_after_appends("plain") == [0, 1, 2, 3, 4]
rows = rows_after_appends("versioned")
print(f"after 0, and 1 to 4 appended at once without an error, the table has {rows}")
assert len(rows) < 5, "otherwise now: no append is lost"
PYTHON

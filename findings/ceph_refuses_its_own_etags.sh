#!/usr/bin/env bash
# Ceph 16.2.15 meets obstore 0.12.1: a PUT on condition of the object's own ETag is 412 each time; a GET with it is not.
#
# `If-Match` lets a PUT replace only the version that the client has read (RFC 9110, 13.1.1); S3 has it since 2024, and
# catalogs, locks and state files are updated so. The RADOS Gateway compares the header, quotes and all, with the ETag
# as it stores it, without quotes: what it said itself a moment ago does not match, in any bucket. Without the quotes,
# which no client leaves out, it matches, but in buckets with versioning never. For a GET the quotes are taken off.
# Ceph 18.2.7 does the same, so an update by compare-and-swap goes round for ever.
# Expected: 200, and 412 for another ETag. It runs on Debian 12, whose packages it unpacks: a monitor, a store in memory
# and a gateway.
set -euo pipefail
folder=$(mktemp -d)
trap 'for file in "$folder"/*.pid; do kill "$(cat "$file")" 2> /dev/null || true; done; sleep 2; rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p debs/partial mon osd gateway
apt-get -qq -o Dir::Cache::archives="$folder/debs" install --download-only --no-install-recommends --yes \
    radosgw=16.2.15+ds-0+deb12u2 ceph-mon=16.2.15+ds-0+deb12u2 ceph-osd=16.2.15+ds-0+deb12u2 > apt.log 2>&1
for package in debs/*.deb; do dpkg -x "$package" root; done
/usr/bin/python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-cache-dir obstore==0.12.1 boto3==1.40.61
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
import sys

import boto3
from botocore.config import Config
from obstore.store import S3Store

endpoint = sys.argv[1]
client = boto3.client(
    "s3",
    endpoint_url=endpoint,
    region_name="us-east-1",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
    config=Config(s3={"addressing_style": "path"}),
)


def replaced(bucket, if_match):
    """What a PUT of an object that has just been created says, on this condition of its ETag."""
    etag = client.put_object(Bucket=bucket, Key="object", Body=b"one")["ETag"]
    assert client.get_object(Bucket=bucket, Key="object", IfMatch=etag)["Body"].read() == b"one"
    try:
        client.put_object(Bucket=bucket, Key="object", Body=b"two", IfMatch=if_match(etag))
    except client.exceptions.ClientError as error:
        return error.response["Error"]["Code"]
    return "replaced"


for bucket in ("plain", "versioned"):
    client.create_bucket(Bucket=bucket)
client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
conditions = {
    "its own": lambda etag: etag,
    "its own without quotes": lambda etag: etag.strip('"'),
    "another": lambda etag: '"0123456789abcdef0123456789abcdef"',
}
found = {bucket: {name: replaced(bucket, each) for name, each in conditions.items()} for bucket in ("plain", "versioned")}
for bucket, answers in found.items():
    print(f"{bucket}: {answers}")
refused = "PreconditionFailed"
assert found["plain"]["another"] == found["versioned"]["another"] == refused
assert found["plain"]["its own without quotes"] == "replaced"
assert found["plain"]["its own"] == found["versioned"]["its own"] == refused, "otherwise now: quotes are understood"

options = {"endpoint": endpoint, "region": "us-east-1", "client_options": {"allow_http": True}}
store = S3Store("plain", access_key_id="key", secret_access_key="secret", **options)
created = store.put("state", b"one")
try:
    store.put("state", b"two", mode={"e_tag": created["e_tag"]})
except Exception as error:
    print(f"obstore, with the ETag that it was given for its own write: {type(error).__name__}")
    assert type(error).__name__ == "PreconditionError", error
else:
    raise SystemExit("otherwise now: obstore replaces the object")
PYTHON

"""Where a Location leads, and which redirects are refused."""

from __future__ import annotations

import pytest
from yarl import URL

from asyncpq.errors import InvalidResponseError
from asyncpq.storage.http import Redirect, RedirectTarget, next_target
from asyncpq.storage.response_checks import RangeRequest

REQUEST = RangeRequest(0, 10, "https://data.example/a/b.parquet")


def follow(url: str, location: str, *, own: bool = True) -> RedirectTarget:
    return next_target(REQUEST, RedirectTarget(URL(url, encoded=True), own), location)


@pytest.mark.parametrize(
    ("location", "leads_to", "own"),
    [
        ("c.parquet", "https://data.example/a/c.parquet", True),
        ("/c.parquet?x=%2F#f", "https://data.example/c.parquet?x=%2F", True),
        ("?sig=a+b%3D", "https://data.example/a/b.parquet?sig=a+b%3D", True),
        ("//cdn.example/c", "https://cdn.example/c", False),
        ("https://DATA.example/c", "https://data.example/c", True),
        ("https://data.example:443/c", "https://data.example/c", True),
        ("https://data.example:8443/c", "https://data.example:8443/c", False),
        ("https://www.data.example/c", "https://www.data.example/c", False),
        ("/ü b", "https://data.example/%C3%BC%20b", True),
    ],
)
def test_where_it_leads(location: str, leads_to: str, own: bool) -> None:
    target = follow("https://data.example/a/b.parquet?q", location)
    assert target.own is own
    assert URL(str(target.url)) == URL(leads_to)
    assert target.url.raw_path_qs == URL(leads_to, encoded=True).raw_path_qs
    assert not follow("https://data.example/a/b.parquet?q", location, own=False).own
    assert "sig" not in repr(target)


def test_up_to_https_is_another_origin() -> None:
    assert not follow("http://data.example/x", "https://data.example/x").own


@pytest.mark.parametrize(
    "location",
    [
        "",
        "http://data.example/x?token=SECRET",
        "http://cdn.example/x?token=SECRET",
        "file:///etc/SECRET",
        "s3://bucket/SECRET",
        "data:SECRET",
        "https://h:port/SECRET",
        "https://user@cdn.example/x",
        "https://:SECRET@cdn.example/x",
        "https://localhost/x",
        "https://localhost./x",
        "https://x.localhost/x",
        "https://localhost.localdomain/x",
        "https://localhost6/x",
        "https://ip6-localhost/x",
        "https://ip6-loopback./x",
        "https://127.0.0.1:8000/x",
        "https://127.0.0.1./x",
        "https://127.1/x",
        "https://2130706433/x",
        "https://0x7f.1/x",
        "https://0.0.0.0/x",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://[fe80::1%25eth0]/x",
        "https://169.254.169.254/latest/meta-data?SECRET",
        # other forms of the same addresses
        "https://017700000001/x",
        "https://0x7f000001/x",
        "https://[0:0:0:0:0:ffff:7f00:1]/x",
        "https://[::127.0.0.1]/x",
        "https://[64:ff9b::7f00:1]/x",
        "https://[64:ff9b:1::a9fe:a9fe]/x",
        "https://[2002:7f00:1::]/x",
        "https://[2001:0:7f00:1::]/x",
        "https://[::ffff:169.254.169.254]/x",
        "https://[::ffff:0.0.0.0]/x",
        "https://\uff11\uff12\uff17.0.0.1/x",
        # where clouds serve credentials
        "https://[fd00:ec2::254]/latest/meta-data?SECRET",
        "https://[fd00:0ec2:0::0254]/x",
        "https://[fd20:ce::254]/x",
        "https://100.100.100.200/x",
        "https://1684301000/x",
        "https://[::ffff:100.100.100.200]/x",
        "https://192.0.0.192/x",
        "https://168.63.129.16/x",
        "https://metadata.google.internal/x",
        "https://METADATA.google.internal./x",
    ],
)
def test_what_is_refused(location: str) -> None:
    with pytest.raises(InvalidResponseError) as caught:
        follow("https://data.example/a/b.parquet", location)
    assert caught.value.hint
    assert caught.value.url == REQUEST.url
    assert "SECRET" not in str(caught.value) + str(caught.value.__cause__)


@pytest.mark.parametrize(
    "there",
    ["10.0.0.1", "192.168.1.1", "100.100.100.201", "[fd00:ec2::255]", "[64:ff9b::808:808]", "[2001:db8::7f00:1]"],
)
def test_other_addresses_are_followed(there: str) -> None:
    """Private networks too: an object store may be there."""
    assert follow("https://data.example/a", f"https://{there}/b").url == URL(f"https://{there}/b")


@pytest.mark.parametrize("here", ["http://localhost/x", "http://127.0.0.1:1/x", "http://[::1]/x"])
def test_this_machine_may_redirect_to_itself(here: str) -> None:
    assert follow(here, "http://127.0.0.2:9/y").url == URL("http://127.0.0.2:9/y")


def test_a_redirect_forgets_the_target_that_failed_and_not_a_later_one() -> None:
    old, new = (RedirectTarget(URL(f"https://cdn.example/{name}"), own=False) for name in ("old", "new"))
    redirect = Redirect(old)
    redirect.target = new
    redirect.forget(old)
    assert redirect.target is new
    redirect.forget(new)
    assert redirect.target is None

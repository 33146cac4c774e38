"""Urls: what they name, what may be shown of them, whose options are whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import InvalidOptionError, UnsupportedStoreError
from asyncpq.storage.urls import (
    absolute,
    identity_of,
    is_tenant_bucket,
    local_path,
    options_for,
    safe_target,
    safe_url,
    split_url,
    split_version,
    url_of_key,
)

SIGNED = (
    "https://user:pw@host.example:8443/a/b.parquet?X-Amz-Signature=SECRET&X-Amz-Expires=60&versionId=7&sig=SECRET#frag"
)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a b//../c%20?#x", ("s3", "bucket/a b//../c%20?#x")),
        ("S3://bucket/key", ("s3", "bucket/key")),
        ("https://host/p?q", ("https", "host/p?q")),
        ("file:///tmp/x", ("file", "/tmp/x")),
        ("local:///tmp/x", ("file", "/tmp/x")),
        ("/tmp/x.parquet", ("file", "/tmp/x.parquet")),
        ("relative/x.parquet", ("file", "relative/x.parquet")),
        (Path("/tmp/x"), ("file", "/tmp/x")),
        ("memory://a", ("memory", "a")),
        ("s3://bucket/a::b", ("s3", "bucket/a::b")),  # a key may hold colons
    ],
)
def test_split(url: str | os.PathLike[str], parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize("url", ["zip::s3://bucket/key", "filecache::https://host/x", "simplecache::/tmp/x"])
def test_chained_urls_are_refused(url: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="chained"):
        split_url(url)


@pytest.mark.parametrize("url", ["simplecache::s3://bucket/key?versionId=SECRET", "filecache::s3://bucket/key"])
def test_a_cache_around_a_url_is_the_disk_cache(url: str) -> None:
    with pytest.raises(UnsupportedStoreError, match=r"Pass s3://bucket/key, and disk_cache= of the session"):
        split_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (SIGNED, "https://host.example:8443/a/b.parquet"),
        ("http://u:p@host", "http://host"),
        ("http://host/a@b", "http://host/a@b"),
        ("s3://bucket/a?b#c@d", "s3://bucket/a?b#c@d"),
        ("s3://bucket/key?versionId=abc", "s3://bucket/key"),
        ("s3://tenant:bucket/key", "s3://tenant:bucket/key"),  # of Ceph
        ("s3://:bucket/key", "s3://:bucket/key"),
        ("s3://key:secret@bucket/k", "s3://bucket/k"),
        ("s3://key:sec/ret@bucket/k", "s3://..."),
        ("abfs://container@account/x?sig=SECRET", "abfs://container@account/x"),
        ("abfss://$web@account.dfs.core.windows.net/x#SECRET", "abfss://$web@account.dfs.core.windows.net/x"),
        ("abfss://account:SECRET@host/x", "abfss://host/x"),
        ("abfss://SECRET@host/x", "abfss://host/x"),
        ("/tmp/a?b", "/tmp/a?b"),
        ("/data/10:00@v1/x", "/data/10:00@v1/x"),
        ("s3://bucket/a::b?c", "s3://bucket/a::b?c"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/ap/k", "s3://arn:aws:s3:eu-west-1:1:accesspoint/ap/k"),
        ("http://[::1]:9000/x?sig=SECRET", "http://[::1]:9000/x"),
        ("simplecache::https://user:SECRET@h/x?X-Amz-Signature=SIG", "simplecache::https://h/x"),
        ("zip://in.parquet::https://user:SECRET@h/x.zip?sig=SIG", "zip://in.parquet::https://h/x.zip"),
        ("zip::simplecache::s3://AKIA:SECRET@bucket/k?X-Amz-Signature=SIG", "zip::simplecache::s3://bucket/k"),
        ("https://h/x?to=a::https://user:SECRET@g/y?sig=SIG", "https://h/x::https://g/y"),
        ("simplecache::user:SECRET@h/x?sig=SIG", "h/x"),
        ("s3://AKIA:SECRET@bucket/key", "s3://bucket/key"),
        ("s3://AKIA:SEC/RET@bucket/key", "s3://..."),
        ("https://user:SEC/RET@h/x", "https://..."),
        ("https://user:SEC?RET@h/x", "https://..."),
        ("https:/user:SECRET@h/x?sig=SIG", "https:/h/x"),
        ("//user:SECRET@h/obj?token=SIG", "//h/obj"),
        ("SECRET:SECRET@h/obj", "h/obj"),
        ("h/x?X-Amz-Signature=SIG", "h/x"),
        ("file://user:SECRET@h/x", "file://h/x"),
    ],
)
def test_shown(url: str, shown: str) -> None:
    assert safe_url(url) == shown


@pytest.mark.parametrize("url", ["s3://bucket/a b/key", "/data/a b/day=1/0.parquet", "/"])
def test_what_has_nothing_to_hide_is_not_taken_apart(url: str) -> None:
    assert safe_url(url) is url


@given(
    st.sampled_from(["", "zip::", "zip://a::", "simplecache::filecache::"]),
    st.sampled_from(["http://", "https://", "s3://", "abfs://", "//", "https:/", ""]),
    st.text("aS:/?#@.%+=", max_size=6),
)
def test_no_secret_is_shown(chain: str, protocol: str, noise: str) -> None:
    assert "SECRET" not in safe_url(f"{chain}{protocol}user:SECRET@host/x{noise.replace('?', '').replace('#', '')}")
    if not protocol.startswith("s3"):
        assert "SECRET" not in safe_url(f"{chain}{protocol}host/x?sig=SECRET{noise}")
    with pytest.raises(UnsupportedStoreError) as caught:
        split_url(f"simplecache::{protocol or 's3://'}user:SECRET@host/x")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/obj?X-Amz-Signature=SIG", "/obj"),
        ("/obj?SIG", "/obj"),
        ("obj#SIG", "obj"),
        ("//u:SECRET@h/obj?token=T", "//h/obj"),
        ("//SECRET@h/obj", "//h/obj"),
        ("https://u:SECRET@h/obj?token=T", "https://h/obj"),
        ("?SIG", ""),
    ],
)
def test_shown_of_a_redirect(location: str, shown: str) -> None:
    assert safe_target(location) == shown


def test_identity_ignores_signatures_and_keeps_the_rest_hidden() -> None:
    identity = identity_of(SIGNED)
    other_signature = SIGNED.replace("SECRET", "OTHER").replace("Expires=60", "Expires=90").replace("user:pw@", "")
    assert identity == identity_of(other_signature)
    assert identity != identity_of(SIGNED.replace("versionId=7", "versionId=8"))
    assert identity != identity_of(SIGNED.replace("b.parquet", "c.parquet"))
    assert not any(part in identity for part in ("SECRET", "pw", "versionId", "frag"))
    azure = "https://a.blob.core.windows.net/c/x?sv=2024-11-04&sr=b&sp=r&se=2026-01-01&spr=https&sig=abc"
    assert identity_of(azure) == identity_of("https://a.blob.core.windows.net/c/x")
    cloudfront = "https://d.cloudfront.net/x?Expires=1&Signature=abc&Key-Pair-Id=K"
    assert identity_of(cloudfront) == identity_of("https://d.cloudfront.net/x")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text("xy&=", max_size=3)), max_size=3), st.data())
def test_identities_differ_with_any_other_parameter(query: list[tuple[str, str]], data: st.DataObject) -> None:
    from urllib.parse import urlencode

    other = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.text("xy&=", max_size=3)), max_size=3))
    same = identity_of("https://h/p?" + urlencode(query)) == identity_of("https://h/p?" + urlencode(other))
    assert same == (query == other)


def test_options_flat_or_by_protocol() -> None:
    assert options_for("s3", {"key": "k"}) == {"key": "k"}
    assert options_for("s3", None) == {}
    both = {"s3": {"key": "k"}, "https": {"headers": {"a": "b"}}}
    assert options_for("s3", both) == {"key": "k"}
    assert options_for("s3a", both) == {"key": "k"}
    assert options_for("https", both) == {"headers": {"a": "b"}}
    assert options_for("memory", both) == {}
    assert options_for("file", {"s3": None}) == {}
    with pytest.raises(InvalidOptionError, match="mixes"):
        options_for("s3", {"s3": {"key": "k"}, "secret": "s"})


def test_options_for_https_do_not_go_in_clear_text() -> None:
    token = {"headers": {"Authorization": "Bearer SECRET"}}
    assert options_for("http", {"https": token}) == {}
    assert options_for("https", {"http": token}) == {}
    assert options_for("http", {"https": token, "http": {"block_size": 1}}) == {"block_size": 1}
    assert options_for("s3a", {"s3": {"anon": True}}) == options_for("s3", {"s3a": {"anon": True}}) == {"anon": True}


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("a%20b c") == str(tmp_path / "a%20b c")
    assert local_path("file:///a%20b") == "/a%20b"
    assert local_path(tmp_path / "x") == str(tmp_path / "x")
    with pytest.raises(UnsupportedStoreError):
        local_path("s3://bucket/key")


def test_what_means_the_same_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    given = ["lake", Path("lake"), "./lake/", "~/lake", "/a/../b", "s3://bucket/a/../b", "file://lake", None, True]
    here = [f"{tmp_path}/lake"] * 2 + [f"{tmp_path}/lake/", "/home/me/lake", "/b"]
    assert absolute(given) == [*here, *given[5:]]
    for url in ("file:/lake", "FILE:/lake"):
        with pytest.raises(InvalidOptionError, match="only one slash") as caught:
            absolute(url)
        assert caught.value.hint == "Write file:///lake."


@pytest.mark.parametrize(
    ("url", "split"),
    [
        ("s3://b/k", ("s3://b/k", None)),
        ("s3://b/k?versionId=1", ("s3://b/k", "1")),
        ("s3://b/k?versionId=", ("s3://b/k", None)),
        ("s3://b/k?versionId=1?versionId=", ("s3://b/k?versionId=1", None)),
        ("s3://b/k?versionId=?versionId=", ("s3://b/k?versionId=", None)),
        ("s3://b/k?versionId=1?versionId=2", ("s3://b/k?versionId=1", "2")),
        ("s3://b/day=1?versionId=2/k", ("s3://b/day=1?versionId=2/k", None)),
    ],
)
def test_a_version_is_what_follows_the_last_query(url: str, split: tuple[str, str | None]) -> None:
    assert split_version(url) == split


@given(st.text(alphabet="ab/?=", max_size=5), st.lists(st.sampled_from(["?versionId=", "1", "/", "a"]), max_size=6))
def test_the_url_of_a_key_names_that_key(begin: str, parts: list[str]) -> None:
    url = f"s3://bucket/{begin}{''.join(parts)}"
    assert split_version(url_of_key(url)) == (url, None)


@pytest.mark.parametrize(
    ("bucket", "named"),
    [
        ("tenant:bucket", True),
        ("host:9000", False),
        ("bucket", False),
        (":b", True),
        ("t:", False),
        (":9000", False),
        ("a:b:c", False),
    ],
)
def test_a_bucket_of_a_tenant_is_no_host(bucket: str, named: bool) -> None:
    assert is_tenant_bucket(bucket) is named


@pytest.mark.parametrize("name", ["S3", "Gs", "AZ", "Https", "HF"])
def test_protocols_are_in_lower_case(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f'no protocol {name}.*"{name.lower()}": '):
        options_for("s3", {name: {"key": "a"}})

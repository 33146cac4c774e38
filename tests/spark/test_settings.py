"""What workers of Spark are told: every setting arrives, nothing that looks like a secret does."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncpq.errors import InvalidOptionError
from asyncpq.options import MIB
from asyncpq.spark.joins import OpenKeywords
from asyncpq.spark.optimize_lake import OptimizeLakeKeywords
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.settings import (
    SETTING_NAMES,
    LakeBuildKeywords,
    ScanKeywords,
    SettingKeywords,
    SparkSettings,
    TableKeywords,
    split_settings,
    without_credentials,
)


class _Conf:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._settings.get(name, default)

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802  # as PySpark has it
        return self._settings


class _Spark:
    def __init__(self, **settings: str) -> None:
        self.conf = _Conf({f"spark.asyncpq.{name}": value for name, value in settings.items()})


def _of(settings: dict[str, str], **given: Any) -> SparkSettings:
    return SparkSettings.of(_Spark(**settings), given)  # type: ignore[arg-type]  # all that is asked of one


def provide() -> dict[str, Any]:
    return {"s3": {"key": "k", "secret": "s", "client_kwargs": {"region_name": "here"}}}


_EACH = {
    "storageOptions": ('{"s3": {"anon": true}}', "storage_options", '{"s3": {"anon": true}}'),
    "credentialsProvider": ("a.b:c", "credentials_provider", "a.b:c"),
    "memoryCacheBytes": ("2097152", "memory_cache_bytes", 2 * MIB),
    "diskCache": ("off", "disk_cache", "off"),
    "diskCacheFolder": ("/cache", "disk_cache_folder", "/cache"),
    "diskCacheBytes": ("1048576", "disk_cache_bytes", MIB),
    "workFolder": ("s3://bucket/work/", "work_folder", "s3://bucket/work/"),
    "splitBytes": ("1048576", "split_bytes", MIB),
    "mostSplits": ("7", "most_splits", 7),
}


@pytest.mark.parametrize("name", _EACH)
def test_each_setting(name: str) -> None:
    text, attribute, value = _EACH[name]
    from_conf = _of({name: text})
    assert getattr(from_conf, attribute) == value
    assert SparkSettings.from_options({name.lower(): text, "path": "s3://bucket/lake"}) == from_conf
    assert pickle.loads(pickle.dumps(from_conf)) == from_conf
    assert from_conf != SparkSettings()


def test_every_setting_is_tried_above() -> None:
    assert {attribute for _, attribute, _ in _EACH.values()} == set(SETTING_NAMES)


def test_arguments_come_on_top_of_settings() -> None:
    settings = {"storageOptions": '{"s3": {"anon": true, "endpoint_url": "http://a"}}', "splitBytes": "1048576"}
    found = _of(settings, storage_options={"s3": {"endpoint_url": "http://b"}}, split_bytes=2 * MIB, disk_cache=None)
    assert found.storage == {"s3": {"anon": True, "endpoint_url": "http://b"}}
    assert found.split_bytes == 2 * MIB
    assert found.disk_cache == "executor"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"splitBytes": "many"}, "splitBytes='many'"),
        ({"splitBytes": "1"}, "splitBytes=1: must be"),
        ({"diskCache": "ram"}, "diskCache='ram': must be one of executor, host, off"),
        ({"diskCache": "host"}, "disk_cache_folder is not set"),
        ({"credentialsProvider": "module"}, "credentialsProvider: must be 'module:function'"),
        ({"storageOptions": "[1]"}, "storageOptions: must be a mapping"),
        ({"storageOptions": "{"}, "storageOptions: must be JSON"),
        ({"splitSize": "1"}, "asyncpq has no setting spark.asyncpq.splitSize.*Did you mean 'splitBytes'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        _of(settings)


def test_arguments_that_cannot_be_keep_their_names() -> None:
    with pytest.raises(InvalidOptionError, match="split_bytes=1: must be"):
        _of({"splitBytes": "1048576"}, split_bytes=1)


_SECRETS = ["key", "secret", "token", "aws_secret_access_key", "account_key", "sas_token", "connection_string"]
_SECRETS += ["PASSWORD", "accessKey", "private_key", "Authorization", "aws_session_token", "apikey", "SSECustomerKey"]
_SECRETS += [
    "X-Api-Key",
    "Ocp-Apim-Subscription-Key",
    "X-Auth",
    "x-functions-key",
    "Private-Token",
    "sig",
    "passphrase",
]


@pytest.mark.parametrize("name", _SECRETS)
def test_secrets_are_refused_wherever_they_stand(name: str) -> None:
    inner = {"s3": {"client_kwargs": {name: "canary"}}}
    with pytest.raises(InvalidOptionError, match="credentials_provider='module:function'") as refused:
        _of({}, storage_options=inner)
    assert "canary" not in str(refused.value)
    with pytest.raises(InvalidOptionError, match="looks like a credential"):
        SparkSettings.from_options({name: "canary"})
    with pytest.raises(InvalidOptionError, match="looks like a credential"):
        _of({name: "canary"})


_SECRET_URLS = [
    "https://user:canary@host/x",
    "https://canary@host/x",
    "s3://b/x?X-Amz-Signature=canary",
    "s3://b/x?versionId=1&X%2DAmz%2DSignature=canary",
    "https://h/?sas=c",
    "https://h/x?sv=1&sig=canary",
    "postgresql+psycopg://reader:canary@db/index",
    "postgresql://reader:canary/1@db/index",
    "postgresql://db/index?user=reader;password=canary",
    "zip://x::https://user:canary@host/x",
]


@pytest.mark.parametrize("url", _SECRET_URLS)
def test_secrets_in_urls_are_refused(url: str) -> None:
    for settings in ({"path": url}, {"workFolder": url}, {"paths": json.dumps(["s3://b/x", url])}, {"index": url}):
        with pytest.raises(InvalidOptionError, match=r"looks like a credential|without user") as refused:
            SparkSettings.from_options(settings)
        assert "canary" not in str(refused.value)


_KEPT_URLS = [
    "s3://b/a@b/x",
    "s3://b/x?versionId=1",
    "https://h:8080/a@b",
    "http://[::1]:8080/a@b",
    "/a:b@c",
    "file:///a:b@c",
]


@pytest.mark.parametrize("url", _KEPT_URLS)
def test_urls_without_secrets_are_taken(url: str) -> None:
    assert (
        SparkSettings.from_options({"path": url, "paths": json.dumps([url]), "where": "a = 'b@c'"}) == SparkSettings()
    )


@given(
    st.dictionaries(
        st.sampled_from(["anon", "endpoint_url", "use_ssl", "version_aware", "signature_version", "SSEKMSKeyId"]),
        st.booleans(),
    )
)
def test_what_is_no_secret_is_taken(options: dict[str, bool]) -> None:
    assert _of({}, storage_options={"s3": options}).storage == {"s3": options}


def test_a_provider_adds_to_the_options() -> None:
    settings = SparkSettings(
        storage_options='{"s3": {"endpoint_url": "http://a", "client_kwargs": {"use_ssl": false}}}',
        credentials_provider=f"{__name__}:provide",
    )
    assert settings.resolved_storage() == {
        "s3": {
            "endpoint_url": "http://a",
            "key": "k",
            "secret": "s",
            "client_kwargs": {"use_ssl": False, "region_name": "here"},
        }
    }
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("no_such_module:f", "cannot be imported"),
        (f"{__name__}:nothing", "cannot be imported"),
        (f"{__name__}:_SECRETS", "is not a function"),
        ("os:getpid", "returned a value of type int"),
    ],
)
def test_providers_that_are_none(provider: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        SparkSettings(credentials_provider=provider).resolved_storage()


def test_a_loaded_table_keeps_its_endpoint_and_not_its_keys() -> None:
    own = {"s3": {"endpoint_url": "http://one", "key": "k", "secret": "s", "client_kwargs": {"region_name": "here"}}}
    plain = without_credentials(own)
    assert plain == {"s3": {"endpoint_url": "http://one", "client_kwargs": {"region_name": "here"}}}
    known = _of({"storageOptions": '{"s3": {"endpoint_url": "http://two"}}'})
    assert _of({}).of_table(plain).storage == plain
    assert known.of_table(plain).storage == {
        "s3": {"client_kwargs": {"region_name": "here"}, "endpoint_url": "http://two"}
    }
    assert known.of_table(None) is known


def test_all_settings_are_arguments() -> None:
    assert sorted(SettingKeywords.__annotations__) == sorted(SETTING_NAMES)
    others = {"target", "index", "view"}
    assert LakeTarget.__dataclass_fields__.keys() - others == ScanKeywords.__annotations__.keys() - {*SETTING_NAMES}


def test_settings_and_arguments_of_the_dataset() -> None:
    assert split_settings({"format": "delta", "split_bytes": 5}, ScanKeywords) == (
        {"format": "delta"},
        {"split_bytes": 5},
    )
    assert split_settings({}, LakeBuildKeywords) == ({}, {})


@pytest.mark.parametrize(
    ("known", "name", "meant"),
    [
        (ScanKeywords, "on_bad_files", "on_bad_file"),
        (ScanKeywords, "split_byte", "split_bytes"),
        (TableKeywords, "schema", "The settings are"),
        (LakeBuildKeywords, "partition_type", "partition_types"),
        (OpenKeywords, "batch_key", "batch_keys"),
        (OptimizeLakeKeywords, "bloom_filter", "bloom_filters"),
    ],
)
def test_unknown_arguments_are_refused_with_the_nearest_name(known: type, name: str, meant: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"no argument '{name}'") as raised:
        split_settings({name: 1}, known)
    assert meant in str(raised.value)

"""A configuration is right as a whole, or an error that says what is wrong; secrets are not shown."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from asyncpq.errors import InvalidOptionError
from asyncpq.options import etag
from asyncpq.serve.access import Limits, token_digest
from asyncpq.serve.configuration import load_configuration, parse_configuration

DATASET = {"datasets": {"a": {"url": "s3://bucket/a/"}}}
SHA = hashlib.sha256(b"x").hexdigest()


def test_defaults() -> None:
    configuration = parse_configuration({})
    assert configuration.server.host == "127.0.0.1"
    assert configuration.tokens == ()
    assert configuration.session["storage_options"] == {}


def test_a_token_of_several_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as all that --new-token prints."""
    monkeypatch.setenv("A_TOKEN", "token a-token-of-some-length\nsha256 0123")
    with pytest.raises(InvalidOptionError, match="several lines"):
        parse_configuration({**DATASET, "tokens": {"one": {"env": "A_TOKEN"}}})


def test_tokens_come_from_files_variables_or_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("the token in a file\n")
    monkeypatch.setenv("A_TOKEN", "the token in a variable")
    tokens = {
        "one": {"file": str(tmp_path / "token"), "limits": {"rows": 5}},
        "two": {"env": "A_TOKEN", "datasets": {"a": {"columns": ["x"], "rows": "x > 1"}, "*": {}}},
        "three": {"sha256": SHA.upper(), "metrics": True},
    }
    limits = {"seconds": 5, "rows": 7}
    configuration = parse_configuration({**DATASET, "limits": limits, "tokens": tokens, "anonymous": {}})
    one, two, three, anonymous = configuration.tokens
    assert one.sha256 == token_digest("the token in a file")
    assert one.limits == Limits(rows=5, seconds=5.0)
    assert two.sha256 == token_digest("the token in a variable")
    grant = two.grant("a")
    assert grant is not None
    assert (grant.columns, str(grant.rows), grant.costs) == (("x",), "x > 1", False)
    assert two.grant("b") == two.grants["*"]
    assert one.grant("a") is None
    assert (three.sha256, three.metrics, three.limits.rows) == (bytes.fromhex(SHA), True, 7)
    assert (anonymous.sha256, anonymous.grants) == (None, {})
    assert SHA not in repr(configuration)


def test_session_and_datasets() -> None:
    configuration = parse_configuration(
        {
            "storage": {"s3": {"key": "a secret key"}},
            "session": {"max_age_s": 1, "memory_cache_bytes": 5, "limits": {"max_connections": 20}},
            "datasets": {
                "a": {"urls": ["s3://b/1", "s3://b/2"], "index": "none", "reopen_s": 5},
                "b": {"url": "s3://b/t", "format": "delta", "listing_max_age_s": 2, "partitioning": "none"},
            },
        }
    )
    assert configuration.session["cache_policy"] == etag(1.0)
    assert configuration.session["limits"].max_connections == 20
    assert configuration.datasets["a"].target == ("s3://b/1", "s3://b/2")
    assert configuration.datasets["a"].options == {"index": False}
    options = {"format": "delta", "listing_max_age_s": 2.0, "partitioning": None}
    assert configuration.datasets["b"].options == options
    assert "a secret key" not in repr(configuration)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sever": {}}, "Did you mean 'server'"),
        ({"anonymos": {}}, "Did you mean 'anonymous'"),
        ({"dataset": {"a": {}}, "tokens": {"t": {"sha256": SHA, "datasets": {"a": {}}}}}, "Did you mean 'datasets'"),
        ({"zzz": {}}, "has no table 'zzz'. Its tables are server, limits,"),
        ({"anonymous": {"verbs": ["lookup"]}}, "no setting 'verbs'. Its settings are limits, metrics, datasets."),
        ({"session": {"max_age_s": -1}}, "[session] max_age_s=-1.0: must be a number of at least 0"),
        ({"session": {"negative_ttl_s": -1}}, "[session] negative_ttl_s=-1.0"),
        ({"session": {"memory_cache_bytes": -1}}, "[session] memory_cache_bytes=-1"),
        ({"session": {"shared_cache": "host"}}, "[session] the url of the shared cache must be a text that begins"),
        ({"session": {"disk_cache": ""}}, "[session] path=''"),
        ({"datasets": {"a": {"url": "x", "reopen_s": -3}}}, "reopen_s must be 0 or more"),
        ({"datasets": {"a": {"url": "x", "reopen_s": float("nan")}}}, "reopen_s must be 0 or more"),
        ({"server": {"prot": 1}}, "Did you mean 'port'"),
        ({"server": {"port": "80"}}, "port must be an integer, not a text"),
        ({"server": {"port": True}}, "port must be an integer, not true or false"),
        ({"limits": {"rows": 0}}, "must be more than 0"),
        ({"limits": {"seconds": float("nan")}}, "must be more than 0"),
        ({"server": 1}, "must be a table, not an integer"),
        ({"server": {"port": 65_536}}, "there is no port 65536"),
        ({"server": {"unready_s": -1}}, "unready_s must be 0 or more"),
        ({"server": {"drain_s": "3"}}, "drain_s must be a number, not a text"),
        ({"session": {"limits": {"max_connection": 1}}}, "[session.limits] has no setting 'max_connection'"),
        ({"session": {"retry": {"read_timeout_s": "x"}}}, "[session.retry] read_timeout_s='x'"),
        ({"datasets": {"a/b": {"url": "x"}}}, "cannot stand in a url"),
        ({"datasets": {"a": {}}}, "needs either url or urls"),
        ({"datasets": {"a": {"urll": "x"}}}, "Did you mean 'url'"),
        ({"datasets": {"a": {"url": "x", "urls": ["y"]}}}, "needs either url or urls"),
        ({"datasets": {"a": {"urls": []}}}, "list of texts"),
        ({"datasets": {"a": {"url": "x", "formt": "delta"}}}, "Did you mean 'format'"),
        ({"tokens": {"t": {}}}, "needs one of sha256, file and env"),
        ({"tokens": {"t": {"sha256": SHA, "env": "X"}}}, "needs one of"),
        ({"tokens": {"t": {"shaa": SHA}}}, "Did you mean 'sha256'"),
        ({"tokens": {"t": {"sha256": "abc"}}}, "64 hexadecimal digits"),
        ({"tokens": {"t": {"env": "NO_SUCH_VARIABLE"}}}, "NO_SUCH_VARIABLE, which is not set"),
        ({"tokens": {"t": {"file": "/dev/null"}}}, "fewer than 16 characters"),
        ({"tokens": {"t": {"file": "/no/such/file"}}}, "cannot be read"),
        ({"tokens": {"t": {"sha256": SHA}, "u": {"sha256": SHA}}}, "are the same"),
        ({**DATASET, "tokens": {"t": {"sha256": SHA, "datasets": {"b": {}}}}}, "there is no dataset 'b'"),
        ({**DATASET, "tokens": {"t": {"sha256": SHA, "datasets": {"a": {"verbs": ["drop"]}}}}}, "'drop'"),
        ({**DATASET, "tokens": {"t": {"sha256": SHA, "datasets": {"a": {"rows": "x >"}}}}}, "no condition"),
        ({**DATASET, "tokens": {"t": {"sha256": SHA, "datasets": {"a": {"columns": "x"}}}}}, "must be a list"),
        ({**DATASET, "tokens": {"t": {"sha256": SHA, "datasets": {"a": {"row": "x"}}}}}, "Did you mean"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_is_wrong_is_said(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        parse_configuration(values)
    assert words in str(raised.value)


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short")
    with pytest.raises(InvalidOptionError) as raised:
        parse_configuration({"tokens": {"t": {"file": str(tmp_path / "token")}}})
    assert "short" not in str(raised.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    with pytest.raises(InvalidOptionError, match="cannot be read: No such file"):
        load_configuration(path)
    path.write_text("[server")
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        load_configuration(path)
    path.write_text("")
    with pytest.raises(InvalidOptionError, match="names no dataset"):
        load_configuration(path)
    path.write_text("[datasets.a]\nurl = 'x'\n")
    with pytest.raises(InvalidOptionError, match="lets nobody read"):
        load_configuration(path)
    path.write_text("[server]\nport = 9\n[datasets.a]\nurl = 'x'\n[anonymous.datasets.a]\n")
    assert load_configuration(path).server.port == 9


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PAR1\x90\xff", "cannot be read: it is not text. Name the TOML file of the service"),
        (b"[datasets.a]\nurl = trips.parquet", "line 2, column 7). Text stands in double quotes"),
    ],
)
def test_files_that_are_not_toml(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "service.toml").write_bytes(content)
    with pytest.raises(InvalidOptionError) as raised:
        load_configuration(tmp_path / "service.toml")
    assert words in str(raised.value)

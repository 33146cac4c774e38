"""The configuration of S3: credentials, region, endpoint and CA bundle, from options of s3fs, the environment, the
files of AWS, and the metadata service of a container or an instance. The result is always that of botocore.

Loading botocore and s3fs and making a client takes three times as long (0.35 s) as the rest of a first open. So
:func:`read_config` reads the common configurations without them. The order and the meaning are botocore's, with which
the tests compare them. Each option, variable or setting that is not listed here raises NeedsBotocoreError, as does each
value whose meaning is not plain. :class:`S3Resolver` then loads :mod:`asyncpq.storage.s3.client`, as it does whenever
temporary keys cannot be fetched here; it also renews credentials.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import re
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from asyncpq.errors import CredentialsError, InvalidOptionError
from asyncpq.records import dataclass
from asyncpq.storage.base import Unpicklable
from asyncpq.storage.s3.sigv4 import Credentials, LateHeaders, Route
from asyncpq.storage.threads import import_whole
from asyncpq.storage.urls import mapping_option, word_set

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from asyncpq.storage.s3.client import S3Client


logger: logging.Logger = logging.getLogger(__name__)


#: Options that do not change which requests are sent.
_NEUTRAL_OPTIONS = word_set(
    "default_block_size default_fill_cache default_cache_type version_aware fixed_upload_size local_expiry_check "
    "use_listings_cache listings_expiry_time max_paths"
)
_OPTIONS = _NEUTRAL_OPTIONS | word_set(
    "anon endpoint_url key secret token username password use_ssl client_kwargs config_kwargs profile "
    "requester_pays s3_additional_kwargs cache_regions"
)
_CLIENT_OPTIONS = word_set(
    "endpoint_url region_name aws_access_key_id aws_secret_access_key aws_session_token verify use_ssl"
)
_CONFIG_OPTIONS = word_set("s3 signature_version region_name connect_timeout read_timeout max_pool_connections retries")

#: Variables of botocore and of AWS's programs that do not change a read, or that :func:`read_config` reads.
_VARIABLES = word_set(
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_SECURITY_TOKEN AWS_ACCOUNT_ID AWS_PROFILE "
    "AWS_DEFAULT_PROFILE AWS_DEFAULT_REGION AWS_REGION AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE AWS_CA_BUNDLE "
    "AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_RETRY_MODE AWS_MAX_ATTEMPTS AWS_DEFAULT_OUTPUT AWS_PAGER "
    "AWS_EXECUTION_ENV AWS_SDK_UA_APP_ID AWS_STS_REGIONAL_ENDPOINTS AWS_REQUEST_CHECKSUM_CALCULATION "
    "AWS_RESPONSE_CHECKSUM_VALIDATION AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_CREDENTIALS_FULL_URI "
    "AWS_CONTAINER_AUTHORIZATION_TOKEN AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE AWS_EC2_METADATA_DISABLED "
    "AWS_EC2_METADATA_SERVICE_ENDPOINT AWS_METADATA_SERVICE_TIMEOUT AWS_METADATA_SERVICE_NUM_ATTEMPTS"
)
_NEUTRAL_VARIABLES = ("AWS_LAMBDA_", "AWS_XRAY_", "AWS_CLI_")
#: Variables and settings that only concern credentials: harmless where the keys come from a place before them.
_ROLE_VARIABLES = word_set(
    "AWS_WEB_IDENTITY_TOKEN_FILE AWS_ROLE_ARN AWS_ROLE_SESSION_NAME AWS_CREDENTIAL_FILE BOTO_CONFIG"
)
_PROFILE_SETTINGS = word_set(
    "aws_access_key_id aws_secret_access_key aws_session_token aws_security_token aws_account_id region endpoint_url "
    "ca_bundle output cli_pager cli_auto_prompt cli_timestamp_format cli_binary_format retry_mode max_attempts"
)
_ROLE_SETTINGS = word_set(
    "role_arn source_profile credential_source external_id mfa_serial role_session_name duration_seconds sso_session "
    "sso_account_id sso_role_name sso_start_url sso_region credential_process web_identity_token_file login_session"
)

_ENDPOINT = re.compile(r"(https?)://([a-z0-9][a-z0-9.-]*|\[[0-9a-f:]+\])(?::([1-9][0-9]{0,4}))?/?")
_ENDPOINT_BUCKET = re.compile(r"(?:[A-Za-z0-9_]*:)?[A-Za-z0-9][A-Za-z0-9._-]{2,62}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")  # may be part of a host's name
_DIRECTORY = ("--x-s3", "--xa-s3")  # ends of the names of directory buckets and of their access points
_DIRECTORY_ZONE = re.compile(r"[a-z0-9-]+--([a-z]+[0-9]+-az[0-9]+)--xa?-s3")  # an Availability Zone
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}|\[.*")
_ENDPOINT_REGION = re.compile(r"(?!aws-global|s3-|fips-)[a-z][a-z0-9-]*(?<!-)(?<!-fips)")
_REGION = re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-[a-z]+-[0-9]+")
_LONGEST_ZONE = 9  # characters, of the zones that botocore knows as well
_CONTAINER_HOST = "169.254.170.2"
_CONTAINER_HOSTS = {_CONTAINER_HOST, "169.254.170.23", "localhost"}
_INSTANCE_URL = "http://169.254.169.254/"
_CONTAINER_TIMEOUT_S = 2.0


class NeedsBotocoreError(Exception):
    """Only botocore can resolve this configuration. The message says why, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote(Unpicklable):
    """Where to fetch temporary keys: from a container's url or, if ``instance``, from the metadata service of an EC2
    instance."""

    url: str = field(repr=False)
    instance: bool
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config(Unpicklable):
    """A configuration that asyncpq can resolve without botocore. ``keys`` are None if requests are unsigned, or if the
    keys have to be fetched (``remote``)."""

    source: str  # of the keys, for the log
    keys: Credentials | None = field(repr=False)
    remote: Remote | None
    region: str | None
    endpoint_url: str | None = field(repr=False)
    verify: bool | str
    in_sessions: bool  # directory buckets are read in sessions

    def route(self, bucket: str) -> Route | None:
        """Return address and region of ``bucket``; None if only botocore can determine them."""
        if bucket.endswith(("--ol-s3", "--op-s3", "-s3alias")):
            return None
        if is_directory_bucket(bucket):
            return self._directory_route(bucket) if self.in_sessions else None
        if self.endpoint_url is None:
            region = self.region
            if not _BUCKET.fullmatch(bucket) or (region is not None and not _REGION.fullmatch(region)):
                return None
            where = "" if region in (None, "us-east-1") else f"{region}."
            host = f"{bucket}.s3.{where}amazonaws.com"
            return Route("https", host, "/", region or "us-east-1", endpoint_region=True)
        region = self.region or "us-east-1"
        endpoint = self._endpoint()
        if endpoint is None or not _ENDPOINT_BUCKET.fullmatch(bucket) or not _ENDPOINT_REGION.fullmatch(region):
            return None
        return Route(*endpoint, f"/{bucket}/", region, endpoint_region=False)

    def _endpoint(self) -> tuple[str, str] | None:
        """Return scheme and host of ``endpoint_url``, the host with its port unless that is the scheme's own; None if
        botocore must interpret it."""
        match = _ENDPOINT.fullmatch(self.endpoint_url or "")
        if match is None:
            return None
        scheme, host, port = match.groups()
        if "amazonaws" in host or (port and int(port) > 65535):
            return None
        return scheme, host if not port or port == ("443" if scheme == "https" else "80") else f"{host}:{port}"

    def _directory_route(self, bucket: str) -> Route | None:
        """Return the address of a directory bucket or of its access point; None if only botocore can determine it.

        The bucket's name is part of the host's name, or of the path if ``endpoint_url`` has an IP address.
        """
        region = self.region or "us-east-1"
        zone = _DIRECTORY_ZONE.fullmatch(bucket)
        if zone is None or len(zone[1]) > _LONGEST_ZONE or not _BUCKET.fullmatch(bucket):
            return None
        if self.endpoint_url is None:
            host = f"{bucket}.s3express-{zone[1]}.{region}.amazonaws.com"
            known = _REGION.fullmatch(region)
            return Route("https", host, "/", region, endpoint_region=True, in_sessions=True) if known else None
        endpoint = self._endpoint()
        if endpoint is None or not _ENDPOINT_REGION.fullmatch(region):
            return None
        scheme, host = endpoint
        host, prefix = (host, f"/{bucket}/") if _ADDRESS.match(host) else (f"{bucket}.{host}", "/")
        return Route(scheme, host, prefix, region, endpoint_region=False, in_sessions=True)


def is_directory_bucket(name: str) -> bool:
    """Return whether ``name`` is that of a directory bucket (S3 Express One Zone) or of its access point."""
    return name.endswith(_DIRECTORY)


def read_config(options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> S3Config:
    """Return the configuration that ``options`` of s3fs, the environment and the files of AWS give.

    Raises NeedsBotocoreError if botocore must interpret, or refuse, a part of it.
    """
    client, config = mapping_option(options, "client_kwargs"), mapping_option(options, "config_kwargs")
    _check_options(options, client, config)
    given = _given_keys(options, client)
    anonymous = bool(options.get("anon"))
    profile_name = options.get("profile")
    from_environment = profile_name is None and bool(environ.get("AWS_ACCESS_KEY_ID"))
    known_keys = anonymous or given is not None or from_environment
    _check_environment(environ, known_keys)
    files = _Files(environ, profile_name)
    _check_profile(files.profile, known_keys)
    remote: Remote | None = None
    keys: Credentials | None = None
    if anonymous:
        source = "none (anon)"
    elif given is not None:
        source, keys = "storage_options", given
    elif from_environment:
        source, keys = "environment", _environment_keys(environ)
    else:
        source, keys = files.keys()
        if keys is None:
            remote = _remote(environ)
            source = "instance" if remote.instance else "container"
    region = _first(
        client.get("region_name"),
        config.get("region_name"),
        environ.get("AWS_DEFAULT_REGION"),
        files.profile.get("region"),
    )
    endpoint_urls = (
        options.get("endpoint_url"),
        client.get("endpoint_url"),
        environ.get("AWS_ENDPOINT_URL_S3"),
        environ.get("AWS_ENDPOINT_URL"),
        files.profile.get("endpoint_url"),
    )
    endpoint_url = next(filter(None, endpoint_urls), None)
    verify = client.get("verify")
    if verify is None:
        verify = _first(environ.get("AWS_CA_BUNDLE"), files.profile.get("ca_bundle"), environ.get("REQUESTS_CA_BUNDLE"))
    if endpoint_url is None and "path" in (config.get("s3") or {}).values():
        raise NeedsBotocoreError("asyncpq does not support the storage option config_kwargs.s3.addressing_style")
    return S3Config(
        source=source,
        keys=keys,
        remote=remote,
        region=region,
        endpoint_url=endpoint_url,
        verify=True if verify is None else verify,
        in_sessions=config.get("signature_version") is None and not anonymous,
    )


def _first(*values: str | None) -> str | None:
    """Return the first of ``values`` that is not None. Raises NeedsBotocoreError if it is empty, since only botocore
    knows what that means."""
    value = next((value for value in values if value is not None), None)
    if value == "":
        raise NeedsBotocoreError("a setting for S3 is empty")
    return value


def _check_environment(environ: Mapping[str, str], known_keys: bool) -> None:
    for name in environ:
        neutral = name in _VARIABLES or name.startswith(_NEUTRAL_VARIABLES)
        if name.startswith(("AWS_", "BOTO", "FSSPEC")) and not neutral and not (known_keys and name in _ROLE_VARIABLES):
            raise NeedsBotocoreError(f"asyncpq does not support the environment variable {name}")
    loaded = sys.modules.get("fsspec.config")
    if os.path.isdir(os.path.expanduser("~/.config/fsspec")) if loaded is None else {"s3", "s3a"} & set(loaded.conf):
        raise NeedsBotocoreError("fsspec's configuration has settings for S3")


def _check_profile(profile: Mapping[str, str], known_keys: bool) -> None:
    for name, value in profile.items():
        if name not in _PROFILE_SETTINGS and not (known_keys and name in _ROLE_SETTINGS):
            raise NeedsBotocoreError(f"asyncpq does not support the setting {name} of the AWS profile")
        if not value or value.startswith("\n"):
            raise NeedsBotocoreError(f"the setting {name} of the AWS profile is empty or nested")


def _check_options(options: Mapping[str, Any], client: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise NeedsBotocoreError for an option with a name or a value that :func:`read_config` does not know."""

    def check(known: bool, name: str) -> None:
        if not known:
            raise NeedsBotocoreError(f"asyncpq does not support the storage option {name}, or not this value of it")

    for given, names in ((options, _OPTIONS), (client, _CLIENT_OPTIONS), (config, _CONFIG_OPTIONS)):
        for name, value in given.items():
            check(name in names, str(name))
            if name in _CHECKS:
                check(_CHECKS[name](value), name)
            elif name not in _NEUTRAL_OPTIONS and not (value is None and given is not client):
                check(type(value) is str and bool(value), name)
    # Unsigned requests have no requester who could pay.
    check(not (options.get("anon") and options.get("requester_pays")), "requester_pays")
    for pair in (options, client), (client, config):
        for name in "endpoint_url", "region_name":
            check(sum(name in given for given in pair) < 2, name)


_S3_STYLES: tuple[Any, ...] = ({}, {"addressing_style": "auto"}, {"addressing_style": "path"})
#: For the options that are not text: whether a value is understood.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "anon": lambda value: type(value) is bool,
    "use_ssl": lambda value: value is True,
    "client_kwargs": lambda value: True,
    "config_kwargs": lambda value: True,
    "requester_pays": lambda value: value is None or type(value) is bool,
    "s3_additional_kwargs": lambda value: not value or customer_key({"s3_additional_kwargs": value}) is not None,
    "cache_regions": lambda value: not value,
    "verify": lambda value: value is None or type(value) is bool or (type(value) is str and bool(value)),
    "signature_version": lambda value: value in ("s3v4", None),
    "s3": lambda value: value is None or value in _S3_STYLES,
    "connect_timeout": lambda value: type(value) in (int, float) and value > 0,
    "read_timeout": lambda value: type(value) in (int, float) and value > 0,
    "max_pool_connections": lambda value: type(value) is int and value > 0,
    "retries": lambda value: (
        isinstance(value, Mapping)
        and set(value) <= {"mode", "max_attempts", "total_max_attempts"}
        and value.get("mode", "standard") in ("legacy", "standard")
        and all(type(value[name]) is int and value[name] > 0 for name in value if name != "mode")
    ),
}


def _given_keys(options: Mapping[str, Any], client: Mapping[str, Any]) -> Credentials | None:
    """Return the keys that the options give; None if they give none."""

    def only(*values: str | None) -> str | None:
        given = [value for value in values if value is not None]
        if len(given) > 1:
            raise NeedsBotocoreError("storage_options have two different values for the same credential")
        return given[0] if given else None

    key = only(options.get("key"), options.get("username"), client.get("aws_access_key_id"))
    secret = only(options.get("secret"), options.get("password"), client.get("aws_secret_access_key"))
    token = only(options.get("token"), client.get("aws_session_token"))
    if key and secret:
        return Credentials(key, secret, token)
    if key or secret or token:
        raise NeedsBotocoreError(
            "the options have an access key without its secret, or a secret or token without its key"
        )
    return None


def _environment_keys(environ: Mapping[str, str]) -> Credentials:
    secret = environ.get("AWS_SECRET_ACCESS_KEY")
    if not secret:
        raise NeedsBotocoreError("the variable AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not")
    token = environ.get("AWS_SECURITY_TOKEN") or environ.get("AWS_SESSION_TOKEN") or None
    return Credentials(environ["AWS_ACCESS_KEY_ID"], secret, token)


class _Files:
    """The active profile in ``~/.aws/config`` and ``~/.aws/credentials``; the latter has precedence."""

    def __init__(self, environ: Mapping[str, str], profile: str | None) -> None:
        name = profile
        for variable in "AWS_DEFAULT_PROFILE", "AWS_PROFILE":
            name = environ.get(variable) if name is None else name
        config = {
            parts[-1]: settings
            for section, settings in _parse(environ.get("AWS_CONFIG_FILE", "~/.aws/config")).items()
            if (parts := _profile_of(section))
        }
        stored = _parse(environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
        chosen = "default" if name is None else name
        if name is not None and name not in config and name not in stored:
            raise NeedsBotocoreError("the profile does not exist")
        self._sources = (("credentials file", stored.get(chosen, {})), ("config file", config.get(chosen, {})))
        self.profile = {**config.get(chosen, {}), **stored.get(chosen, {})}

    def keys(self) -> tuple[str, Credentials | None]:
        """Return the name of the file that has the profile's keys, and the keys; None if neither file has any."""
        for source, settings in self._sources:
            if "aws_access_key_id" in settings:
                secret = settings.get("aws_secret_access_key")
                if secret is None:
                    raise NeedsBotocoreError("the profile has aws_access_key_id, but no aws_secret_access_key")
                token = settings.get("aws_security_token", settings.get("aws_session_token"))
                return source, Credentials(settings["aws_access_key_id"], secret, token)
        return "", None


def _profile_of(section: str) -> list[str]:
    """Return the words of a config file's section if it is a profile's, the profile's name last; [] for other
    sections."""
    if section == "default":
        return [section]
    if not section.startswith("profile"):
        return []
    import shlex

    try:
        parts = shlex.split(section)
    except ValueError:
        return []
    return parts if len(parts) == 2 else []


def _parse(path: str) -> dict[str, dict[str, str]]:
    """Return the sections of an INI file, read as botocore reads it; {} if the file does not exist."""
    path = os.path.expanduser(os.path.expandvars(path))
    if not os.path.isfile(path):
        return {}
    import configparser

    parser = configparser.RawConfigParser()
    try:
        parser.read([path])
        sections = {
            name: {option: parser.get(name, option) for option in parser.options(name)} for name in parser.sections()
        }
    except (configparser.Error, UnicodeDecodeError):
        raise NeedsBotocoreError("an AWS configuration file is not a valid INI file") from None
    for settings in sections.values():
        for value in settings.values():
            if value.startswith("\n") and any("=" not in line for line in value.splitlines() if line.strip()):
                raise NeedsBotocoreError("an AWS configuration file has an invalid nested setting")
    return sections


def _remote(environ: Mapping[str, str]) -> Remote:
    """Return where to fetch temporary keys: from the container that this process runs in, or from its instance."""
    if any(os.path.exists(os.path.expanduser(path)) for path in ("/etc/boto.cfg", "~/.boto")):
        raise NeedsBotocoreError("a configuration file of boto exists")
    relative = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    full = environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if relative is not None or full is not None:
        url = f"http://{_CONTAINER_HOST}{relative}" if relative is not None else str(full)
        parts = urlsplit(url)
        if parts.scheme != "http" or not _is_container_host(parts.hostname or ""):
            raise NeedsBotocoreError("the url of the container's credentials is not http, or not on this machine")
        return Remote(url=url, instance=False, timeout_s=_CONTAINER_TIMEOUT_S)
    if environ.get("AWS_EC2_METADATA_DISABLED", "false").lower() == "true":
        raise NeedsBotocoreError("the configuration has no credentials")
    try:
        timeout_s = int(environ.get("AWS_METADATA_SERVICE_TIMEOUT", "1"))
    except ValueError:
        raise NeedsBotocoreError("the variable AWS_METADATA_SERVICE_TIMEOUT is not a whole number") from None
    url = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _INSTANCE_URL
    if _ENDPOINT.fullmatch(url) is None or not url.startswith("http:") or timeout_s < 1 or is_proxied(url):
        raise NeedsBotocoreError(
            "the url or timeout of the instance's metadata service is unusual, or its requests go through a proxy"
        )
    return Remote(url=url.rstrip("/") + "/", instance=True, timeout_s=float(timeout_s))


def _is_container_host(host: str) -> bool:
    try:
        return host in _CONTAINER_HOSTS or ip_address(host).is_loopback
    except ValueError:
        return False


def is_proxied(url: str) -> bool:
    """Return whether the environment, or the system's settings, name a proxy for ``url``."""
    named = [name for name in os.environ if name[-6:].lower() == "_proxy" and os.environ[name]]
    if not named and sys.platform not in ("darwin", "win32"):
        return False
    from urllib.request import getproxies, proxy_bypass  # it takes 7 ms to load

    proxies = {} if proxy_bypass(urlsplit(url).netloc) else getproxies()
    return urlsplit(url).scheme in proxies or "all" in proxies


_PREFIX: Final = "x-amz-server-side-encryption-customer-"
CUSTOMER_KEY_HEADERS: Final = word_set(f"{_PREFIX}algorithm {_PREFIX}key {_PREFIX}key-md5")
_KEY_OPTIONS: Final = word_set("SSECustomerAlgorithm SSECustomerKey")
_LOOPBACK: Final = ("127.", "localhost", "[::1]")


def customer_key(options: Mapping[str, Any]) -> LateHeaders | None:
    """Return the headers with the customer's key in ``s3_additional_kwargs``, encoded as botocore does. None if it has
    no key, or also other arguments, which asyncpq cannot send."""
    given = options.get("s3_additional_kwargs")
    if not isinstance(given, Mapping) or set(given) != _KEY_OPTIONS:
        return None
    key, algorithm = given["SSECustomerKey"], given["SSECustomerAlgorithm"]
    if algorithm != "AES256" or not isinstance(key, (str, bytes)) or not key:
        return None
    secret = key.encode() if isinstance(key, str) else key
    values = (algorithm, _text(secret), _text(hashlib.md5(secret, usedforsecurity=False).digest()))
    return LateHeaders.of(dict(zip(sorted(CUSTOMER_KEY_HEADERS), values, strict=True)))


def check_key_transport(route: Route, url: str) -> None:
    """Raise InvalidOptionError if a key would be sent without TLS to another machine."""
    if route.scheme != "https" and not route.host.startswith(_LOOPBACK):
        raise InvalidOptionError(
            "a customer's encryption key (SSECustomerKey) is not sent without TLS",
            url=url,
            hint="Use an https endpoint.",
        )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# -- temporary keys, and resolving -----------------------------------------------------------------


#: Takes options whose credentials have expired, and returns those that replace them.
Renew: TypeAlias = "Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]"


_ROLES = "latest/meta-data/iam/security-credentials/"
_EXPIRY = "%Y-%m-%dT%H:%M:%SZ"
_ANSWER_BYTES = 64 * 1024
_REFRESH_S = 15 * 60  # before they expire, keys are fetched again
_MUST_REFRESH_S = 10 * 60  # from here on, a failure to do so is an error


class _Answer:
    """Receives the response of a metadata service."""

    received = 0
    status = 0

    def head(self, status: int, headers: Mapping[str, str]) -> int:
        self.status = status
        return _ANSWER_BYTES

    def cut_off(self, data: bytes | memoryview) -> None:
        pass


async def _call(method: str, url: str, headers: Mapping[str, str], timeout_s: float) -> str:
    """Send one request and return the body of its 200 response. Raises OSError (also for any other status) or
    ProtocolError."""
    from asyncpq.storage.http1 import ConnectionPool, Endpoint, ProtocolError

    parts = urlsplit(url)
    endpoint = Endpoint(parts.hostname or "", parts.port or 80, False)
    lines = {"Host": parts.netloc, "User-Agent": "asyncpq", "Connection": "close", **headers}
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    text = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
    if not text.count("\n") == text.count("\r") == len(lines) or any(char in path for char in " \r\n"):
        raise ProtocolError("the request for temporary AWS credentials contains a line break")
    length = "Content-Length: 0\r\n" if method == "PUT" else ""
    pool = ConnectionPool(ssl_context=False, connect_timeout_s=timeout_s, keepalive_s=1.0)
    answer = _Answer()
    try:
        async with asyncio.timeout(timeout_s):
            connection = await pool.connect(endpoint)
            body = await connection.start(f"{method} {path} HTTP/1.1\r\n{text}{length}\r\n".encode(), answer)
    finally:
        await pool.close()
    if answer.status != 200 or not body.complete or not body.data:
        raise ConnectionError(f"the request for temporary AWS credentials got a response with status {answer.status}")
    return bytes(body.data).decode()


async def _fetch_remote(remote: Remote, environ: Mapping[str, str]) -> tuple[Credentials, float]:
    """Fetch temporary keys; return them and the time at which they expire. Raises NeedsBotocoreError if this fails."""
    from asyncpq.storage.http1 import ProtocolError  # local files and most configurations need no connection here

    try:
        if remote.instance:
            token = await _call(
                "PUT",
                f"{remote.url}latest/api/token",
                {"x-aws-ec2-metadata-token-ttl-seconds": "21600"},
                remote.timeout_s,
            )
            headers = {"x-aws-ec2-metadata-token": token}
            role = await _call("GET", f"{remote.url}{_ROLES}", headers, remote.timeout_s)
            text = await _call("GET", f"{remote.url}{_ROLES}{role}", headers, remote.timeout_s)
        else:
            headers = {"Accept": "application/json"}
            file = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
            authorization = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
            if file is not None:
                from pathlib import Path  # most processes need none

                authorization = await asyncio.to_thread(Path(file).read_text)
            if authorization is not None:
                headers["Authorization"] = authorization
            text = await _call("GET", remote.url, headers, remote.timeout_s)
        import json

        answer = json.loads(text)
        fields = [answer[name] for name in ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")]
        if not all(type(value) is str and value for value in fields):
            raise ValueError("a field of the credentials is not text")
        expiry = datetime.strptime(fields[3], _EXPIRY).replace(tzinfo=UTC).timestamp()
    except (OSError, ProtocolError, ValueError, KeyError, TypeError) as error:
        raise NeedsBotocoreError(
            f"the EC2 or ECS metadata service gave no valid credentials ({type(error).__name__})"
        ) from None
    if remote.instance:  # as in botocore, expired keys stay in use while the service has no others
        import random

        early = _REFRESH_S + random.randint(120, 600)
        if time.time() >= expiry - early:
            expiry = time.time() + early
    return Credentials(*fields[:3]), expiry


class S3Resolver(Unpicklable):
    """Resolves credentials and bucket addresses for one store, and loads botocore and s3fs when they are needed.

    ``renew``: replaces the credentials in ``options`` when they have expired (see
    :data:`asyncpq.storage.urls.RENEWAL`); None if nothing does.
    """

    def __init__(self, options: Mapping[str, Any], renew: Renew | None = None) -> None:
        self._options = options
        self._renew = renew
        self._replaced: list[S3Client] = []  # with options of expired credentials
        self._config: S3Config | None = None
        self._reason: str | None = None  # to use botocore
        self._remote_keys: tuple[Credentials, float] | None = None
        self._client: S3Client | None = None
        self._loading = asyncio.Lock()
        self._fetching = asyncio.Lock()

    async def client(self) -> S3Client:
        """Return the client of s3fs, loaded in a thread. Raises InvalidOptionError if s3fs refuses the options."""
        async with self._loading:
            if self._client is None:
                module = await asyncio.to_thread(import_whole, "asyncpq.storage.s3.client")
                self._client = module.S3Client(self._options)
            return self._client

    async def split(self, path: str) -> tuple[str, str]:
        """Split ``bucket/key`` into bucket (or access point) and key."""
        if path.startswith("arn:"):
            return (await self.client()).split(path)
        bucket, _, key = path.partition("/")
        return bucket, key

    async def find_route(self, bucket: str, url: str) -> Route | str:
        """Return the bucket's address and region; or, as text, the reason to read it through s3fs. Sends it nothing.

        Raises CredentialsError if no credentials are found, InvalidOptionError if botocore refuses options or name.
        """
        config = self._configuration()
        route = None if config is None else config.route(bucket)
        if route is not None and is_proxied(f"{route.scheme}://{route.host}{route.prefix}"):
            route = None
        if route is not None:
            await self.fetch_credentials(False)
        if route is None or self._reason is not None:
            return await (await self.client()).find_route(bucket, url)
        return route

    async def fetch_credentials(self, again: bool) -> Credentials | None:
        """Return current credentials; None for anonymous requests.

        ``again``: search anew, since the last ones expired. Raises CredentialsError if none are found.
        """
        if again:
            if self._renew is not None:
                self._options = {**self._options, **await self._renew(self._options)}
                if self._client is not None:
                    self._replaced.append(self._client)
                    self._client = None
            self._config = self._reason = self._remote_keys = None
        config = self._configuration()
        if config is not None and config.remote is not None:
            try:
                return await self._fetch_remote(config.remote)
            except NeedsBotocoreError as problem:
                self._use_botocore(str(problem))
        elif config is not None:
            if again and config.source == "storage_options" and self._renew is None:
                raise CredentialsError("the credentials in storage_options have expired", hint="Pass new credentials.")
            return config.keys
        return await (await self.client()).fetch_credentials(again)

    async def _fetch_remote(self, remote: Remote) -> Credentials:
        """Return temporary keys. They are fetched again before they expire; concurrent calls share one fetch."""
        kept = self._remote_keys
        left_s = kept[1] - time.time() if kept is not None else 0.0
        usable = kept is not None and left_s >= _MUST_REFRESH_S
        if kept is not None and (left_s >= _REFRESH_S or (usable and self._fetching.locked())):
            return kept[0]
        async with self._fetching:
            if self._remote_keys is not None and self._remote_keys is not kept:
                return self._remote_keys[0]
            try:
                fetched = await _fetch_remote(remote, os.environ)
                if kept is not None and fetched[1] <= time.time():
                    raise NeedsBotocoreError("the credentials were refreshed and have still expired")
            except NeedsBotocoreError:
                if kept is None or not usable:
                    raise
                logger.warning("Refreshing temporary credentials failed; those in use are valid for %.0f s", left_s)
                return kept[0]
            self._remote_keys = fetched
        return fetched[0]

    async def settings(self, bucket: str, url: str) -> dict[str, str]:
        """Return what was found for a bucket, without secrets: where credentials came from, endpoint and region; if
        s3fs is used, why. Raises the errors of :meth:`find_route`."""
        route = await self.find_route(bucket, url)
        config = self._configuration()
        source = config.source if config is not None else f"botocore ({self._reason})"
        if isinstance(route, str):
            return {"credentials": source, "through": f"s3fs: {route}"}
        return {"credentials": source, "endpoint": f"{route.scheme}://{route.host}", "region": route.region}

    async def ssl_context(self, scheme: str) -> ssl.SSLContext | bool:
        """Return the TLS context that botocore would use; True trusts the system's CAs, False accepts any
        certificate."""
        if scheme != "https":
            return True
        verify = (await self.client()).verify() if self._config is None else self._config.verify
        if verify is False:
            return False
        try:
            return await asyncio.to_thread(_trusting, verify)
        except OSError as error:
            raise InvalidOptionError(
                f"the CA bundle of botocore's options cannot be loaded: {error.strerror}"
            ) from error

    async def close(self) -> None:
        """Close the connections of s3fs. Idempotent."""
        for client in (*self._replaced, *([] if self._client is None else [self._client])):
            await client.close()

    def _configuration(self) -> S3Config | None:
        """Return the configuration; None if botocore must resolve it."""
        if self._config is None and self._reason is None:
            try:
                self._config = read_config(self._options)
            except NeedsBotocoreError as problem:
                self._use_botocore(str(problem))
            else:
                logger.debug(
                    "S3 configuration read without botocore: credentials of %s, region %s, %s",
                    self._config.source,
                    self._config.region,
                    "AWS's endpoint" if self._config.endpoint_url is None else "an endpoint_url",
                )
        return self._config if self._reason is None else None

    def _use_botocore(self, reason: str) -> None:
        self._reason = reason
        logger.debug("S3 configuration resolved by botocore: %s", reason)


def _trusting(verify: bool | str) -> ssl.SSLContext:
    """Return a TLS context that trusts a CA bundle: ``verify``, or botocore's default for True."""
    if verify is True:
        from certifi import where

        verify = where()
    return ssl.create_default_context(cafile=str(verify))

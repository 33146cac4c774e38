"""The store that a loaded table was opened in: a ``deltalake.DeltaTable`` and a pyiceberg ``Table`` have storage
options of their own, which the session reads the table with where its own options name nothing else (``own_options``).

Buckets of one name exist in many stores, so that the session's options could silently read another store's rows with
the table's version. :func:`check_store` raises an error instead. Stores are told apart by endpoint and by Azure's
account. An access key or a region that the table's own options name must be the session's, too: it is not dropped in
silence. Keys with a session token are not compared: catalogs give out others every hour, for tables in the same store.
Keys and regions that only the environment names are not compared either.

Each library finds an endpoint in other places, so that the environment may name one for the table and another for the
session: botocore (s3fs, pyiceberg's FsspecFileIO) reads AWS's variables and files; object_store (deltalake, obstore)
reads variables alone; pyarrow (pyiceberg's PyArrowFileIO) reads neither.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from asyncpq.caching.entry_format import storage_namespace
from asyncpq.errors import InvalidOptionError
from asyncpq.records import dataclass
from asyncpq.storage.s3.config import NeedsBotocoreError, read_config
from asyncpq.storage.urls import RENEWAL, mapping_option, options_for, safe_url, split_url
from asyncpq.tables.locations import store_protocol
from asyncpq.tables.own_options import CredentialsGiver, VendedCredentials, delta_options, iceberg_options

#: Names that object_store, and so deltalake and obstore, gives to settings, in lower case.
_ENDPOINTS: Final = (("aws_endpoint_url_s3",), ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"))
_KEY_IDS: Final = ("aws_access_key_id", "access_key_id")
_SESSION_TOKENS: Final = ("aws_session_token", "aws_token", "session_token", "token")
_REGIONS: Final = ("aws_region", "region", "aws_default_region", "default_region")
_GOOGLE_ENDPOINTS: Final = ("google_base_url", "base_url")
_ACCOUNTS: Final = ("azure_storage_account_name", "account_name")
_AZURE_ENDPOINTS: Final = ("azure_storage_endpoint", "azure_endpoint", "endpoint")
_EMULATOR_SWITCHES: Final = ("azure_storage_use_emulator", "object_store_use_emulator", "use_emulator")
_EMULATOR: Final = "http://127.0.0.1:10000"
#: What the names of a FileIO's properties begin with, by the protocol that they are about.
_ICEBERG_PREFIXES: Final = {"s3": ("s3.", "client."), "gs": ("gcs.",), "az": ("adls.",), "abfs": ("adls.",)}
_PYARROW_IO: Final = "pyiceberg.io.pyarrow.PyArrowFileIO"
_FSSPEC_IO: Final = "pyiceberg.io.fsspec.FsspecFileIO"
_GCSFS_VARIABLES: Final = ("STORAGE_EMULATOR_HOST",)
_PYARROW_GOOGLE_VARIABLES: Final = ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "CLOUD_STORAGE_TESTBENCH_ENDPOINT")
_CONNECTION_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
_ACCOUNT_VARIABLE: Final = "AZURE_STORAGE_ACCOUNT_NAME"
_CONNECTION_ACCOUNT: Final = re.compile(r"(?:^|;)\s*AccountName=([^;]+)", re.IGNORECASE)
_CONNECTION_ENDPOINT: Final = re.compile(r"(?:^|;)\s*BlobEndpoint=([^;]+)", re.IGNORECASE)
_AZURE: Final = re.compile(r"(?:.*\.)?(?:core\.windows\.net|fabric\.microsoft\.com)")
_AMAZON: Final = re.compile(r"(?:.*\.)?amazonaws\.com")
_THIS_MACHINE: Final = re.compile(r"(?:.*\.)?localhost(?:\.localstack\.cloud)?|::1")
_VENDED: Final = frozenset({"key", "secret", "token", "sas_token", RENEWAL})
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Settings:
    """What says which store is read, and as whom. None: not named."""

    endpoint: str | None = None  # url or host; "" for the provider's own
    account: str | None = None  # of Azure
    key_id: str | None = field(default=None, repr=False)  # of S3; None too if it is temporary
    region: str | None = None  # of S3


@dataclass(frozen=True, slots=True)
class OwnStore:
    """The store that a table was opened in.

    Attributes:
        table: what names the store, and what to pass instead of it, for messages.
        protocol: of the table's url, by :func:`asyncpq.tables.locations.store_protocol`.
        settings: what the table names.
        bucket: bucket or container in the table's url.
        options: the table's options, as those of fsspec's filesystem.
        owner: text that names the table and who has loaded it, if its credentials are a catalog's, given for some time;
            else "".
    """

    table: tuple[str, str]
    protocol: str
    settings: Settings
    bucket: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    owner: str = field(default="", repr=False)

    def scope(self, storage_options: Mapping[str, Any]) -> str:
        """Return the namespace of what is read with ``storage_options``, which include the table's: one for all
        credentials that a catalog gives a table, else one for these options."""
        options = options_for(self.protocol, storage_options)
        if RENEWAL in options:
            changing = _VENDED if self.owner else (RENEWAL,)
            lasting = {name: value for name, value in options.items() if name not in changing}
            options = {**lasting, "owner": self.owner}
        return storage_namespace(self.protocol, {"table": options})


def delta_store(
    url: str, given: Mapping[str, Any] | None, load: Callable[[], Mapping[str, Any] | None] | None = None
) -> OwnStore | None:
    """Return the store of a ``deltalake.DeltaTable`` at ``url`` with the storage options ``given``; None if neither
    these nor the environment that deltalake reads tell.

    ``load``: returns the table's storage options anew, once temporary credentials in them have expired: others may have
    been put into them.
    """
    protocol, bucket = _protocol(url)
    given = given or {}
    settings = _object_store_settings(protocol, given, os.environ.items())
    if protocol in ("az", "abfs") and settings.account is None:
        return None
    if settings == Settings():
        return None
    named = ("the DeltaTable", "the table's url, format='delta' and its version")
    options = delta_options(protocol, given)
    if load is not None:
        table, giver = f"the Delta table {safe_url(url)}", "the DeltaTable"
        hint = "Put others into the dict that DeltaTable() was given as storage_options, before these expire."
        _add_renewal(
            options, protocol, given, CredentialsGiver(lambda: load() or {}, delta_options, table, giver, hint)
        )
    return OwnStore(named, protocol, settings, bucket, options)


def iceberg_store(
    url: str,
    properties: Mapping[str, Any],
    load: Callable[[], Mapping[str, Any]] | None = None,
    table: str = "",
    owner: str = "",
) -> OwnStore | None:
    """Return the store of a pyiceberg table at ``url`` whose ``io`` has these ``properties``; None if they name no
    setting of such a store: a catalog may have loaded the table without a request to its store.

    ``load``: asks the catalog for the ``table``'s properties anew, whose credentials replace expired ones; None if it
    cannot. ``owner``: see :class:`OwnStore`.
    """
    protocol, bucket = _protocol(url)
    prefixes = _ICEBERG_PREFIXES.get(protocol, ())
    if not any(name.startswith(prefixes) and value for name, value in properties.items()):
        return None
    settings, options = Settings(), iceberg_options(protocol, properties)
    if protocol == "s3":
        settings = Settings(
            _first(properties, "s3.endpoint") or _file_io_endpoint(protocol, properties),
            None,
            _lasting_key(
                _first(properties, "s3.access-key-id", "client.access-key-id"),
                _first(properties, "s3.session-token", "client.session-token"),
            ),
            _first(properties, "s3.region", "client.region"),
        )
    elif protocol == "gs":
        endpoint = _first(properties, "gcs.service.host", "gcs.endpoint")
        settings = Settings(endpoint or _file_io_endpoint(protocol, properties))
    elif protocol in ("az", "abfs"):
        connection = properties.get("adls.connection-string")
        endpoint = _first(properties, "adls.account-host", "adls.blob-storage-authority") or _endpoint_in(connection)
        settings = Settings(
            endpoint or _file_io_endpoint(protocol, properties),
            _first(properties, "adls.account-name") or _account_in(connection) or options.get("account_name"),
        )
    if settings == Settings():
        return None
    instead = "the url of its metadata file and format='iceberg'"
    if load is not None:
        _add_renewal(options, protocol, properties, CredentialsGiver(load, iceberg_options, table))
    return OwnStore(("the properties of the Iceberg table's io", instead), protocol, settings, bucket, options, owner)


def _add_renewal(options: dict[str, Any], protocol: str, given: Mapping[str, Any], giver: CredentialsGiver) -> None:
    """Add to ``options`` what renews the credentials in ``given``, if they may expire."""
    renewal = VendedCredentials(protocol, given, giver)
    if renewal.may_expire:
        options[RENEWAL] = renewal


def _file_io_endpoint(protocol: str, properties: Mapping[str, Any]) -> str | None:
    """Return the endpoint that pyiceberg's FileIO takes if its ``properties`` name none; None if that is unknown."""
    file_io = str(properties.get("py-io-impl") or _PYARROW_IO)
    if file_io not in (_PYARROW_IO, _FSSPEC_IO):
        return None
    by_fsspec = file_io == _FSSPEC_IO
    if protocol == "s3":
        profile = _first(properties, "s3.profile-name", "client.profile-name")
        return _botocore_endpoint({"profile": profile}) if by_fsspec else ""
    if protocol == "gs":
        return _first(os.environ, *(_GCSFS_VARIABLES if by_fsspec else _PYARROW_GOOGLE_VARIABLES)) or ""
    return _endpoint_in(os.environ.get(_CONNECTION_VARIABLE)) or ""  # adlfs', for each FileIO that has it


def check_store(own: OwnStore, storage_options: Mapping[str, Any]) -> None:
    """Raise InvalidOptionError if a session with ``storage_options`` would read the table in another store, or with
    another access key or region than the table names."""
    options = options_for(own.protocol, storage_options)
    inner = options.get("obstore")
    if isinstance(inner, Mapping):
        # of two variables for one setting, obstore takes the last, deltalake the first
        variables = [(name, value) for name, value in os.environ.items() if name.startswith("AWS_")]
        session = _object_store_settings(own.protocol, inner, reversed(variables))
    else:
        session = _session_settings(own.protocol, options)
    named = own.settings
    if named.account and session.account and named.account.lower() != session.account.lower():
        raise _differ(
            own,
            "store",
            f'{{"account_name": "{named.account}"}}',
            (f"the account {named.account}", f"the account {session.account}"),
        )
    if named.endpoint is not None:
        _check_endpoint(own, named.endpoint, session.endpoint or "")
    if named.key_id is not None and named.key_id != session.key_id:
        raise _differ(own, "access key", '{"key": ..., "secret": ...}')
    # "auto" leaves the region to the server; Amazon tells a session that names none
    region = session.region or ("us-east-1" if session.endpoint else None)
    if named.region not in (None, "auto") and region not in (None, named.region):
        wanted = f'{{"client_kwargs": {{"region_name": "{named.region}"}}}}'
        raise _differ(own, "region", wanted, (str(named.region), str(region)))


def _check_endpoint(own: OwnStore, named: str, session: str) -> None:
    if own.protocol in ("az", "abfs"):
        whose, option = "Azure's", "account_host"
        same = _azure_server(named) == _azure_server(session)
    else:
        whose, option = "Amazon's" if own.protocol == "s3" else "Google's", "endpoint_url"
        same = _server(named, own.bucket) == _server(session, own.bucket)
    if not same:
        first, second = (safe_url(url) if url else f"{whose} own endpoint" for url in (named, session))
        unset = "endpoint_url or AWS_ENDPOINT_URL" if own.protocol == "s3" else option
        wanted = f'{{"{option}": "{first}"}}' if named else f"without {unset}"
        raise _differ(own, "store", wanted, (first, second))


def _differ(own: OwnStore, what: str, wanted: str, both: tuple[str, str] | None = None) -> InvalidOptionError:
    """Return the error for a table that names another ``what`` than the session. ``both``: what the table names, and
    the session's; None for what is not shown."""
    table, instead = own.table
    option = f"storage_options={wanted}" if wanted.startswith("{") else f"storage_options {wanted}"
    shown = "" if both is None else f": {both[0]}, not {both[1]}"
    same = "both are one store" if what == "store" else f"the session's {what} will do"
    return InvalidOptionError(
        f"{table} names another {what} than the session{shown}",
        hint=f"Pass the same to Session({option}); or, if {same}, pass {instead} instead of the table.",
    )


def _object_store_settings(protocol: str, options: Mapping[str, Any], variables: Iterable[tuple[str, str]]) -> Settings:
    """Return what ``options`` of object_store name; an endpoint and an account that they lack are those of the
    environment. ``variables``: the environment's, in the order in which the library prefers them."""
    named = {name.lower(): str(value) for name, value in options.items()}
    if protocol == "s3":
        endpoint = _object_store_endpoint(named, variables)
        key_id = _lasting_key(_first(named, *_KEY_IDS), _first(named, *_SESSION_TOKENS))
        return Settings(endpoint, None, key_id, _first(named, *_REGIONS))
    if protocol == "gs":
        return Settings(_first(named, *_GOOGLE_ENDPOINTS))
    if protocol in ("az", "abfs"):
        emulated = (_first(named, *_EMULATOR_SWITCHES) or "").lower() in ("true", "1", "yes", "on")
        endpoint = _first(named, *_AZURE_ENDPOINTS) or (_EMULATOR if emulated else "")
        return Settings(endpoint, _first(named, *_ACCOUNTS) or os.environ.get(_ACCOUNT_VARIABLE))
    return Settings()


def _object_store_endpoint(named: Mapping[str, str], variables: Iterable[tuple[str, str]]) -> str:
    """Return the endpoint of S3 that object_store uses; "" for Amazon's.

    An option counts before a variable, but the endpoint of S3 alone counts before the endpoint of all services, even if
    only the environment names it.
    """
    variables = [(name.lower(), value) for name, value in variables]
    for names in _ENDPOINTS:
        endpoint = _first(named, *names) or next((value for name, value in variables if name in names), None)
        if endpoint:
            return endpoint
    return ""


def _lasting_key(key_id: str | None, session_token: str | None) -> str | None:
    return None if session_token else key_id


def _session_settings(protocol: str, options: Mapping[str, Any]) -> Settings:
    """Return what the ``options`` of an fsspec filesystem and the environment name, for S3 the files of AWS too."""
    if protocol == "s3":
        return _s3_settings(options)
    if protocol == "gs":
        return Settings(str(options.get("endpoint_url") or _first(os.environ, *_GCSFS_VARIABLES) or ""))
    if protocol in ("az", "abfs"):
        connection = options.get("connection_string") or os.environ.get(_CONNECTION_VARIABLE)
        account = options.get("account_name") or _account_in(options.get("connection_string"))
        account = account or os.environ.get(_ACCOUNT_VARIABLE) or _account_in(connection)
        endpoint = options.get("account_host") or _endpoint_in(connection) or ""
        return Settings(str(endpoint), None if account is None else str(account))
    return Settings()


def _protocol(url: str) -> tuple[str, str]:
    """Return one name for the protocol of ``url``, and its bucket; with ``container@account`` in urls of Azure."""
    protocol, rest = split_url(url)
    return store_protocol(protocol), rest.partition("/")[0]


def _first(named: Mapping[str, Any], *names: str) -> str | None:
    return next((str(named[name]) for name in names if named.get(name)), None)


def _account_in(connection: object) -> str | None:
    match = _CONNECTION_ACCOUNT.search(connection) if isinstance(connection, str) else None
    return None if match is None else match[1]


def _endpoint_in(connection: object) -> str | None:
    match = _CONNECTION_ENDPOINT.search(connection) if isinstance(connection, str) else None
    return None if match is None else match[1]


def _s3_settings(options: Mapping[str, Any]) -> Settings:
    """Return what ``options`` of s3fs, the environment and the files of AWS name."""
    try:
        config = read_config(options)
    except NeedsBotocoreError:  # what else it says, only botocore knows
        client, config_kwargs = mapping_option(options, "client_kwargs"), mapping_option(options, "config_kwargs")
        return Settings(
            _first(options, "endpoint_url") or _first(client, "endpoint_url") or _botocore_endpoint(options),
            None,
            _first(options, "key", "username")
            or _first(client, "aws_access_key_id")
            or _first(os.environ, "AWS_ACCESS_KEY_ID"),
            _first(client, "region_name")
            or _first(config_kwargs, "region_name")
            or _first(os.environ, "AWS_DEFAULT_REGION"),
        )
    key_id = None if config.keys is None else config.keys.access_key
    return Settings(config.endpoint_url or "", None, key_id, config.region)


def _botocore_endpoint(options: Mapping[str, Any]) -> str:
    """Return the endpoint that botocore finds in the environment and the files of AWS, for the profile and the
    ``config_kwargs`` of ``options`` of s3fs; "" for Amazon's."""
    if mapping_option(options, "config_kwargs").get("ignore_configured_endpoint_urls"):
        return ""
    profile = options.get("profile")
    try:
        return read_config({} if profile is None else {"profile": profile}).endpoint_url or ""
    except NeedsBotocoreError:
        from asyncpq.storage.s3.client import configured_endpoint  # takes half a second to import

        return configured_endpoint(profile) or ""


def _azure_server(endpoint: str) -> tuple[str, int | None]:
    """Return host and port of an endpoint of Azure, alike for all spellings of one server."""
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    host = parts.hostname or ""
    if not endpoint or _AZURE.fullmatch(host):
        return "", None
    return _host_and_port(host, parts)


def _server(endpoint: str, bucket: str) -> tuple[str, int | None, str]:
    """Return host, port and path of an endpoint, alike for all spellings of one server. The port is None if it is the
    scheme's own; the host may begin with the bucket."""
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    host = (parts.hostname or "").removeprefix(f"{bucket.lower()}.")
    if not endpoint or _AMAZON.fullmatch(host):
        return "", None, ""
    return *_host_and_port(host, parts), parts.path.rstrip("/").removesuffix(f"/{bucket}")


def _host_and_port(host: str, parts: SplitResult) -> tuple[str, int | None]:
    try:
        port = parts.port
    except ValueError:  # no number
        port = None
    return "127.0.0.1" if _THIS_MACHINE.fullmatch(host) else host, None if port == _PORTS.get(parts.scheme) else port

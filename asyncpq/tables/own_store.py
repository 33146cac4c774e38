"""A table's own store: the one that a loaded table was opened in, and the one in which all of a table's files must be.

A ``deltalake.DeltaTable`` and a pyiceberg ``Table`` have storage options of their own, so that their user does not
write them a second time. The session reads the table with them; what its own options name counts first, and
credentials of the two are never mixed.

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

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from asyncpq.caching.entry_format import storage_namespace
from asyncpq.errors import CredentialsError, InvalidOptionError, UnsupportedFeatureError, UnsupportedStoreError
from asyncpq.records import dataclass
from asyncpq.storage.s3.config import NeedsBotocoreError, read_config
from asyncpq.storage.urls import RENEWAL, mapping_option, options_for, safe_url, split_url

# -- options --------------------------------------------------------------------------------------

#: For each protocol, names of properties of pyiceberg's FileIO, the first that is set; and the option that they become.
_ICEBERG: Final = {
    "s3": (
        (("s3.endpoint",), "endpoint_url"),
        (("s3.access-key-id", "client.access-key-id"), "key"),
        (("s3.secret-access-key", "client.secret-access-key"), "secret"),
        (("s3.session-token", "client.session-token"), "token"),
        (("s3.region", "client.region"), "region"),
        (("s3.profile-name", "client.profile-name"), "profile"),
        (("s3.anonymous",), "anon"),
        (("s3.force-virtual-addressing",), "virtual"),
    ),
    "gs": (
        (("gcs.oauth2.token",), "token"),
        (("gcs.project-id",), "project"),
        (("gcs.service.host", "gcs.endpoint"), "endpoint_url"),
    ),
    "az": (
        (("adls.connection-string",), "connection_string"),
        (("adls.account-name",), "account_name"),
        (("adls.account-key",), "account_key"),
        (("adls.sas-token",), "sas_token"),
        (("adls.tenant-id",), "tenant_id"),
        (("adls.client-id",), "client_id"),
        (("adls.client-secret",), "client_secret"),
        (("adls.account-host", "adls.blob-storage-authority"), "account_host"),
        (("adls.anon",), "anon"),
    ),
}
#: The same for names of object_store, in lower case.
_OBJECT_STORE: Final = {
    "s3": (
        (("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"), "endpoint_url"),
        (("aws_access_key_id", "access_key_id"), "key"),
        (("aws_secret_access_key", "secret_access_key"), "secret"),
        (("aws_session_token", "aws_token", "session_token", "token"), "token"),
        (("aws_region", "region", "aws_default_region", "default_region"), "region"),
        (("aws_skip_signature", "skip_signature"), "anon"),
        (("aws_virtual_hosted_style_request", "virtual_hosted_style_request"), "virtual"),
    ),
    "gs": (
        (
            (
                "google_service_account",
                "google_service_account_path",
                "google_application_credentials",
                "service_account",
                "service_account_path",
                "application_credentials",
            ),
            "token",
        ),
        (("google_base_url", "base_url"), "endpoint_url"),
    ),
    "az": (
        (("azure_storage_account_name", "account_name"), "account_name"),
        (("azure_storage_account_key", "azure_storage_access_key", "account_key", "access_key"), "account_key"),
        (("azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key"), "sas_token"),
        (("azure_storage_tenant_id", "azure_tenant_id", "tenant_id"), "tenant_id"),
        (("azure_storage_client_id", "azure_client_id", "client_id"), "client_id"),
        (("azure_storage_client_secret", "azure_client_secret", "client_secret"), "client_secret"),
    ),
}
#: Options of a session that name credentials: none of the table's are then used.
_CREDENTIALS: Final = frozenset(
    {
        *("key", "secret", "token", "username", "password", "profile", "session", "anon"),
        *("account_key", "sas_token", "connection_string", "credential", "tenant_id", "client_id", "client_secret"),
    }
)
_CLIENT_CREDENTIALS: Final = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
#: For each protocol, the options that a catalog may give for some time, and what the name of the property begins with
#: that says when they expire, in milliseconds since 1970.
_VENDED: Final = {
    "s3": (("key", "secret", "token"), "s3.session-token-expires-at-ms"),
    "gs": (("token",), "gcs.oauth2.token-expires-at"),
    "az": (("sas_token",), "adls.sas-token-expires-at-ms"),
    "abfs": (("sas_token",), "adls.sas-token-expires-at-ms"),
}
_MAY_EXPIRE: Final = frozenset({"token", "sas_token"})
_TRUE: Final = ("true", "1", "yes", "on", "t")
_ACCOUNT_SIGNATURE: Final = "adls.sas-token."
#: The protocols whose urls a table of the protocol may have: the table's options count for all of them.
_SAME: Final = {
    "s3": ("s3", "s3a"),
    "gs": ("gs", "gcs"),
    "az": ("az", "abfs", "abfss"),
    "abfs": ("az", "abfs", "abfss"),
}


def iceberg_options(protocol: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec's filesystem that ``properties`` of a pyiceberg FileIO name; {} for none."""
    return _options(protocol, _ICEBERG, properties)


def delta_options(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec's filesystem that ``options`` of object_store name; {} for none."""
    return _options(protocol, _OBJECT_STORE, {name.lower(): value for name, value in options.items()})


def _named(protocol: str, names: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Return what ``given`` names, as text, by the options that ``names`` says it becomes."""
    known = names.get("az" if protocol == "abfs" else protocol, ())
    values = {option: _first(given, *spellings) for spellings, option in known}
    return {option: value for option, value in values.items() if value is not None}


def _options(protocol: str, names: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in given.items():  # of Azure, a signature for each account, such as a.dfs.core.windows.net
        if protocol in ("az", "abfs") and name.startswith(_ACCOUNT_SIGNATURE) and value:
            options |= {"sas_token": str(value), "account_name": name[len(_ACCOUNT_SIGNATURE) :].partition(".")[0]}
    options |= _named(protocol, names, given)
    for switch in ("anon", "virtual"):
        if switch in options:
            options[switch] = options[switch].lower() in _TRUE
    if not options.get("anon"):
        options.pop("anon", None)
    if options.pop("virtual", False):
        options["config_kwargs"] = {"s3": {"addressing_style": "virtual"}}
    region = options.pop("region", None)
    if region not in (None, "auto"):
        options["client_kwargs"] = {"region_name": region}
    if protocol == "s3" and not {"key", "secret"} <= options.keys():  # the other one is in the environment
        for name in ("key", "secret", "token"):
            options.pop(name, None)
    return options


def with_table_options(
    protocol: str, own: Mapping[str, Any], storage_options: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return storage options with those of a table, ``own``, added to a session's ``storage_options``; None if the
    session's alone count."""
    session = options_for(protocol, storage_options)
    if not own or "obstore" in session:
        return None
    client = mapping_option(session, "client_kwargs")
    added = dict(own)
    if not _CREDENTIALS.isdisjoint(session) or not _CLIENT_CREDENTIALS.isdisjoint(client):
        added = {name: value for name, value in added.items() if name not in (*_CREDENTIALS, RENEWAL)}
    if "endpoint_url" in client:
        added.pop("endpoint_url", None)
    merged = {**added, **session}
    for name in ("client_kwargs", "config_kwargs"):
        if name in added and name in session:
            merged[name] = {**added[name], **mapping_option(session, name)}
    if merged == session:
        return None
    return dict.fromkeys(_SAME.get(protocol, (protocol,)), merged)


class CredentialsGiver(NamedTuple):
    """The source of a table's credentials, such as its catalog, which is asked for new ones when they expire."""

    load: Callable[[], Mapping[str, Any]]  # returns what it gives now: properties, or storage options. Blocks.
    options: Callable[[str, Mapping[str, Any]], dict[str, Any]]  # those of fsspec's filesystem in them
    table: str  # name of the table, for messages
    name: str = "its catalog"
    hint: str = "Check the catalog's clock, and how long its credentials are valid."  # if it gives the same again


class VendedCredentials:
    """Credentials that a table has been given for some time. Their ``giver`` gives others when they have expired.

    Args:
        protocol: of the table's store.
        properties: with the credentials, and perhaps the time when they expire.
    """

    def __init__(self, protocol: str, properties: Mapping[str, Any], giver: CredentialsGiver) -> None:
        self._protocol = protocol
        self._giver = giver
        self._lock = asyncio.Lock()
        self._take(properties)

    def _take(self, properties: Mapping[str, Any]) -> None:
        options = self._giver.options(self._protocol, properties)
        names, expiry = _VENDED.get(self._protocol, ((), "-"))
        self._options = {name: options[name] for name in names if name in options}
        times = [str(value) for name, value in properties.items() if name.startswith(expiry)]
        self._expires_ms = min((int(time) for time in times if time.isdecimal()), default=None)

    @property
    def may_expire(self) -> bool:
        """Whether there are such credentials: a key of S3 has a session token, one of Azure a signature."""
        return not _MAY_EXPIRE.isdisjoint(self._options)

    def update(self, newer: VendedCredentials) -> None:
        """Use the credentials of a table that was loaded later."""
        self._options, self._giver, self._expires_ms = newer._options, newer._giver, newer._expires_ms

    def is_due(self) -> bool:
        """Return whether the credentials have expired, by the time that the catalog named."""
        return self._expires_ms is not None and time.time() * 1000 >= self._expires_ms

    async def __call__(self, expired: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the credentials that came after those of ``expired``, options of a filesystem.

        Raises CredentialsError if their giver fails, or has no others.
        """
        async with self._lock:
            if self._is_in(expired):
                await self._load_again()
            if self._is_in(expired):
                giver = self._giver
                raise CredentialsError(
                    f"the credentials of {giver.table} have expired, and {giver.name} gives the same ones",
                    hint=giver.hint,
                )
            return self._options

    async def when_due(self, old: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the credentials that came after those of ``old``, which are due; or the same ones, if the catalog
        still gives them.

        Raises CredentialsError if their giver fails.
        """
        async with self._lock:
            if self._is_in(old) and self.is_due():
                await self._load_again()
            return self._options

    async def _load_again(self) -> None:
        try:
            self._take(await asyncio.to_thread(self._giver.load))
        except Exception as error:
            raise CredentialsError(
                f"the credentials of {self._giver.table} have expired, and {self._giver.name} gave no others: "
                f"{type(error).__name__}",
                hint="Load the table again, and open it.",
            ) from error
        if self.is_due():  # by this host's clock; the store says when they have expired by its own
            self._expires_ms = None

    def _is_in(self, options: Mapping[str, Any]) -> bool:
        return all(options.get(name) == value for name, value in self._options.items())


# -- stores ---------------------------------------------------------------------------------------

#: Names of endpoints and switches in object_store, and so in deltalake and obstore, in lower case.
_ENDPOINTS: Final = (("aws_endpoint_url_s3",), ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"))
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
_CHANGING: Final = frozenset({"key", "secret", "token", "sas_token", RENEWAL})
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that identify the store that is read, and the user. None: not set."""

    endpoint: str | None = None  # url or host; "" for the provider's own
    account: str | None = None  # of Azure
    key_id: str | None = field(default=None, repr=False)  # of S3; None too if it is temporary
    region: str | None = None  # of S3


@dataclass(frozen=True, slots=True)
class OwnStore:
    """The store that a table was opened in.

    Attributes:
        table: what names the store, and what to pass instead of it, for messages.
        protocol: of the table's url, by :func:`asyncpq.tables.own_store.store_protocol`.
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
            changing = _CHANGING if self.owner else (RENEWAL,)
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
    named = _named(protocol, _ICEBERG, properties)
    if protocol in ("s3", "gs"):
        endpoint = named.get("endpoint_url") or _file_io_endpoint(protocol, properties)
        settings = Settings(endpoint, None, _lasting_key(named), named.get("region"))
    elif protocol in ("az", "abfs"):
        connection = named.get("connection_string")
        settings = Settings(
            named.get("account_host") or _endpoint_in(connection) or _file_io_endpoint(protocol, properties),
            named.get("account_name") or _account_in(connection) or options.get("account_name"),
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
    given = {name.lower(): str(value) for name, value in options.items()}
    named = _named(protocol, _OBJECT_STORE, given)
    if protocol == "s3":
        return Settings(_object_store_endpoint(given, variables), None, _lasting_key(named), named.get("region"))
    if protocol == "gs":
        return Settings(named.get("endpoint_url"))
    if protocol in ("az", "abfs"):
        emulated = (_first(given, *_EMULATOR_SWITCHES) or "").lower() in ("true", "1", "yes", "on")
        endpoint = _first(given, *_AZURE_ENDPOINTS) or (_EMULATOR if emulated else "")
        return Settings(endpoint, named.get("account_name") or os.environ.get(_ACCOUNT_VARIABLE))
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


def _lasting_key(named: Mapping[str, str]) -> str | None:
    return None if named.get("token") else named.get("key")


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


# -- where a table's metadata may say that its files are -------------------------------------------
# Whoever can write to a table chooses the locations in its metadata, and the session reads them with its user's rights.
# So the metadata of a table in a remote store may name objects of that store alone: no local files, no other protocols
# and, where urls name servers rather than buckets, no other server. Other buckets are allowed: shallow clones need
# them.


_ONE_NAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file", "abfss": "abfs"}
#: Urls of these protocols begin with a bucket or a path, which names no server.
_SERVERLESS: Final = frozenset({"s3", "gs", "file", "memory", "az", "b2", "cos", "cosn", "obs", "oci", "oss", "tos"})
_AUTHORITY_ENDS: Final = re.compile(r"[/?#\\]")
_HINT: Final = "If you trust the table, copy the file beside it, or open the table's files by a list of their urls."


def store_protocol(protocol: str) -> str:
    """Return one name for all protocols of a store, such as "s3" for "s3a"."""
    return _ONE_NAME.get(protocol, protocol)


@dataclass(frozen=True, slots=True)
class TableStore:
    """The store of a table's metadata, in which its files must be, too."""

    table: str  # for messages
    protocol: str  # by :func:`store_protocol`
    server: str  # that urls of this protocol name; "" where they name none
    shown: str  # where the metadata is, for messages

    @classmethod
    def of(cls, table: str, url: str) -> TableStore:
        """Return the store of the metadata at ``url``, a url or a local path."""
        return cls(table, *_store(url), safe_url(url))

    def check(self, url: str) -> None:
        """Raise UnsupportedFeatureError if ``url`` is in another store, unless the table's metadata is local."""
        if self.protocol != "file" and not self.has(url):
            raise another_store(self.table, url, self.shown)

    def has(self, url: str) -> bool:
        """Return whether ``url``, as the table's metadata writes it, is in this store."""
        try:
            return _store(url) == (self.protocol, self.server)
        except UnsupportedStoreError:  # a chain of filesystems
            return False


def another_store(table: str, url: str, shown: str) -> UnsupportedFeatureError:
    """Return the error for a table whose metadata names ``url``, a file in another store than its own. ``shown``: where
    the metadata is, for messages."""
    return UnsupportedFeatureError(
        f"{table} names a file of another store, which is not allowed: {safe_url(url)}", url=shown, hint=_HINT
    )


def _store(url: str) -> tuple[str, str]:
    protocol, rest = split_url(url)
    protocol = store_protocol(protocol)
    if protocol in _SERVERLESS:
        return protocol, ""
    authority = _AUTHORITY_ENDS.split(rest, maxsplit=1)[0].lower()
    return protocol, authority.rpartition("@")[2] if protocol == "abfs" else authority  # container@account

"""The storage options of a loaded table, as options of fsspec's filesystems: those of a pyiceberg table's ``io``
(``s3.*``, ``gcs.*``, ``adls.*``), and those of a ``deltalake.DeltaTable`` (object_store's).

A session reads such a table with them, so that its user does not write them a second time. What the session's own
options name counts first; credentials of the two are never mixed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from asyncpq.errors import CredentialsError
from asyncpq.storage.urls import RENEWAL, mapping_option, options_for

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


def _options(protocol: str, names: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in given.items():  # of Azure, a signature for each account, such as a.dfs.core.windows.net
        if protocol in ("az", "abfs") and name.startswith(_ACCOUNT_SIGNATURE) and value:
            options |= {"sas_token": str(value), "account_name": name[len(_ACCOUNT_SIGNATURE) :].partition(".")[0]}
    for known, option in names.get("az" if protocol == "abfs" else protocol, ()):
        value = next((given[name] for name in known if given.get(name)), None)
        if value is not None:
            options[option] = str(value)
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
    """What has given a table its credentials, and is asked for others."""

    load: Callable[[], Mapping[str, Any]]  # returns what it gives now: properties, or storage options. Blocks.
    options: Callable[[str, Mapping[str, Any]], dict[str, Any]]  # those of fsspec's filesystem in them
    table: str  # name of the table, for messages
    name: str = "its catalog"
    hint: str = "Check the catalog's clock, and how long its credentials are valid."  # if it gives the same again


class VendedCredentials:
    """Credentials that a table has been given for some time. Their ``giver`` is asked for others when they have
    expired.

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

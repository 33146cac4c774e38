"""Settings of a Spark job's workers: the driver reads them and puts them into the plan, without credentials.

Spark shows settings and options in plans, logs and its UI, so values that look like credentials are refused.

Each process calls the provider of credentials itself, and again when a store refuses the credentials.
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, cast, get_args
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from asyncpq import Session
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import AsyncpqError, CredentialsError, InvalidOptionError, nearest
from asyncpq.options import KIB, MIB, DiskCacheOptions, LimitOptions, ReadOptions, etag, require_whole

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


#: Names of credentials in snake case, see :func:`looks_secret`.
_SECRET: Final = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|account_?key|access_?key|customer_?key|private_?key|api_?key"
    r"|subscription_?key|encryption_?key|shared_?key|master_?key|auth_?key|sas|connection_?string|signature(?!_?version)"
    r"|authorization|cookie|bearer|(^|_)(key|auth|pass|sig|jwt)$"
)
#: User info behind ``://``, which may contain slashes in SQL urls. Digits behind a host's colon are its port.
_USER: Final = re.compile(r"[^/?#\s]*@|[^:/?#@\[\s]*:(?!\d+([/?#]|$))[^@\s]*@")


def refuse_secrets(where: str, value: object) -> None:
    """Raise InvalidOptionError for an option that looks like a credential, or a url with user info or a signed query.

    ``value`` is a mapping of options, a list, or a text that may contain urls. ``where`` names it in the message.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(name, str) and looks_secret(name) and inner not in (None, "", False):
                raise secret_refused(f"{name!r} in {where}")
            refuse_secrets(where, inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            refuse_secrets(where, inner)
    elif isinstance(value, str):
        for rest in value.split("://")[1:]:
            query = rest.partition("?")[2]
            if _USER.match(rest) or any(looks_secret(part.partition("=")[0]) for part in re.split("[&;]", query)):
                raise secret_refused(f"a part of the url ({where})")


def without_credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options that JSON has, also nested ones, without those that look like credentials."""
    return {
        name: without_credentials(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if not looks_secret(name) and isinstance(value, (str, int, float, Mapping, type(None)))
    }


def looks_secret(name: str) -> bool:
    """Return whether the name of an option, header or parameter looks like a credential's, in any spelling."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", unquote(name)).replace("-", "_").lower()
    return _SECRET.search(words) is not None or _SECRET.search(words.replace("_", "")) is not None


def secret_refused(what: str) -> InvalidOptionError:
    """Return the error for a value that looks like a credential; ``what`` names its place."""
    return InvalidOptionError(
        f"{what} looks like a credential, but Spark shows settings and options in plans, logs and its UI",
        hint="Set credentials_provider='module:function' (option credentialsProvider), which is called where files are"
        " read, or put the credentials into the environment of the executors.",
    )


def listed_in(value: str) -> object:
    """Return the items of ``value`` if it is a JSON list, as Spark passes several paths; any other text unchanged."""
    if not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def with_three_slashes(target: Any) -> Any:
    """Return a url that is spelled ``file:/folder``, as Spark and Hadoop do, as ``file:///folder``; anything else
    unchanged."""
    return re.sub("^file:/(?!/)", "file:///", target) if isinstance(target, str) else target


PREFIX: Final = "spark.asyncpq."
#: Bytes of the memory caches if the worker's share of the executor's memory is unknown.
DEFAULT_MEMORY_BYTES: Final = 64 * MIB

_CHECK_AGE_S: Final = 60.0
_checked: WeakKeyDictionary[object, float] = WeakKeyDictionary()

_LEAST: Final = {"memory_cache_bytes": MIB, "disk_cache_bytes": MIB, "split_bytes": 64 * KIB, "most_splits": 1}

DiskTier = Literal["executor", "host", "off"]

_INLINE_BYTES: Final = 4 * MIB  # a task has one core, so decoding in another thread gains nothing
_LEAST_MEMORY: Final = 8 * MIB
_CACHE_FOLDER: Final = "asyncpq-cache"
_NO_PROVIDER: Final = (
    "Set credentials_provider='module:function' (option credentialsProvider), or put the credentials into the"
    " environment of the executors."
)
_frozen = False
_INNER: Final = {"set by": "asyncpq"}


class SettingKeywords(TypedDict, total=False):
    """The attributes of :class:`SparkSettings` as keyword arguments; ``storage_options`` is a mapping."""

    storage_options: Mapping[str, Any] | None
    credentials_provider: str | None
    memory_cache_bytes: int | None
    disk_cache: DiskTier | None
    disk_cache_folder: str | None
    disk_cache_bytes: int | None
    work_folder: str | None
    split_bytes: int | None
    most_splits: int | None


def check_arguments(given: Collection[str], names: Collection[str]) -> None:
    """Check that a function has the keyword arguments ``given``: ``names``, settings among them. Raises
    InvalidOptionError, with the nearest name, for another."""
    unknown = sorted(set(given) - set(names))
    if unknown:
        hint = f"Check the spelling of the argument. The settings are {', '.join(SETTING_NAMES)}."
        raise InvalidOptionError(
            f"the function has no argument {unknown[0]!r}, and asyncpq has no such setting",
            hint=nearest(unknown[0], [*names], hint),
        )


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Settings of asyncpq on the driver and its workers. Picklable; without secrets.

    Its attributes are keyword arguments of :func:`scan` and the other functions of :mod:`asyncpq.spark`, options of the
    data source, and settings ``spark.asyncpq.*``; few users make one. asyncpq calls its methods: it implements
    :class:`asyncpq.distributed.WorkerSettings`. A value that is not allowed raises
    :class:`asyncpq.InvalidOptionError`.

    Attributes:
        storage_options: the storage options of :class:`asyncpq.Session` as a JSON text, without credentials.
        credentials_provider: ``"module:function"``. The function is imported and called without arguments in each
            process that reads or writes files, and returns further storage options, with credentials. None: the
            environment of the process has the credentials.
        memory_cache_bytes: maximum bytes in the memory cache of a worker process. None: a quarter of its share of the
            executor's memory (``spark.executor.pyspark.memory``), or 64 MiB if that is not set.
        disk_cache: "executor": below the executor's local folder; "host": in ``disk_cache_folder``, which all executors
            of the host share; "off".
        disk_cache_folder: path of a folder on each host, for "host"; else None.
        disk_cache_bytes: maximum bytes in the disk cache's folder.
        work_folder: url of a folder that driver and executors can write, for plans that are too large to be sent with
            tasks. None: ``_asyncpq_plans`` below the lake.
        split_bytes: approximate compressed bytes of a split, which one task reads.
        most_splits: maximum number of splits of one read; splits are larger if need be.
        int96_unit: unit of INT96 timestamps: "us" as Spark reads them, or "ns" with all digits.
    """

    storage_options: str = "{}"
    credentials_provider: str | None = None
    memory_cache_bytes: int | None = None
    disk_cache: DiskTier = "executor"
    disk_cache_folder: str | None = None
    disk_cache_bytes: int = 1024 * MIB
    work_folder: str | None = None
    split_bytes: int = 64 * MIB
    most_splits: int = 100_000
    int96_unit: Literal["us", "ns"] = field(default="us", metadata=_INNER)

    def __post_init__(self) -> None:
        try:
            options = json.loads(self.storage_options)
        except (TypeError, ValueError) as error:
            raise InvalidOptionError(
                "storage_options: must be JSON text; its value cannot be parsed", option="storage_options"
            ) from error
        if not isinstance(options, dict):
            raise InvalidOptionError(
                f"storage_options: must be a mapping, not a JSON {type(options).__name__}", option="storage_options"
            )
        refuse_secrets("storage_options", options)
        if self.disk_cache not in get_args(DiskTier):
            raise InvalidOptionError(
                f"disk_cache={self.disk_cache!r}: must be one of {', '.join(get_args(DiskTier))}", option="disk_cache"
            )
        if self.disk_cache == "host" and not self.disk_cache_folder:
            raise InvalidOptionError(
                "disk_cache='host' needs a folder on each host, but disk_cache_folder is not set",
                option="disk_cache",
                hint="Set spark.asyncpq.diskCacheFolder to a folder on a local disk.",
            )
        for name, least in _LEAST.items():
            if getattr(self, name) is not None or name != "memory_cache_bytes":
                require_whole(name, getattr(self, name), least)
        if self.int96_unit not in ("us", "ns"):
            raise InvalidOptionError(f"int96_unit={self.int96_unit!r}: must be 'us' or 'ns'")
        provider = self.credentials_provider
        if provider is not None and not re.fullmatch(r"[\w.]+:[\w.]+", provider):
            raise InvalidOptionError(
                "credentials_provider: must be 'module:function', such as 'my_package.keys:fetch'",
                option="credentials_provider",
            )
        if self.work_folder is not None and safe_url(self.work_folder) != self.work_folder:
            raise InvalidOptionError(
                "work_folder: must be a url without user, password and query, but has one of them", option="work_folder"
            )

    @classmethod
    def of(cls, spark: SparkSession, given: Mapping[str, Any] | None = None) -> Self:
        """Return the settings from the session's configuration ``spark.asyncpq.*``; values in ``given``, by attribute
        name, take precedence. None: there are no others.

        ``given["storage_options"]`` is a mapping that is merged into the configured one, protocol by protocol.

        Raises:
            InvalidOptionError: a setting is invalid or unknown, or looks like a credential.
        """
        found: dict[str, str] = {}
        for name in SETTING_NAMES:
            value = spark.conf.get(PREFIX + camel_case(name), None)
            if value is not None:
                found[name] = value
        _check_settings(spark)
        return cls._made(found, given or {})

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Return the settings among the options of a Spark data source, in any case of letters; skip other options.

        Raises InvalidOptionError for an invalid setting, or an option that looks like a credential.
        """
        names = {camel_case(name).lower(): name for name in SETTING_NAMES}
        for name, value in options.items():
            if looks_secret(name) and name.lower() not in names:
                raise secret_refused(f"the option {name!r}")
            refuse_secrets(f"the option {name!r}", listed_in(value))
        lowered = {name.lower(): value for name, value in options.items()}
        return cls._made({names[name]: value for name, value in lowered.items() if name in names}, {})

    @classmethod
    def _made(cls, found: Mapping[str, str], given: Mapping[str, Any]) -> Self:
        types = {item.name: str(item.type) for item in fields(cls)}
        values = {name: _typed(name, text, types[name]) for name, text in found.items()}
        check_arguments(given, SETTING_NAMES)
        for name, value in given.items():
            if value is not None:
                values[name] = _merged(values.get(name, "{}"), value) if name == "storage_options" else value
        with option_spelling(found.keys() - given.keys()):
            return cls(**values)

    def of_table(self, storage: Mapping[str, Any] | None) -> Self:
        """Return the settings with which tasks read a loaded table that has storage options of its own, ``storage``:
        they get the table's endpoint, unless these settings name one."""
        return self if storage is None else replace(self, storage_options=json.dumps(_united(storage, self.storage)))

    @property
    def storage(self) -> dict[str, Any]:
        """The storage options as a dict, without credentials."""
        options: dict[str, Any] = json.loads(self.storage_options)
        return options

    def resolved_storage(self) -> dict[str, Any]:
        """Return the storage options merged with those that the credentials provider returns. Call it in the process
        that reads or writes the files.

        Raises InvalidOptionError if the provider cannot be imported or does not return a mapping, and CredentialsError
        if the provider raised an error.
        """
        if self.credentials_provider is None:
            return self.storage
        provider = _provider(self.credentials_provider)
        try:
            given = provider()
        except AsyncpqError:
            raise
        except Exception as error:
            raise CredentialsError(
                f"the credentials provider {self.credentials_provider!r} failed: {type(error).__name__}",
                hint="Call it yourself to see its message, which is not shown, since it may hold secrets.",
            ) from error
        if not isinstance(given, Mapping):
            raise InvalidOptionError(
                f"the credentials provider {self.credentials_provider!r} must return a mapping, but returned a value of"
                f" type {type(given).__name__}"
            )
        return _united(self.storage, given)

    @property
    def identity(self) -> Hashable:
        """Key of the session: the settings that affect it. Calls with equal keys share a session and its caches."""
        cache = (self.memory_cache_bytes, self.disk_cache, self.disk_cache_folder, self.disk_cache_bytes)
        return json.dumps(self.storage, sort_keys=True), self.credentials_provider, *cache, self.int96_unit

    def session(self, storage: Mapping[str, Any]) -> Session:
        """Return a new session for a driver or worker, not entered, with the storage options ``storage``, a result of
        :meth:`resolved_storage`."""
        return Session(
            storage,
            memory_cache_bytes=self._memory_bytes(),
            cache_policy=etag(0),  # a query fails if a file was replaced, so each read asks
            disk_cache=self._disk_cache(),
            limits=LimitOptions(inline_decode_bytes=_INLINE_BYTES),
            # values are rebased when they are converted to Spark's types, as Spark's settings say
            read=ReadOptions(int96_unit=self.int96_unit, legacy_calendar="ignore"),
        )

    def local_folder(self) -> str | None:
        """Return Spark's local folder for temporary files on executors; None elsewhere."""
        local = os.environ.get("SPARK_LOCAL_DIRS")
        return local.split(",")[0] if local else None

    def refusal_hint(self) -> str:
        """Return the sentence that asyncpq sets as ``hint`` of a task's CredentialsError, if the store refused the
        credentials: where to put them, or which ``credentials_provider`` returned them."""
        provider = self.credentials_provider
        return _NO_PROVIDER if provider is None else f"The provider {provider!r} gave these credentials."

    def task_ended(self) -> None:
        """Exempt the objects that exist now, such as imported modules and caches, from garbage collection.

        PySpark's workers collect garbage after every task, tenths of a second with asyncpq's imports.
        """
        global _frozen
        if not _frozen and _on_executor():
            _frozen = True
            gc.freeze()

    def _memory_bytes(self) -> int:
        if self.memory_cache_bytes is not None:
            return self.memory_cache_bytes
        share = os.environ.get("PYSPARK_EXECUTOR_MEMORY_MB")  # of one worker: the executor's memory by its cores
        return DEFAULT_MEMORY_BYTES if share is None else max(_LEAST_MEMORY, int(share) * MIB // 4)

    def _disk_cache(self) -> DiskCacheOptions | None:
        if self.disk_cache == "host" and self.disk_cache_folder is not None:
            return DiskCacheOptions(path=self.disk_cache_folder, max_bytes=self.disk_cache_bytes)
        if self.disk_cache == "off" or not _on_executor():
            return None
        local = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
        return DiskCacheOptions(path=str(Path(local) / _CACHE_FOLDER), max_bytes=self.disk_cache_bytes)


def _on_executor() -> bool:
    return "SPARK_LOCAL_DIRS" in os.environ and "SPARK_BUFFER_SIZE" in os.environ


#: Names of the settings that users set.
SETTING_NAMES: Final = tuple([item.name for item in fields(SparkSettings) if not item.metadata])


def flag_option(given: Mapping[str, str], name: str) -> bool:
    """Return the value of a boolean option; False if ``given``, whose names are in lower case, lacks the option."""
    value = given.get(name.lower(), "false")
    if value.lower() not in ("true", "false"):
        raise InvalidOptionError(f"{name}={value!r}: must be true or false", option=name)
    return value.lower() == "true"


def _provider(name: str) -> Callable[[], object]:
    module, _, function = name.partition(":")
    try:
        provider = reduce(getattr, function.split("."), cast(Any, import_module(module)))
    except (ImportError, AttributeError) as error:
        raise InvalidOptionError(
            f"the credentials provider {name!r} cannot be imported here: {error}",
            hint="Its module must be importable on the driver and on executors; spark.addArtifacts ships a module.",
        ) from error
    if not callable(provider):
        raise InvalidOptionError(f"the credentials provider {name!r} is not a function but a {type(provider).__name__}")
    return provider  # type: ignore[no-any-return]  # its result is checked after the call


def _merged(base: str, more: object) -> str:
    if not isinstance(more, Mapping):
        raise InvalidOptionError(
            f"storage_options: must be a mapping, not {type(more).__name__}", option="storage_options"
        )
    refuse_secrets("storage_options", more)
    try:
        return json.dumps(_united(json.loads(base), more), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidOptionError(
            f"storage_options: a value cannot be converted to JSON: {error}", option="storage_options"
        ) from error


def _united(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings, also inside nested mappings; values of ``more`` replace those of ``base``."""
    united = dict(base)
    for name, value in more.items():
        known = united.get(name)
        united[name] = _united(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return united


def camel_case(name: str) -> str:
    """Return an attribute's name in camel case, the spelling of options and settings in Spark."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


@contextmanager
def option_spelling(names: Collection[str]) -> Iterator[None]:
    """In the ``with`` block, spell the attributes ``names`` in InvalidOptionErrors in camel case, as users write
    options."""
    try:
        yield
    except InvalidOptionError as error:

        def spelled(text: str) -> str:
            return re.sub(r"\w+", lambda word: camel_case(word[0]) if word[0] in names else word[0], text)

        error.message, error.hint = spelled(error.message), error.hint and spelled(error.hint)
        error.option = error.option and spelled(error.option)
        raise


def _typed(name: str, value: str, type_: str) -> Any:
    if not type_.startswith("int"):
        return value
    try:
        return int(value)
    except ValueError:
        raise InvalidOptionError(f"{camel_case(name)}={value!r}: must be a whole number") from None


def _check_settings(spark: SparkSession) -> None:
    """Raise InvalidOptionError if a setting of the session has an unknown name or looks like a credential.

    Checks at most once a minute, since PySpark fetches the settings one by one.
    """
    now = time.monotonic()
    if now - _checked.get(spark, -math.inf) < _CHECK_AGE_S:
        return
    known = [camel_case(name) for name in SETTING_NAMES]
    for setting, value in spark.conf.getAll.items():
        name = setting.removeprefix(PREFIX)
        if not setting.startswith(PREFIX):
            continue
        if name in known:
            refuse_secrets(f"the setting {setting}", value)
        elif looks_secret(name):
            raise secret_refused(f"the setting {setting}")
        else:
            hint = nearest(name, known, f"asyncpq's settings are {', '.join(known)}.")
            raise InvalidOptionError(f"asyncpq has no setting {setting}", hint=hint)
    _checked[spark] = now


class TableKeywords(SettingKeywords, total=False):
    """The settings, and the format and version of a table, as in :meth:`asyncpq.Session.open_dataset`."""

    format: Literal["parquet", "delta", "iceberg"] | None
    version: int | str | datetime | None


class FilesKeywords(TableKeywords, total=False):
    """The settings, and how a dataset's paths and types are read, as in :meth:`asyncpq.Session.open_dataset`."""

    schema_policy: Literal["strict", "permissive"]
    partitioning: Literal["hive"] | Sequence[str] | None
    partition_types: pa.Schema | Mapping[str, pa.DataType] | None


class LakeBuildKeywords(FilesKeywords, total=False):
    """The keyword arguments of :class:`FilesKeywords`, and the schema of an index build."""

    schema: pa.Schema | None


class ScanKeywords(FilesKeywords, total=False):
    """The keyword arguments of :class:`FilesKeywords`, and those of a scan."""

    schema: StructType | str | None
    on_bad_file: Literal["raise", "skip"]


def split_settings(options: Mapping[str, Any], known: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into those of the dataset and the settings. ``known``: the TypedDict of all of them.
    Raises InvalidOptionError, with the nearest name, for others."""
    check_arguments(options, known.__annotations__)
    settings = {name: value for name, value in options.items() if name in SETTING_NAMES}
    return {name: value for name, value in options.items() if name not in settings}, settings

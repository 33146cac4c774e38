"""The configuration of the service. A TOML file is checked as a whole and converted to frozen dataclasses."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from asyncpq import Session
from asyncpq.engine.foreign_predicates import parse_condition
from asyncpq.errors import AsyncpqError, InvalidOptionError, nearest
from asyncpq.options import LimitOptions, ReadOptions, RequestOptions, RetryOptions, etag
from asyncpq.serve.access import ANY_DATASET, VERBS, Grant, Limits, Token, token_digest

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_TABLES: Final = ("server", "limits", "session", "storage", "datasets", "tokens", "anonymous")
_SHORTEST_TOKEN: Final = 16  # characters
_LAST_PORT: Final = 65_535
#: What messages call the types of TOML.
_KINDS: Final[Mapping[type[Any], str]] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
_SESSION_GROUPS: Final = {
    "requests": RequestOptions,
    "retry": RetryOptions,
    "limits": LimitOptions,
    "read": ReadOptions,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetConfiguration:
    """One dataset of the configuration file: ``target`` and ``options`` are those of
    :meth:`asyncpq.Session.open_dataset`."""

    name: str
    target: str | tuple[str, ...]
    description: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    reopen_s: float = 300.0  # after this time it is opened again, with the table's newest snapshot and new columns


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfiguration:
    """The settings of the HTTP server. ``concurrent``: the most requests of all tokens at the same time."""

    host: str = "127.0.0.1"
    port: int = 8080
    concurrent: int = 256
    drain_s: float = 30.0  # for requests under way when the service is told to end
    unready_s: float = 0.0  # before that, while /readyz says 503 and new requests are still answered
    docs: bool = True  # whether /docs and /openapi.json exist

    def __post_init__(self) -> None:
        """Raise InvalidOptionError if there is no such port."""
        if not 0 <= self.port <= _LAST_PORT:
            raise InvalidOptionError(f"there is no port {self.port}", hint=f"Ports are 1 to {_LAST_PORT}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The whole configuration of a service. ``session`` has the keywords of :class:`asyncpq.Session`.

    ``address`` is the host and port that the command line names; None where it leaves them to the file.
    """

    server: ServerConfiguration = field(default_factory=ServerConfiguration)
    session: Mapping[str, Any] = field(default_factory=dict, repr=False)
    datasets: Mapping[str, DatasetConfiguration] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()
    address: tuple[str | None, int | None] = (None, None)

    def at(self, host: str | None, port: int | None) -> Configuration:
        """Return the configuration with ``host`` and ``port`` replaced, unless they are None."""
        server = self.server
        server = replace(server, host=server.host if host is None else host, port=server.port if port is None else port)
        return replace(self, server=server, address=(host, port))


def load_configuration(path: str | os.PathLike[str]) -> Configuration:
    """Read a TOML file.

    Raises:
        InvalidOptionError: the file cannot be read, or a setting in it is invalid.
    """
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why: object = error.strerror if isinstance(error, OSError) else error
        hint = None
        if isinstance(error, UnicodeDecodeError):
            why, hint = "it is not text", "Name the TOML file of the service, encoded in UTF-8."
        elif isinstance(error, tomllib.TOMLDecodeError):
            hint = 'Text stands in double quotes: url = "s3://bucket/trips/".'
        raise InvalidOptionError(f"the configuration {os.fspath(path)} cannot be read: {why}", hint=hint) from error
    configuration = parse_configuration(values)
    where = f"the configuration {os.fspath(path)}"
    if not configuration.datasets:
        raise InvalidOptionError(f"{where} names no dataset", hint="Add [datasets.NAME] with its url.")
    if not configuration.tokens:
        raise InvalidOptionError(
            f"{where} lets nobody read", hint="Add [tokens.NAME] with a sha256 (--new-token prints one)."
        )
    return configuration


def parse_configuration(values: Mapping[str, Any]) -> Configuration:
    """Convert a parsed TOML document to a configuration. Raises InvalidOptionError if a setting is invalid."""
    top = _Section("", values)
    sections = {name: top.section(name) for name in _TABLES}
    top.end()  # first: a mistyped table would make the others look wrong
    server = sections["server"].record(ServerConfiguration())
    limits = sections["limits"].record(Limits())
    session = _session(sections["session"], sections["storage"])
    datasets = {name: _dataset(name, section) for name, section in sections["datasets"].sections()}
    tokens = [_token(name, section, limits, datasets) for name, section in sections["tokens"].sections()]
    if "anonymous" in values:
        tokens.append(_token("anonymous", sections["anonymous"], limits, datasets, anonymous=True))
    digests = [token.sha256 for token in tokens]
    if len(set(digests)) < len(digests):
        raise InvalidOptionError("[tokens]: two tokens are the same")
    return Configuration(server=server, session=session, datasets=datasets, tokens=tuple(tokens))


class _Section:
    """One table of the TOML file, named ``name`` in messages. The parser takes each key once; :meth:`end` reports
    keys that nothing has taken."""

    def __init__(self, name: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise InvalidOptionError(f"[{name}] must be a table, not {_KINDS.get(type(values), 'a date or time')}")
        self.name = name
        self._left = dict(values)
        self._known: list[str] = []

    def _path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def wrong(self, key: str, why: str) -> InvalidOptionError:
        """Return the error of a value; the value itself is not shown, since it may be a secret."""
        return InvalidOptionError(f"[{self.name}] {key} {why}")

    def take(self, key: str, kind: type[Any], default: Any = None) -> Any:
        self._known.append(key)
        value = self._left.pop(key, None)
        if value is None:
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.wrong(key, f"must be {_KINDS[kind]}, not {_KINDS.get(type(value), 'a date or time')}")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        values = self.take(key, list)
        if values is None:
            return None
        if not values or not all(isinstance(value, str) for value in values):
            raise self.wrong(key, "must be a list of texts, at least one")
        return tuple(values)

    def record(self, defaults: Any) -> Any:
        """Return a copy of ``defaults``, a frozen dataclass, with the values of this table, all of which must be
        positive numbers, texts or flags."""
        given = {}
        for one in fields(defaults):
            default = getattr(defaults, one.name)
            given[one.name] = value = self.take(one.name, type(default), default)
            if type(value) in (int, float) and not value > 0 and value != default:  # a default of 0 is a value, too
                raise self.wrong(one.name, "must be more than 0" if default else "must be 0 or more")
        self.end()
        return replace(defaults, **given)

    def section(self, key: str) -> _Section:
        return _Section(self._path(key), self.take(key, dict, {}))

    def sections(self) -> Iterator[tuple[str, _Section]]:
        for key in list(self._left):
            yield key, self.section(key)

    def arguments(self, kind: Any) -> dict[str, Any]:
        """Return the values of this table, each of which must be named as a field of the dataclass ``kind``."""
        names = [one.name for one in fields(kind)]
        self._known += names
        given = {name: self._left.pop(name) for name in names if name in self._left}
        self.end()
        return given

    def rest(self) -> dict[str, Any]:
        values, self._left = self._left, {}
        return values

    def end(self) -> None:
        """Raise InvalidOptionError if the table has a key that was not taken, and so is unknown."""
        for key in self._left:
            where = f"[{self.name}] has no setting" if self.name else "the configuration has no table"
            settings = f"Its {'settings' if self.name else 'tables'} are {', '.join(self._known)}."
            raise InvalidOptionError(f"{where} {key!r}", hint=nearest(key, self._known, settings))


def _session(session: _Section, storage: _Section) -> Mapping[str, Any]:
    keywords: dict[str, Any] = {"storage_options": storage.rest()}
    for name, kind in (
        ("memory_cache_bytes", int),
        ("disk_cache", str),
        ("shared_cache", str),
        ("negative_ttl_s", float),
    ):
        if (value := session.take(name, kind)) is not None:
            keywords[name] = value
    age = session.take("max_age_s", float)
    for name, make in _SESSION_GROUPS.items():
        group = session.section(name)
        given = group.arguments(make)
        try:
            keywords[name] = make(**given)
        except TypeError as error:
            raise session.wrong(name, f"is wrong: {error}") from error
        except InvalidOptionError as error:
            raise InvalidOptionError(f"[{group.name}] {error.message}", hint=error.hint) from error
    session.end()
    try:
        if age is not None:
            keywords["cache_policy"] = etag(age)
        Session(**keywords)  # for its errors: it begins nothing before it is entered
    except InvalidOptionError as error:
        raise InvalidOptionError(f"[session] {error.message}", hint=error.hint) from error
    return keywords


def _dataset(name: str, section: _Section) -> DatasetConfiguration:
    if not _NAME.fullmatch(name):
        raise InvalidOptionError(
            f"[datasets] the name {name!r} cannot stand in a url", hint="Use letters, digits, '_', '.' and '-'."
        )
    url, urls = section.take("url", str), section.texts("urls")
    options: dict[str, Any] = {}
    for key in ("format", "view", "partitioning", "schema_policy", "on_bad_file"):
        if (text := section.take(key, str)) is not None:
            options[key] = None if text == "none" else text
    if (age := section.take("listing_max_age_s", float)) is not None:
        options["listing_max_age_s"] = age
    if (index := section.take("index", str)) is not None:
        options["index"] = False if index == "none" else index
    described = section.take("description", str, "")
    reopen_s = section.take("reopen_s", float, 300.0)
    if not reopen_s >= 0:
        raise section.wrong("reopen_s", "must be 0 or more")
    section.end()
    if (url is None) == (urls is None):
        raise InvalidOptionError(f"[{section.name}] needs either url or urls, and not both")
    return DatasetConfiguration(
        name=name, target=url if urls is None else urls, description=described, options=options, reopen_s=reopen_s
    )


def _token(
    name: str,
    section: _Section,
    limits: Limits,
    datasets: Mapping[str, DatasetConfiguration],
    *,
    anonymous: bool = False,
) -> Token:
    ways = {key: section.take(key, str) for key in (() if anonymous else ("sha256", "file", "env"))}
    own_limits = section.section("limits").record(limits)
    metrics = section.take("metrics", bool, False)
    grants = {key: _grant(one) for key, one in section.section("datasets").sections()}
    for key in grants:
        if key != ANY_DATASET and key not in datasets:
            raise InvalidOptionError(
                f"[{section.name}.datasets] there is no dataset {key!r}", hint=nearest(key, datasets)
            )
    section.end()
    sha256 = None if anonymous else _digest(section, ways)
    return Token(name=name, sha256=sha256, grants=grants, limits=own_limits, metrics=metrics)


def _digest(section: _Section, ways: Mapping[str, str | None]) -> bytes:
    """Return the SHA-256 of a token: that of ``ways["sha256"]``, or of the token that the file or the environment
    variable of ``ways`` has."""
    given = {way: value for way, value in ways.items() if value is not None}
    if len(given) != 1:
        raise InvalidOptionError(f"[{section.name}] needs one of sha256, file and env")
    ((way, value),) = given.items()
    if way == "sha256":
        if not re.fullmatch("[0-9a-fA-F]{64}", value):
            raise section.wrong("sha256", "must be 64 hexadecimal digits")
        return bytes.fromhex(value)
    if way == "env":
        if value not in os.environ:
            raise section.wrong("env", f"names the variable {value}, which is not set")
        token = os.environ[value]
    else:
        try:
            with open(value, encoding="utf-8") as file:
                token = file.read()
        except OSError as error:
            raise section.wrong("file", f"cannot be read: {error.strerror}") from error
    token = token.strip()
    if len(token) < _SHORTEST_TOKEN:
        raise section.wrong(way, f"names a token of fewer than {_SHORTEST_TOKEN} characters")
    if len(token.splitlines()) > 1:  # no request could send it
        raise section.wrong(way, "names a token of several lines: `--new-token` prints its sha256, too")
    return token_digest(token)


def _grant(section: _Section) -> Grant:
    verbs = section.texts("verbs") or VERBS
    for verb in verbs:
        if verb not in VERBS:
            raise section.wrong("verbs", f"has {verb!r}, which is none of {', '.join(VERBS)}")
    text = section.take("rows", str)
    try:
        rows = None if text is None else parse_condition(text).predicate
    except AsyncpqError as error:
        raise section.wrong("rows", f"is no condition: {error}") from error
    columns = section.texts("columns")
    costs = section.take("costs", bool, rows is None)
    plans = section.take("plans", bool, False)
    section.end()
    return Grant(verbs=frozenset(verbs), columns=columns, rows=rows, rows_text=text, costs=costs, plans=plans)

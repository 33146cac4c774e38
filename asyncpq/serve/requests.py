"""Parsing of a request: its query string or JSON body, and the format of the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final
from urllib.parse import parse_qsl

import pyarrow as pa

from asyncpq.engine.foreign_predicates import key_value
from asyncpq.engine.work import checkpoint
from asyncpq.errors import InvalidOptionError, QueryError, nearest
from asyncpq.serve.access import Limits
from asyncpq.serve.problems import Problem

MAX_BODY: Final = 4 << 20  # bytes of a request's body
MAX_WHERE: Final = 16 << 10  # characters of a condition
MAX_COMPARISONS: Final = 200  # of a condition: each file of a dataset is compared with each of them
MAX_TUPLES: Final = 256  # keys of several columns
MAX_TUPLE_VALUES: Final = 1024  # of all keys of several columns: each file of a dataset is compared with each of them
MAX_KEY_COLUMNS: Final = 32
MAX_VALUES: Final = 1 << 14  # lists, objects, members and escaped characters of a JSON body, beside the keys
_MOST_DIGITS: Final = 20  # of whole numbers that are written anew, without a point, an exponent or a minus of zero
_COUNTED_BYTES: Final = 64 << 10  # of a body at once, since Python's lock is held while they are counted
MAX_PARAMETERS: Final = 64  # of a query string, beside the keys
_ACCEPT_RANGES: Final = 64  # media ranges of a header Accept that count
SMALL: Final = 1024  # characters of a request that is parsed on the event loop

FORMATS: Final = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
}
_PARAMETERS: Final[Mapping[str, frozenset[str]]] = {
    "lookup": frozenset({"keys", "columns", "limit"}),
    "scan": frozenset({"where", "columns", "limit"}),
    "count": frozenset({"where"}),
    "explain": frozenset({"keys", "where", "columns", "limit"}),
    "schema": frozenset[str](),
}


#: What others call the parameters.
_MEANT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("filter", "filters", "condition", "query", "q", "sql", "predicate"), "where"),
    **dict.fromkeys(("column", "cols", "col", "field", "fields", "select", "projection"), "columns"),
    **dict.fromkeys(("n", "top", "head", "max", "rows", "count", "size", "page_size", "max_rows"), "limit"),
    **dict.fromkeys(("key", "ids"), "keys"),
    **dict.fromkeys(("output", "type", "accept"), "format"),
}
_ROWS: Final = ("lookup", "scan")  # verbs whose answers are rows, in any format


def parameter_hint(verb: str, name: str) -> str | None:
    """Return the hint for a parameter that ``verb`` does not have; None for a lookup's column of an unlikely name."""
    allowed = _PARAMETERS[verb] | ({"format"} if verb in _ROWS else frozenset())
    meant = _MEANT.get(name.lower(), name)
    if meant in allowed:
        return f"Write {meant} instead of {name}."
    if verb == "lookup":
        return "A lookup has keys alone: send where to scan." if meant == "where" else None
    names = ", ".join(sorted(allowed)) or "none"
    return nearest(name, allowed, f"Its parameters: {names}. Rows by their keys are those of lookup.")


class _Number(str):
    """A number in a JSON body, kept as the text in which it was written, so that no digit is lost."""

    __slots__ = ()


def _number(text: str) -> _Number:
    """Return a number; a whole one as its digits: 1.0 and -0 are integers in JSON Schema, also of unsigned columns."""
    if text.isdigit():  # as most keys are; with Decimal a body of them takes four times as long
        return _Number(text)
    try:
        value = Decimal(text)
    except ArithmeticError:  # an exponent of 19 digits
        return _Number(text)
    is_whole = not value or (value.adjusted() < _MOST_DIGITS and value == value.to_integral_value())
    return _Number(f"{value or 0:.0f}" if is_whole else text)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsRequest:
    """The arguments of a request to a dataset, from its query string or JSON body. Values of ``keys`` are texts;
    None is null."""

    verb: str
    keys: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    where: str | None = None
    limit: int | None = None

    @property
    def is_small(self) -> bool:
        """Whether keys and condition are converted faster on the event loop than in a thread."""
        num_values = len(self.columns or ()) + sum(map(len, self.keys.values()))
        return len(self.where or "") <= SMALL and num_values <= SMALL >> 5

    def canonical(self) -> str:
        """Return the arguments as a text that is the same for all equivalent requests."""
        keys = {
            name: [None if value is None else [type(value) is _Number, value] for value in values]
            for name, values in self.keys.items()
        }
        return json.dumps([self.verb, list(keys.items()), self.columns, self.where, self.limit])

    def typed_keys(self, schema: pa.Schema, limits: Limits) -> dict[str, Any]:
        """Return ``keys`` with the values converted to the types of their columns.

        Raises:
            QueryError: there are no keys, or too many.
            InvalidOptionError: a value does not fit its column's type.
        """
        count = max(map(len, self.keys.values()), default=0)
        num_columns = len(self.keys)
        most = limits.keys if num_columns < 2 else min(MAX_TUPLES, MAX_TUPLE_VALUES // num_columns, limits.keys)
        if count > most:
            raise QueryError(
                f"the lookup has {count} keys, but at most {most} are allowed",
                hint="Send the keys in several requests.",
            )
        return {name: [_typed(name, value, schema) for value in values] for name, values in self.keys.items()}


def _typed(name: str, value: str | None, schema: pa.Schema) -> Any:
    if value is None:
        return None
    typed = key_value(name, str(value), schema)
    if type(value) is _Number and isinstance(typed, (str, bytes)):
        raise InvalidOptionError(
            f"the key {value} is a number, but the column has text or bytes",
            column=name,
            hint="Write the key in quotes.",
        )
    return typed


def query_parameters(query: bytes, limits: Limits) -> list[tuple[str, str]]:
    """Return the names and values of a query string. Raises Problem 400 if it has too many."""
    most = MAX_PARAMETERS + limits.keys
    if query.count(b"&") >= most:
        raise _wrong(f"the request has more than {most} parameters", hint="Send many keys in the body of a POST.")
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def from_query(verb: str, parameters: Sequence[tuple[str, str]]) -> RowsRequest:
    """Parse the query string of a request for ``verb``. In a lookup, parameters with unknown names are key columns.

    Raises Problem 400 if a parameter is unknown, repeated or malformed.
    """
    allowed = _PARAMETERS[verb] - {"keys"}
    given: dict[str, Any] = {}
    keys: dict[str, list[str | None]] = {}
    for name, value in parameters:
        if name == "format":
            _check_format(verb, value)
            continue
        if name in allowed:
            if name in given:
                raise _wrong(f"the parameter {name} is given twice")
            given[name] = value
        elif verb == "lookup":
            keys.setdefault(name, []).append(value)
        else:
            raise _wrong(f"{verb} has no parameter {name!r}", hint=parameter_hint(verb, name))
    if "columns" in given:
        given["columns"] = [part for name in given["columns"].split(",") if (part := name.strip())]
    if "limit" in given:
        given["limit"] = _limit(given["limit"])
    return _rows_request(verb, {**given, **({"keys": keys} if keys else {})})


def check_posted(verb: str, parameters: Sequence[tuple[str, str]]) -> None:
    """Raise Problem 400 if the url of a POST has parameters that belong into its body."""
    for name, value in parameters:
        if name != "format":
            raise _wrong(f"the url of a POST has no parameter {name!r}", hint="Write it into the JSON body.")
        _check_format(verb, value)


def _check_format(verb: str, value: str) -> None:
    if verb not in _ROWS and value != "json":
        raise _wrong(f"{verb} answers in JSON alone", hint="Leave out format, or ask scan for rows.")


def from_body(verb: str, body: bytes, limits: Limits) -> RowsRequest:
    """Parse the JSON body of a request for ``verb``. Raises Problem 400 if it is malformed, or has too many values."""
    # Parsing holds Python's lock, whichever thread it runs in: so what takes long is counted before.
    if _has_more_values(body, MAX_VALUES + 4 * limits.keys):
        raise _wrong("the body has too many values", hint=f"Send at most {limits.keys} keys in one request.")
    try:
        document = json.loads(body, parse_int=_number, parse_float=_number, parse_constant=_Number)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _wrong(
            "the body must be a JSON object", hint='Send for example {"keys": {"id": [1, 2]}, "columns": ["price"]}.'
        )
    try:
        if b"\\u" in body:
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _wrong("a text in the body has half of a surrogate pair", hint="Send texts in UTF-8.") from error
    allowed = _PARAMETERS[verb]
    for name in document:
        if name not in allowed:
            raise _wrong(f"{verb} has no member {name!r}", hint=parameter_hint(verb, name))
    given = {name: value for name, value in document.items() if value is not None}
    if "limit" in given:
        given["limit"] = _limit(given["limit"] if type(given["limit"]) is _Number else "")
    if isinstance(given.get("keys"), dict):
        _check_key_columns(given["keys"])
        given["keys"] = {name: _key_list(name, values) for name, values in given["keys"].items()}
    return _rows_request(verb, given)


def _has_more_values(body: bytes, most: int) -> bool:
    """Return whether a JSON text has more than ``most`` characters that each may begin a value or escape a letter."""
    count = 0
    for start in range(0, len(body), _COUNTED_BYTES):
        checkpoint()
        count += sum(map(body[start : start + _COUNTED_BYTES].count, (b",", b"[", b"{", b"\\")))
        if count > most:
            return True
    return False


def _rows_request(verb: str, given: Mapping[str, Any]) -> RowsRequest:
    keys, columns, where = given.get("keys", {}), given.get("columns"), given.get("where")
    if not isinstance(keys, dict):
        raise _wrong("keys must be an object of columns and their values")
    _check_key_columns(keys)
    if columns is not None:
        if not isinstance(columns, list) or not all(type(name) is str for name in columns):
            raise _wrong("columns must be a list of names")
        if len(set(columns)) < len(columns):
            raise _wrong("columns names a column twice", hint="Name each column once.")
        columns = tuple(columns)
    if where is not None and type(where) is not str:
        raise _wrong("where must be a text: a condition as after WHERE in SQL")
    if where is not None and len(where) > MAX_WHERE:
        raise _wrong(f"where has {len(where)} characters, but at most {MAX_WHERE} are allowed")
    if verb == "lookup" and not keys:
        raise _wrong("a lookup needs a key", hint="Add one with the name of a column, such as ?id=42.")
    if keys and where is not None:
        raise _wrong("keys and where cannot be given together")
    return RowsRequest(verb=verb, keys=keys, columns=columns, where=where, limit=given.get("limit"))


def _check_key_columns(keys: Mapping[str, object]) -> None:
    if len(keys) > MAX_KEY_COLUMNS:
        raise _wrong(f"the lookup has {len(keys)} key columns, but at most {MAX_KEY_COLUMNS} are allowed")


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise _wrong("limit must be a whole number of at least 0")
    return int(text)


def _key_list(name: str, values: object) -> list[str | None]:
    some = values if isinstance(values, list) else [values]
    texts: list[str | None] = []
    for value in some:
        if isinstance(value, bool):
            texts.append(str(value).lower())
        elif value is None or isinstance(value, str):
            texts.append(value)
        else:
            raise _wrong(f"the keys of {name!r} must be texts, numbers, true, false or null")
    return texts


def _wrong(detail: str, *, hint: str | None = None) -> Problem:
    return Problem(400, detail, hint=hint)


def chosen_format(parameters: Sequence[tuple[str, str]], accept: str | None) -> str:
    """Return the format of the answer, a key of :data:`FORMATS`: from ``?format=``, else the one that the header
    ``Accept`` prefers, else ``json``. Raises Problem 400 or 406 for unknown formats."""
    named = [value for name, value in parameters if name == "format"]
    if named:
        if len(named) > 1 or named[0] not in FORMATS:
            raise _wrong(f"format must be one of {', '.join(FORMATS)}")
        return named[0]
    if accept is None or not accept.strip():
        return "json"
    scores = {name: _score(media_type, accept) for name, media_type in FORMATS.items()}
    best = max(scores, key=lambda name: scores[name])  # the first of the best
    if scores[best] <= 0:
        raise Problem(
            406,
            "the service writes none of the formats that Accept names",
            hint=f"Accept one of {', '.join(FORMATS.values())}.",
        )
    return best


def _score(media_type: str, accept: str) -> float:
    """Return the weight (``q``, 0 to 1) that the header ``accept`` gives a media type, by its most specific range."""
    ranges = {"*/*": 0, f"{media_type.partition('/')[0]}/*": 1, media_type: 2}
    best, weight = -1, 0.0
    for part in accept.split(",", _ACCEPT_RANGES)[:_ACCEPT_RANGES]:
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name not in ranges or ranges[name] < best:
            continue
        quality = next((value[2:] for value in parameters if value.startswith("q=")), "1")
        try:
            weight, best = float(quality), ranges[name]
        except ValueError:
            continue
    return weight

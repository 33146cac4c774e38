"""Who may read what: tokens, their rights to datasets, columns and rows, and the limits on their requests.

Tokens are compared in constant time. Column names are checked before any data is read, and the condition of the rows
that a token may see is added to that of each request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import pyarrow as pa

from asyncpq import Expression
from asyncpq.engine.foreign_predicates import check_names
from asyncpq.errors import ColumnNotFoundError, nearest_column
from asyncpq.serve.problems import Problem, no_dataset

VERBS: Final = ("lookup", "scan", "count", "explain", "schema")
ANY_DATASET: Final = "*"
_RETRY_AFTER_S: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on one request, and on the concurrent requests of one token.

    Attributes:
        rows: the most rows of one response.
        bytes: the most bytes of the body of one response.
        seconds: the longest time of one response, with the time that the client takes to receive it.
        keys: the most keys of one lookup; a lookup by several columns may have at most 256.
        concurrent: the most requests of one token at the same time.
    """

    rows: int = 1_000_000
    bytes: int = 1 << 30
    seconds: float = 60.0
    keys: int = 1000
    concurrent: int = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The rights of a token on a dataset.

    Attributes:
        verbs: what the token may do, of :data:`VERBS`.
        columns: top-level columns that the token may see; None for all.
        rows: condition of the rows that the token may see; None for all.
        rows_text: the condition as it was written.
        costs: whether responses have the cost of the read. Costs also depend on rows that ``rows`` hides.
        plans: whether ``explain`` returns whole plans, with urls and hidden columns.
    """

    verbs: frozenset[str] = frozenset(VERBS)
    columns: tuple[str, ...] | None = None
    rows: Expression | None = None
    rows_text: str | None = None
    costs: bool = True
    plans: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A token, known by its SHA-256, with its rights and limits. A digest of None stands for requests without a
    token."""

    name: str
    sha256: bytes | None = field(repr=False)
    grants: Mapping[str, Grant] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    metrics: bool = False  # whether it may read /metrics

    def grant(self, dataset: str) -> Grant | None:
        """Return the token's rights on a dataset; None if it has none."""
        return self.grants.get(dataset) or self.grants.get(ANY_DATASET)


def token_digest(token: str) -> bytes:
    """Return the SHA-256 of a token. A plain hash is enough: tokens are long and random, so they cannot be guessed."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def authenticate(tokens: Iterable[Token], authorization: str | None) -> Token:
    """Return the token that the header ``Authorization`` of a request names. Raises Problem 401 if there is no such
    token."""
    if authorization is None:
        found = next((token for token in tokens if token.sha256 is None), None)
    else:
        scheme, _, text = authorization.partition(" ")
        digest = token_digest(text.strip())
        found = None
        for token in tokens:  # all of them, so that the time tells nothing
            if token.sha256 is not None and hmac.compare_digest(token.sha256, digest):
                found = token
        if scheme.lower() != "bearer":
            found = None
    if found is None:
        raise Problem(
            401,
            "the request has no token that the service knows",
            hint="Send the header Authorization: Bearer TOKEN.",
            headers={"www-authenticate": "Bearer"},
        )
    return found


def grant_of(token: Token, dataset: str, exists: bool) -> Grant:
    """Return a token's rights on a dataset. Raises the same Problem 404 whether the dataset does not exist or the token
    has no right to it."""
    grant = token.grant(dataset)
    if grant is None or not exists:
        raise no_dataset()
    return grant


def check_verb(grant: Grant, verb: str) -> None:
    """Raise Problem 403 if the rights do not include ``verb``, such as "lookup" or "scan"."""
    if verb not in grant.verbs:
        raise Problem(
            403, f"the token does not allow {verb}", hint=f"Use what it allows: {', '.join(sorted(grant.verbs))}."
        )


def visible_schema(schema: pa.Schema, grant: Grant) -> pa.Schema:
    """Return the schema without the columns that the token may not see."""
    if grant.columns is None:
        return schema
    shown = frozenset(grant.columns)
    return pa.schema([field for field in schema if field.name in shown])


def visible_rows(where: Expression | None, grant: Grant) -> Expression | None:
    """Return the condition of the rows that match ``where`` and that the token may see; None for all rows."""
    if grant.rows is None:
        return where
    return grant.rows if where is None else where & grant.rows


def check_columns(schema: pa.Schema, grant: Grant, names: Sequence[str]) -> None:
    """Check ``names``, of columns or of leaves of structs, as if the dataset had only columns that the token may see.

    Raises:
        ColumnNotFoundError: no visible column has the name; or it names a hidden column of ``schema``.
        AmbiguousColumnError: a name occurs twice.
    """
    visible = visible_schema(schema, grant)
    check_names(visible, names)
    if grant.columns is None:
        return
    hidden = frozenset(schema.names) - frozenset(visible.names)
    for name in names:
        # "a.b" is the column of that name before it is a leaf of "a", and either may be hidden
        if not hidden.isdisjoint(accumulate(name.split("."), "{}.{}".format)):
            raise ColumnNotFoundError(f"no column {name!r}", column=name, hint=nearest_column(name, visible.names))


class Slots:
    """Counts running requests, for each token and in all. A request over the limit is refused at once: a queue would
    hide from clients that they send too many."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """The number of running requests."""
        return self._taken.total()

    def take(self, token: Token, concurrent: int) -> Callable[[], None]:
        """Count one request of ``token`` as running, until the returned function is called; again it does nothing.

        Raises Problem 429 if the token has reached its own limit, or all tokens together have ``concurrent`` running
        requests.
        """
        if self._taken[token.name] >= token.limits.concurrent:
            raise _busy(f"the token has {token.limits.concurrent} running requests, which is its limit")
        if self.taken >= concurrent:
            raise _busy("the service has reached its limit of concurrent requests")
        self._taken[token.name] += 1
        held = [token.name]

        def free() -> None:
            if held:
                self._taken[held.pop()] -= 1

        return free


def _busy(detail: str) -> Problem:
    headers = {"retry-after": str(_RETRY_AFTER_S)}
    return Problem(429, detail, hint=f"Ask again in {_RETRY_AFTER_S} s, or fewer at once.", headers=headers)

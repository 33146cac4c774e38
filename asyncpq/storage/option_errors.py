"""What may be said of options that a store refuses, and what was meant: names alone, as values may be secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from asyncpq.errors import InvalidOptionError
from asyncpq.hints import nearest

_REGION: Final = 'client_kwargs={"region_name": ...}'

#: What other libraries call s3fs's options: boto3, object_store, deltalake, Polars, DuckDB, pyarrow. In lower case.
_S3_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("aws_access_key_id", "access_key_id", "access_key", "aws_access_key", "key_id"), "key"),
    **dict.fromkeys(("aws_secret_access_key", "secret_access_key", "secret_key", "aws_secret_key"), "secret"),
    **dict.fromkeys(("aws_session_token", "session_token", "aws_token"), "token"),
    **dict.fromkeys(("aws_endpoint_url", "aws_endpoint_url_s3", "aws_endpoint", "endpoint"), "endpoint_url"),
    **dict.fromkeys(("endpoint_override", "s3_endpoint"), "endpoint_url"),
    **dict.fromkeys(
        ("aws_region", "region", "region_name", "aws_default_region", "default_region", "aws_region_name"), _REGION
    ),
    **dict.fromkeys(("aws_skip_signature", "skip_signature", "anonymous", "no_sign_request"), "anon"),
    **dict.fromkeys(("aws_profile", "profile_name", "aws_profile_name"), "profile"),
    **dict.fromkeys(("verify", "verify_ssl"), 'client_kwargs={"verify": ...}'),
    **dict.fromkeys(("allow_http", "aws_allow_http"), 'endpoint_url="http://..."'),
    **dict.fromkeys(
        ("force_path_style", "path_style_access", "s3_force_path_style"),
        'config_kwargs={"s3": {"addressing_style": "path"}}',
    ),
}
#: Names that only S3's options have, for hints of other stores.
_S3_ONLY: Final = frozenset({"key", "secret", "token", "anon", "endpoint_url", "requester_pays", *_S3_NAMES}) - {
    "verify",
    "verify_ssl",
}


def refusal(error: Exception, options: Mapping[str, Any]) -> str:
    """The class of ``error``, and the options whose name or value its text mentions."""
    text = str(error)
    mentioned = [name for name, value in _leaves("", options) if _mentions(text, name, value)]
    return f"{', '.join(mentioned)} ({type(error).__name__})" if mentioned else type(error).__name__


def _leaves(prefix: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        yield f"{prefix}{name}", None if isinstance(value, Mapping) else value
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{name}.", value)


def _mentions(text: str, name: str, value: Any) -> bool:
    quoted = name.rpartition(".")[2]
    if any(f"{mark}{quoted}{mark}" in text for mark in "'\"`") or text.endswith(f" {quoted}"):
        return True
    return isinstance(value, str) and len(value) > 3 and value in text


def check_s3_names(options: Mapping[str, Any]) -> None:
    """Refuse the names that other libraries give to s3fs's options.

    Raises:
        InvalidOptionError: such a name, and the hint has s3fs's; or an ``endpoint_url`` without a scheme.
    """
    meant = {name: _S3_NAMES[name.lower()] for name in options if name.lower() in _S3_NAMES}
    if meant:
        raise InvalidOptionError(
            f"storage_options for s3: s3fs has no option {', '.join(meant)}",
            hint=f"Write {', '.join(f'{right} for {wrong}' for wrong, right in meant.items())}.",
        )
    inner = options.get("client_kwargs")
    endpoint = options.get("endpoint_url") or (inner.get("endpoint_url") if isinstance(inner, Mapping) else None)
    if isinstance(endpoint, str) and not endpoint.lower().startswith(("http://", "https://")):
        raise InvalidOptionError(
            "storage_options for s3: endpoint_url is no url of HTTP",
            hint='Begin it with its scheme, such as "http://127.0.0.1:9000".',
        )


def unknown_option(
    protocol: str, unknown: Sequence[str], known: Iterable[str], otherwise: str | None = None
) -> InvalidOptionError:
    """The error for options that the store of a protocol other than S3 does not have; it names one.

    Args:
        otherwise: the hint where no other protocol's option and no known name was meant.
    """
    first = next((name for name in unknown if name.lower() in _S3_ONLY), unknown[0])
    if first.lower() in _S3_ONLY:
        hint: str | None = (
            "Flat storage_options are for whatever protocol a url has. Write those of S3 per protocol: "
            'storage_options={"s3": {...}}.'
        )
    else:
        hint = nearest(first, known, otherwise)
    return InvalidOptionError(f"storage_options for {protocol}: {first} is not understood", hint=hint)


def nearest_s3_option(mentioned: str, known: Mapping[str, Iterable[str]]) -> str | None:
    """The options that are like the first one that s3fs or botocore refuses.

    Args:
        known: by the option that they are in; those that are in none by "".
    """
    parent, _, name = mentioned.partition(" ")[0].rstrip(",").rpartition(".")
    names = frozenset(known.get(parent, ()))
    return None if name in names else nearest(name, names)

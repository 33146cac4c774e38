"""Urls: protocol, form without secrets, identity, and the storage options for each protocol.

Errors about refused options name options only: their values may be secrets.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from asyncpq.errors import Hint, InvalidOptionError, UnsupportedStoreError, UsageError, nearest

_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_ONE_SLASH = re.compile(r"(file|s3|s3a|s3n|https?|gs|gcs|az|abfss?|dbfs|hf|hdfs|wasbs?):/(?!/)", re.IGNORECASE)
_BUCKET = re.compile(r"(?:s3a?|gs|gcs|az|abfss?)://[^/]+", re.IGNORECASE)
_LINKS = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]+://)")
_PORT_0 = re.compile(r"https?://[^/?#]*:0+(?:[/?#]|$)", re.IGNORECASE)
_HOST = re.compile(r"arn:.*|(\[[^\]]*\]|[^:]*)(:\d*)?", re.DOTALL)
#: What Azure's urls have in place of user info: a container.
_CONTAINER = re.compile(r"[a-z0-9$][a-z0-9-]{2,62}@")
#: User info and query of a url without a protocol: ``//a:b@``, ``a:b@``, ``https:/a:b@``, ``?a=``.
_PATH_USER_INFO = re.compile(r"(^//)[^/]*@|((?:^|[A-Za-z0-9]:+)/*)[^/@]*:[^/]*@")
_PATH_QUERY = re.compile(r"\?[^/?=]+=.*", re.DOTALL)
_KEY_QUERY = re.compile(r"\?(?:versionId=|X-Amz-)", re.IGNORECASE)
_SAFE = re.compile(r"s3a?://[^/:@?]*(?:/[^:?]*)?|/[^:@?]*")  # as most are: of such urls nothing is left out


#: How the url of an Iceberg table's metadata ends. The second is an older name of gzipped ones, now
#: ``.gz.metadata.json``.
ICEBERG_METADATA: Final = (".metadata.json", ".metadata.json.gz")

#: Ends the S3 url of a key that itself has ``?versionId=`` in its name, so that no part of the key names a version.
END_OF_KEY: Final = "?versionId="


def word_set(text: str) -> frozenset[str]:
    """Return the set of the words of ``text``, which are separated by spaces."""
    return frozenset(text.split())


#: Protocols of fsspec that keep another filesystem's bytes on disk.
CACHING_PROTOCOLS: Final = word_set("blockcache cached filecache simplecache")

#: Query parameters of signatures, in lower case: Azure's shared access signature, CloudFront's, S3's version 2.
_SIGNATURE_PARAMETERS = word_set(
    "sv ss srt sp se st spr sig sr sip si sdd saoid suoid scid ses skoid sktid skt ske sks skv skdutid sduoid "
    "signature expires awsaccesskeyid googleaccessid policy key-pair-id"
)
_SIGNATURE_PREFIXES = ("x-amz-", "x-goog-")

#: Hint of the error for a folder that is read as one file.
FOLDER_HINT = Hint(
    "Session.open_dataset reads a folder of files; in a list, a folder ends in a slash.",
    "End the url of a folder with /.",
)
#: The end of the hint for urls of fsspec's caches.
KEEP_ON_DISK = Hint(
    "disk_cache= of the session to keep on disk what is read.", "--disk-cache FOLDER to keep on disk what is read."
)


def chained_url(url: str) -> UnsupportedStoreError:
    """Return the error for a url that chains filesystems, such as ``zip://a.parquet::s3://bucket/b.zip``."""
    first, _, rest = url.partition("::")
    hint = "Copy the Parquet files out, and pass their own urls."
    if first.partition("://")[0].lower() in CACHING_PROTOCOLS and "::" not in rest:
        hint = f"Pass {safe_url(rest)}, and " + KEEP_ON_DISK
    return UnsupportedStoreError("asyncpq does not support chained urls (a::b)", url=safe_url(url), hint=hint)


def names_bucket(url: str) -> bool:
    """Return whether ``url`` is that of a whole bucket or container, without a key: it names no single object."""
    return _BUCKET.fullmatch(url) is not None


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Return ``(protocol, rest)``: the protocol in lower case, the rest after ``://``; a path has protocol "file".

    Raises UnsupportedStoreError for a chained url (``a::b``).
    """
    text = os.fspath(url)
    if not isinstance(text, str):
        raise UsageError(f"a url or path must be a str or an os.PathLike of str, not {type(text).__name__}")
    match = _PROTOCOL.match(text)
    if "::" in text and (match is None or "::" in text[: match.end()]) and not os.path.exists(text):
        raise chained_url(text)
    if match is None:
        return "file", text
    protocol = match[1].lower()
    return ("file" if protocol == "local" else protocol), text[match.end() :]


def refuse_one_slash(url: str) -> None:
    """Raise InvalidOptionError for a url with one slash after its protocol: it would be a path in the working folder.

    Java writes local paths with one slash, and ``pathlib.Path`` drops a slash of a url.
    """
    match = _ONE_SLASH.match(url)
    if match is None:
        return
    if match[1].lower() == "file":
        raise InvalidOptionError(
            f"the url has only one slash after {match[1]}:, two are needed", url=url, hint=f"Write file://{url[5:]}."
        )
    if match[1].lower() == "dbfs":
        raise InvalidOptionError(
            "the url has only one slash after dbfs:, as Databricks writes it",
            url=safe_url(url),
            hint=f"On a cluster of Databricks, pass the local path /dbfs{safe_url(url[5:])}. Elsewhere, pass "
            f"dbfs://{safe_url(url[5:])}"
            + Hint(" with instance and token in storage_options.", " in Python, with its instance and token."),
        )
    raise InvalidOptionError(
        f"the url has only one slash after {match[1]}:, two are needed",
        url=safe_url(url),
        hint=f'Write "{match[1]}://..." as text: pathlib.Path drops a slash.',
    )


def absolute(named: Any) -> Any:
    """Make a path, or each path of a list, absolute. Urls and other values are returned unchanged."""
    if isinstance(named, (list, tuple)):
        return [absolute(item) for item in named]
    if isinstance(named, os.PathLike):
        named = os.fspath(named)
    if not isinstance(named, str) or not named or "://" in named:
        return named
    refuse_one_slash(named)
    path = local_path(named)
    return os.path.join(path, "") if named.endswith(("/", os.sep)) else path


def safe_url(url: str) -> str:
    """Return ``url`` without user info, query and fragment, fit for messages. Each part of a chained url is cleaned."""
    if _SAFE.fullmatch(url) is not None:
        return url
    return "::".join(map(_safe_link, _LINKS.split(url)))


def safe_target(location: str) -> str:
    """Return the url of a Location header, which may be relative, without user info, query and fragment."""
    return safe_url(re.split(r"[?#]", location, maxsplit=1)[0])


def _safe_link(url: str) -> str:
    match = _PROTOCOL.match(url)
    protocol = match[1].lower() if match is not None else "file"
    if match is None or protocol in ("file", "local", "memory"):  # `?` and `@` may be part of a name
        begin = 0 if match is None else match.end()
        return url[:begin] + _PATH_QUERY.sub("", _PATH_USER_INFO.sub(r"\1\2", url[begin:]))
    rest = url[match.end() :]
    if protocol in ("s3", "s3a"):  # `?`, `#` and `@` may be part of a key
        rest = _KEY_QUERY.split(rest, maxsplit=1)[0]
        authority = rest.partition("/")[0]
    else:
        rest, authority = (re.split(ends, rest, maxsplit=1)[0] for ends in ("[?#]", "[/?#]"))
    host = authority.rpartition("@")[2]
    if protocol in ("s3", "s3a") and is_tenant_bucket(authority) and "@" not in rest:
        return f"{match[0]}{rest}"
    if protocol in ("abfs", "abfss", "az") and _CONTAINER.fullmatch(authority.removesuffix(host)):
        host = authority
    elif _HOST.fullmatch(host) is None:  # a password with `/`, `?` or `#` ends the authority too early
        return f"{match[0]}..."
    return f"{match[0]}{rest[len(authority) - len(host) :]}"


def is_tenant_bucket(bucket: str) -> bool:
    """Return whether ``bucket`` is a name of Ceph, ``tenant:bucket``, rather than a host and its port.

    ``:bucket`` is one of users without a tenant.
    """
    tenant, colon, name = bucket.partition(":")
    return bool(colon and name) and not name.isdecimal() and not {":", "@"} & set(name) and "@" not in tenant


def identity_of(url: str) -> str:
    """Return ``url`` without user info and fragment, and with a hash in place of its query without signature.

    Two presigned urls of one object have one identity; other parameters may name another object.
    """
    parts: SplitResult = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    kept = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name.lower() not in _SIGNATURE_PARAMETERS and not name.lower().startswith(_SIGNATURE_PREFIXES)
    ]
    query = hashlib.sha256(urlencode(kept).encode()).hexdigest() if kept else ""
    return f"{parts.scheme.lower()}://{host}{parts.path}?{query}"


def split_version(url: str) -> tuple[str, str | None]:
    """Split an S3 url into the url of the key and the id of a version, which has no slash; None for no version."""
    path, _, version = url.rpartition("?versionId=")
    if not path or "/" in version:
        return url, None
    return path, version or None


def bucket_url(url: str, key: str) -> str:
    """Return what comes before ``key`` in ``url``, which ends with it; with a final slash."""
    return url[: len(url) - len(key)] if key else url.rstrip("/") + "/"


def url_of_key(url: str) -> str:
    """Return the url of the key that ends ``url``, so that :func:`split_version` finds no version in it."""
    return url + END_OF_KEY if split_version(url)[0] != url else url


def local_path(url: str | os.PathLike[str]) -> str:
    """Return the absolute path of a ``file://`` url (not percent-decoded, as in fsspec) or of a plain path."""
    protocol, rest = split_url(url)
    if protocol != "file":
        raise UnsupportedStoreError(f"expected a local path or a file:// url, got a url of protocol {protocol!r}")
    return os.path.abspath(os.path.expanduser(rest))


def canonical_url(url: str | os.PathLike[str]) -> str:
    """Return the same text for all urls that name one object, such as s3:// and s3a://. Resolves symbolic links."""
    protocol, rest = split_url(url)
    if protocol == "file":
        return f"file://{os.path.realpath(os.path.expanduser(rest))}"
    return f"{'s3' if protocol in ('s3a', 's3n') else protocol}://{rest}"


#: Mappings that are arguments of filesystems, and no protocol of fsspec has their name.
_ARGUMENTS = word_set("client_kwargs config_kwargs s3_additional_kwargs headers")


_OWN_STORES: Final = word_set("file local s3 s3a http https hf memory")


def place_of(protocol: str, url: str, storage_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what ``url`` says of its place, such as host and user, as arguments of fsspec's filesystem; {} if the
    protocol has a store of its own or, by the session's ``storage_options``, is read through obstore, or its package is
    not installed. The values may be secrets."""
    if protocol in _OWN_STORES or "obstore" in options_for(protocol, storage_options):
        return {}
    from asyncpq.storage.fsspec import place_of as place_in_fsspec

    return place_in_fsspec(protocol, url)


def options_for(protocol: str, storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the storage options for one protocol. ``storage_options`` are flat, or one mapping per protocol (``{"s3":
    {...}}``).

    Raises InvalidOptionError if they mix both forms.

    Names of one protocol, such as s3 and s3a, share options. http and https do not: a token for https would be sent in
    clear text.
    """
    options = dict(storage_options or {})
    for name, value in options.items():
        if isinstance(value, Mapping) and name != name.lower() and name.lower() in _PROTOCOLS:
            raise InvalidOptionError(
                f"storage_options has no protocol {name}: protocols are in lower case",
                hint=f'Write storage_options={{"{name.lower()}": {{...}}}}.',
            )
    nested = {name for name, value in options.items() if value is None or isinstance(value, Mapping)} - _ARGUMENTS
    if not nested <= _PROTOCOLS:
        from fsspec.registry import known_implementations  # loading it takes a tenth of the time to a first row

        nested &= _PROTOCOLS | set(known_implementations)
    if not nested:
        return options
    if nested != set(options):
        flat = ", ".join(sorted(set(options) - nested))
        raise InvalidOptionError(
            f"storage_options mixes options per protocol with flat options: {flat}",
            hint="Put the flat ones under a protocol.",
        )
    aliases = _ALIASES.get(protocol, (protocol,))
    return dict(next((options[name] for name in aliases if options.get(name) is not None), {}))


#: The storage option with which a table's catalog is asked for credentials anew, for asyncpq's own use: a coroutine
#: function that takes the options whose credentials have expired, and returns those that replace them; its method
#: ``is_due`` says whether those that it gave last have expired, as far as it knows.
RENEWAL: Final = "asyncpq.renewal"
_ALIASES = {
    "s3": ("s3", "s3a"),
    "s3a": ("s3a", "s3"),
    "file": ("file", "local"),
    "gs": ("gs", "gcs"),
    "gcs": ("gcs", "gs"),
    "abfs": ("abfs", "abfss", "az"),
    "abfss": ("abfss", "abfs", "az"),
    "az": ("az", "abfs", "abfss"),
}


_PROTOCOLS: Final = frozenset(_ALIASES) | word_set(
    "local http https hf memory hdfs sftp ftp dbfs github oss webhdfs smb"
)
_REGION: Final = 'client_kwargs={"region_name": ...}'

#: Names that boto3, object_store, deltalake, Polars, DuckDB and pyarrow give to s3fs's options, in lower case.
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
#: Names that only options of S3 have, for hints of other stores.
_S3_ONLY: Final = frozenset({"key", "secret", "token", "anon", "endpoint_url", "requester_pays", *_S3_NAMES}) - {
    "verify",
    "verify_ssl",
}

#: Options of other stores, for :func:`as_storage_option`.
_OTHER_STORES: Final = word_set(
    "account_name account_key connection_string sas_token credential project headers auth client_kwargs config_kwargs "
    "s3_additional_kwargs profile use_ssl username password obstore s3 s3a gs gcs az abfs https http"
)


def as_storage_option(name: str) -> str | None:
    """Return the text ``storage_options={...}`` with which to pass an option of a store that some library calls
    ``name``; None if no store has such an option."""
    meant = _S3_NAMES.get(name.lower(), name if name in _S3_ONLY | _OTHER_STORES else None)
    if meant is None:
        return None
    option, _, value = meant.partition("=")
    return f'storage_options={{"{option}": {value or "..."}}}'


def refusal(error: Exception, options: Mapping[str, Any]) -> str:
    """Return a text for messages: the options whose name or value the text of ``error`` mentions, by name, then the
    error's class."""
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
    if any(f"{mark}{quoted}{mark}" in text for mark in "'\"`") or text.rstrip(".").endswith(f" {quoted}"):
        return True
    return isinstance(value, str) and len(value) > 3 and value in text


def mapping_option(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the option ``name`` of ``options``, which must be a mapping; {} if it is not given."""
    value = options.get(name) or {}
    if not isinstance(value, Mapping):
        raise InvalidOptionError(f"{name} in storage_options must be a mapping, not {type(value).__name__}")
    return value


def check_s3_names(options: Mapping[str, Any]) -> None:
    """Raise InvalidOptionError for an option that other libraries call by another name than s3fs, or an
    ``endpoint_url`` without a scheme."""
    meant = {name: _S3_NAMES[name.lower()] for name in options if name.lower() in _S3_NAMES}
    if meant:
        raise InvalidOptionError(
            f"the storage_options for s3 have names that s3fs does not know: {', '.join(meant)}",
            hint=f"Write {', '.join(f'{right} for {wrong}' for wrong, right in meant.items())}.",
        )
    inner = options.get("client_kwargs")
    endpoint = options.get("endpoint_url") or (inner.get("endpoint_url") if isinstance(inner, Mapping) else None)
    if isinstance(endpoint, str) and not endpoint.lower().startswith(("http://", "https://")):
        raise InvalidOptionError(
            "endpoint_url: does not begin with http:// or https://",
            option="endpoint_url",
            hint='Begin it with its scheme, such as "http://127.0.0.1:9000".',
        )
    if isinstance(endpoint, str) and _PORT_0.match(endpoint):
        raise InvalidOptionError(
            "endpoint_url: has port 0, on which no server listens",
            option="endpoint_url",
            hint="Write the server's port.",
        )


def is_s3_option(name: str) -> bool:
    """Return whether S3 stores have an option ``name``, or another library calls one of theirs so."""
    return name.lower() in _S3_ONLY


def unknown_option(
    protocol: str, unknown: Sequence[str], known: Iterable[str], otherwise: str | None = None
) -> InvalidOptionError:
    """Return the error for an option that the store of a protocol other than S3 does not support.

    ``known`` are the store's options. ``otherwise`` is the hint if the name resembles neither these nor an S3 option.
    """
    first = next((name for name in unknown if name.lower() in _S3_ONLY), unknown[0])
    if first.lower() in _S3_ONLY:
        hint: str | None = (
            "Flat storage_options are for whatever protocol a url has. Write those of S3 per protocol: "
            'storage_options={"s3": {...}}.'
        )
    else:
        hint = nearest(first, known, otherwise)
    return InvalidOptionError(f"storage_options for {protocol} have no option {first}", hint=hint)


def nearest_s3_option(mentioned: str, known: Mapping[str, Iterable[str]]) -> str | None:
    """Return a hint with the options most like the first name in ``mentioned``, which s3fs or botocore refused.

    ``known`` maps an option whose value is a dict to the names in that dict, and "" to the names at the top. None if no
    name is alike, or if the refused name is valid.
    """
    parent, _, name = mentioned.partition(" ")[0].rstrip(",").rpartition(".")
    names = frozenset(known.get(parent, ()))
    return None if name in names else nearest(name, names)

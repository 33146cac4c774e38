"""What looks like a credential, and is refused where Spark would show it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from asyncpq.errors import InvalidOptionError

#: In names as they are told apart by :func:`looks_secret`.
_SECRET: Final = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|account_?key|access_?key|customer_?key|private_?key|api_?key"
    r"|subscription_?key|encryption_?key|shared_?key|master_?key|auth_?key|sas|connection_?string|signature(?!_?version)"
    r"|authorization|cookie|bearer|(^|_)(key|auth|pass|sig|jwt)$"
)
#: Behind ``://``: user info, which SQL urls may have slashes in. What follows a host's colon is its port.
_USER: Final = re.compile(r"[^/?#\s]*@|[^:/?#@\[\s]*:(?!\d+([/?#]|$))[^@\s]*@")


def refuse_secrets(where: str, value: object) -> None:
    """
    Raises:
        InvalidOptionError: something in ``value`` looks like a credential.
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
        refuse_secret_url(where, value)


def refuse_secret_url(where: str, value: object) -> None:
    """
    Raises:
        InvalidOptionError: ``value`` is a url with user info, or with a query that looks like a signature; or has one
            inside.
    """
    if not isinstance(value, str):
        return
    for rest in value.split("://")[1:]:
        query = rest.partition("?")[2]
        if _USER.match(rest) or any(looks_secret(part.partition("=")[0]) for part in re.split("[&;]", query)):
            raise secret_refused(f"a part of the url ({where})")


def looks_secret(name: str) -> bool:
    """Whether it is the name of a credential, however its words are put together: of an option, header or parameter."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", unquote(name)).replace("-", "_").lower()
    return _SECRET.search(words) is not None or _SECRET.search(words.replace("_", "")) is not None


def secret_refused(what: str) -> InvalidOptionError:
    """To be raised where ``what`` is given."""
    return InvalidOptionError(
        f"{what} looks like a credential: settings and options of Spark are shown in plans, logs and its UI",
        hint="Give credentials_provider='module:function' (option credentialsProvider), which is called where files are"
        " read, or let the executors' environment have them.",
    )


def listed_in(value: str) -> object:
    """Urls that Spark hands over as a list in JSON; else the text itself."""
    if not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value

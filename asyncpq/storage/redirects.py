"""HTTP redirects: which are followed, and the remembered last target of each url (RFC 9110, section 15.4). No I/O.

A refused redirect is an InvalidResponseError that shows neither query nor user info.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from dataclasses import field
from typing import Final

from yarl import URL

from asyncpq.errors import InvalidResponseError
from asyncpq.records import dataclass
from asyncpq.storage.responses import RangeRequest
from asyncpq.storage.urls import safe_url

#: Followed statuses. GET and HEAD keep their method with each of them.
REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS: Final = 5

MAX_REDIRECTED_URLS: Final = 2048  # a signed target takes about 2 KB
_ENCODED_URL = re.compile(r"(?:[!#$&-;=?-Z\[\]_a-z~]|%[0-9A-Fa-f]{2})+")


def parse_http_url(text: str, *, encoded: bool = False) -> URL:
    """Parse ``text`` without its fragment; percent-encode it, unless it is encoded or ``encoded`` says so.

    Raises ValueError, whose text may quote secrets, if the url is malformed.
    """
    return URL(text.partition("#")[0], encoded=encoded or _ENCODED_URL.fullmatch(text) is not None)


class RedirectedError(Exception):
    """The response is a redirect. Never leaves the storage package."""

    def __init__(self, location: str) -> None:
        super().__init__("redirected")  # the location may hold secrets
        self.location = location


@dataclass(frozen=True, slots=True)
class RedirectTarget:
    """A url to send a request to, without user info and fragment. Only the origin of the user's own url gets the user's
    headers."""

    url: URL = field(repr=False)  # its query may hold secrets
    own: bool  # the target, and every redirect before it, has the origin (scheme, host and port) of the user's url

    @property
    def server(self) -> str:
        """Scheme and host of the target, such as ``https://host``, for messages."""
        return str(self.url.origin())


@dataclass(slots=True)
class Redirect:
    """What is remembered of a url's redirects: the last target."""

    target: RedirectTarget | None  # the last target; None after it failed
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the one fetch that asks the url again

    def forget(self, target: RedirectTarget) -> None:
        """Drop ``target``, which failed, unless another target has replaced it."""
        if self.target is target:
            self.target = None


def next_target(request: RangeRequest, current: RedirectTarget, location: str) -> RedirectTarget:
    """Return the target of a redirect. Raises InvalidResponseError if the Location header is missing or must not be
    followed."""
    if not location:
        raise _refused(request, "the server redirects without a Location header", _ASK_OPERATOR)
    try:
        url = current.url.join(parse_http_url(location))
        origin = _origin(url)
    except ValueError:  # its text quotes the location
        url, origin = URL(), ("", "", None)
    if url.scheme not in ("http", "https") or not url.host:
        raise _refused(request, "the server redirects to something other than an http url", _ASK_OPERATOR)
    shown = safe_url(str(url))
    if url.user is not None or url.password is not None:
        raise _refused(request, f"the server redirects to a url with a user or password: {shown}", _IF_TRUSTED)
    if current.url.scheme == "https" and url.scheme == "http":
        message = f"the server redirects from https to http, where others can read and change what is sent: {shown}"
        raise _refused(request, message, _IF_TRUSTED)
    if _is_local(url.host or "") and not _is_local(current.url.host or ""):
        raise _refused(
            request,
            f"the server redirects to an address of this machine or its link, or of a cloud's credentials: {shown}",
            _IF_TRUSTED,
        )
    return RedirectTarget(url, current.own and origin == _origin(current.url))


def too_many(request: RangeRequest, last: RedirectTarget, before: list[RedirectTarget]) -> InvalidResponseError:
    """Return the error for a redirect beyond ``MAX_REDIRECTS``."""
    loops = any(last.url == target.url for target in before)
    how = "in a loop" if loops else f"more than {MAX_REDIRECTS} times"
    message = f"the server redirects {how}, the last time to {safe_url(str(last.url))}"
    return _refused(request, message, "Check the url in a browser.")


_ASK_OPERATOR = "Report it to the server's operator."
_IF_TRUSTED = "This redirect is not followed; read that url itself if you trust it."


def _refused(request: RangeRequest, message: str, hint: str) -> InvalidResponseError:
    return InvalidResponseError(message, url=request.url, byte_range=request.byte_range, hint=hint)


def _origin(url: URL) -> tuple[str, str, int | None]:
    """Return the origin of ``url`` (RFC 6454): scheme, host and port."""
    return url.scheme, (url.host or "").lower(), url.port


#: The names of this machine in the /etc/hosts of Linux distributions.
_LOCAL_HOSTS: Final = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    }
)
#: Where clouds serve credentials to the machines that they run; most do so at link-local addresses.
_METADATA_HOSTS: Final = frozenset({"metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"})
_METADATA_ADDRESSES: Final = frozenset(
    map(
        ipaddress.ip_address,
        # Amazon (IPv6), Alibaba, Google (IPv6), Oracle, Azure's host
        ("fd00:ec2::254", "100.100.100.200", "fd20:ce::254", "192.0.0.192", "168.63.129.16"),
    )
)
#: IPv6 addresses whose last four bytes are an IPv4 address: NAT64 (RFC 6052, RFC 8215) and the old "compatible" ones.
_HOLDS_IPV4: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))


def _is_local(host: str) -> bool:
    """Return whether the host is this machine, its local link, or where a cloud serves credentials, judging by the
    host's text alone."""
    host = host.removesuffix(".").lower()  # resolvers accept the final dot of a full name
    if host in _LOCAL_HOSTS or host.endswith(".localhost") or host in _METADATA_HOSTS:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(host))  # resolvers accept 127.1 and 2130706433 too
        except (OSError, ValueError):
            return False
    return any(
        one.is_loopback or one.is_link_local or one.is_unspecified or one in _METADATA_ADDRESSES
        for one in (address, *_ipv4_in(address))
    )


def _ipv4_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address may lead to: the mapped, 6to4, Teredo or translated one."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _HOLDS_IPV4):
        inside.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [one for one in inside if one is not None]

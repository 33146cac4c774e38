"""Every fault that a reader of an object store has to bear, by name: what a test can iterate over.

Each entry makes a :class:`~asyncpq.testing.faults.Fault` that happens once, to the first request;
``dataclasses.replace(fault, after=2)`` lets it happen later, ``replace(fault, times=None)`` for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from asyncpq.testing.faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What faults are made from.

    Attributes:
        other: the bytes of another version of the object. With as many bytes as the object has, faults
            that replace it are the hardest to notice.
        location: the url of the object, for a redirect that leads back to it.
        elsewhere: a url on another host. Over HTTP it is followed.
        part_bytes: bodies that break off do so after this many bytes.
        drip_s: time between two bytes of a body that comes byte by byte.
        retry_after_s: what a huge Retry-After says.
    """

    other: bytes
    location: str
    elsewhere: str
    part_bytes: int = 100
    drip_s: float = 0.5
    retry_after_s: float = 86_400.0


#: By name. Those that end in an exchange without an answer last for ever: bound them by timeouts.
CATALOGUE: Mapping[str, Callable[[Scene], Fault]] = MappingProxyType(
    {
        # the connection
        "closed before the answer": lambda _: Fault(hang_up=True),
        "truncated body": lambda scene: Fault(truncate=scene.part_bytes),
        "reset (RST) mid-body": lambda scene: Fault(truncate=scene.part_bytes, reset=True),
        "chunked body cut": lambda scene: Fault(chunked=True, truncate=scene.part_bytes),
        "stall before headers": lambda _: Fault(stall_headers=True),
        "stall mid-body": lambda scene: Fault(stall_body=True, truncate=scene.part_bytes),
        "one byte at a time": lambda scene: Fault(drip_s=scene.drip_s),
        # answers that are not what was asked for
        "header flood": lambda _: Fault(flood_header_bytes=1 << 20),
        "200 for a Range": lambda _: Fault(ignore_range=True),
        "200 with the range": lambda _: Fault(range_200=True),
        "Content-Range shifted": lambda _: Fault(shift_range=1),
        "Content-Length too long": lambda _: Fault(length_delta=1, truncate=1 << 40),
        "Content-Length too short": lambda _: Fault(length_delta=-1),
        "body longer than the range": lambda _: Fault(surplus=1),
        "body shorter than the range": lambda _: Fault(surplus=-1),
        "gzip nobody asked for": lambda _: Fault(gzip=True),
        "HTML page with 200": lambda _: Fault(html_200=True),
        "416": lambda _: Fault(status=416, code="InvalidRange"),
        # refusals
        "500": lambda _: Fault(status=500),
        "503 SlowDown": lambda _: Fault(status=503, code="SlowDown"),
        "503 with a huge Retry-After": lambda scene: Fault(
            status=503, code="SlowDown", retry_after_s=scene.retry_after_s
        ),
        "429": lambda _: Fault(status=429, code=""),
        "408 RequestTimeout": lambda _: Fault(status=408, code="RequestTimeout"),
        "SlowDown inside a 200": lambda _: Fault(slow_down_200=True),
        "403 ExpiredToken": lambda _: Fault(status=403, code="ExpiredToken"),
        "403 AccessDenied": lambda _: Fault(status=403, code="AccessDenied"),
        "302 to another host": lambda scene: Fault(redirect=scene.elsewhere),
        "redirect loop": lambda scene: Fault(redirect=scene.location),
        "redirect without Location": lambda _: Fault(status=302, code=""),
        # versions
        "replaced": lambda scene: Fault(replace_with=scene.other),
        "replaced, If-Match ignored": lambda scene: Fault(replace_with=scene.other, ignore_if_match=True),
        "replaced, same size and time": lambda scene: Fault(replace_with=scene.other, keep_modified=True),
        "replaced mid-body": lambda scene: Fault(truncate=scene.part_bytes, replace_after=scene.other),
        "another ETag": lambda _: Fault(etag="other"),
        "weak ETag": lambda _: Fault(etag="weak"),
        "no ETag": lambda _: Fault(etag="none"),
        "deleted": lambda _: Fault(delete=True),
        "deleted mid-body": lambda scene: Fault(truncate=scene.part_bytes, delete_after=True),
    }
)

"""One page of S3's ListObjectsV2: its parameters and its answer. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html. XML cannot hold all keys, so they can be asked
for percent-encoded; not at first, since there are servers (LocalStack) that then compare encoded keys with plain ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

PAGE_BYTES = 16 * 1024 * 1024  # a longer answer is refused: 1,000 keys of 1,024 bytes, encoded, are 3 MiB


class PageError(Exception):
    """The answer is no page of a listing."""


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key, its size in bytes, its ETag, verbatim or None, and when it was written, in seconds since the epoch."""

    key: str
    size: int
    etag: str | None
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What is asked for: keys that begin with ``prefix`` and come after ``after``.

    Attributes:
        token: of the page before this one, where it goes on; ``after`` then does not count.
        folders: keys with a slash behind the prefix are rolled up into folders.
        encoded: keys come percent-encoded.
        most: keys and folders of the page; None for as many as the store gives.
    """

    prefix: str
    after: str = ""
    token: str | None = None
    folders: bool = False
    encoded: bool = False
    most: int | None = None

    def parameters(self) -> dict[str, str]:
        """Of the query, by their names."""
        names = {"list-type": "2", "prefix": self.prefix}
        if self.encoded:
            names["encoding-type"] = "url"
        if self.folders:
            names["delimiter"] = "/"
        if self.most is not None:
            names["max-keys"] = str(self.most)
        if self.token is not None:
            names["continuation-token"] = self.token
        elif self.after:
            names["start-after"] = self.after
        return names


@dataclass(frozen=True, slots=True)
class ListPage:
    """An answer.

    Attributes:
        keys, folders: ascending, where the store keeps to S3's order; folders end in a slash.
        token: asks for the next page; None if there is none.
    """

    keys: list[ListedKey]
    folders: list[str]
    token: str | None


def parse_page(body: bytes) -> ListPage:
    """Parse the XML of an answer. Document types and entities are refused.

    Raises:
        PageError: it is none.
    """
    try:
        text = body.decode("utf-8")  # parsed as text: whatever encoding it declares
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise PageError("the listing has a document type")
        root = ElementTree.fromstring(text)
    except (UnicodeDecodeError, ElementTree.ParseError, ValueError) as error:
        raise PageError("the listing is not well-formed XML") from error
    space, _, name = root.tag.rpartition("}")
    space += "}" if space else ""
    if name != "ListBucketResult":
        raise PageError(f"the listing is a document of type {name[:40]!r}")
    decode = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
    tags = tuple(space + name for name in ("Key", "Size", "ETag", "LastModified"))
    keys = [_listed(entry, tags, decode) for entry in root.iterfind(f"{space}Contents")]
    folders = [decode(_text(entry, f"{space}Prefix")) for entry in root.iterfind(f"{space}CommonPrefixes")]
    token = _next_token(root.findtext(f"{space}IsTruncated"), root.findtext(f"{space}NextContinuationToken"))
    return ListPage(keys, folders, token)


def page_of_response(response: Mapping[str, Any]) -> ListPage:
    """The same of botocore's parsed response.

    Raises:
        PageError: it is none.
    """
    try:
        keys = [
            ListedKey(str(entry["Key"]), int(entry["Size"]), _etag(entry.get("ETag")), _time(entry.get("LastModified")))
            for entry in response.get("Contents") or ()
        ]
        folders = [str(entry["Prefix"]) for entry in response.get("CommonPrefixes") or ()]
    except (KeyError, ValueError, TypeError) as error:
        raise PageError("an entry of the listing has no key or no size") from error
    return ListPage(keys, folders, _next_token(str(response.get("IsTruncated")), response.get("NextContinuationToken")))


def _listed(entry: ElementTree.Element, tags: tuple[str, ...], decode: Any) -> ListedKey:
    key, size, etag, modified = tags
    number = _text(entry, size).strip()
    if not (number.isascii() and number.isdigit() and len(number) < 20):
        raise PageError("an entry of the listing has no size")
    return ListedKey(
        decode(_text(entry, key)), int(number), _etag(entry.findtext(etag)), _time(entry.findtext(modified))
    )


def _text(entry: ElementTree.Element, tag: str) -> str:
    text = entry.findtext(tag)
    if not text:
        raise PageError(f"an entry of the listing has no {tag.rpartition('}')[2]}")
    return text


def _etag(value: str | None) -> str | None:
    """As responses to GETs have it: quoted, where some servers' listings do without."""
    if not value:
        return None
    return value if value.endswith('"') else f'"{value}"'


def _time(value: str | datetime | None) -> float | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.timestamp() if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _next_token(truncated: str | None, token: str | None) -> str | None:
    said = (truncated or "").strip().lower()
    if said not in ("true", "false"):
        raise PageError("the listing does not say whether it is complete")
    if said == "false":
        return None
    if not token:
        raise PageError("the listing is cut off, and does not say how to go on")
    return token

"""A body that broke off is not fetched anew: the rest of it is, if it is certain to be of the same version."""

from __future__ import annotations

from asyncpq.errors import InvalidResponseError
from asyncpq.storage.responses import UNKNOWN_SIZE, ExpectedBody, RangeRequest, strong_etag


class Resumption:
    """What has come of the body that ``whole`` asks for, over several attempts. Pure.

    Attributes:
        begun: the next attempt asks for the rest only.
    """

    __slots__ = ("_expected", "_parts", "_request", "_whole")

    def __init__(self, whole: RangeRequest) -> None:
        self._whole = self._request = whole
        self._expected: ExpectedBody | None = None  # of the whole body
        self._parts: list[bytes] = []

    @property
    def begun(self) -> bool:
        return bool(self._parts)

    @property
    def pinned(self) -> bool:
        """Whether the whole was to be of one certain version."""
        return self._whole.pin is not None

    def keep(self, status: int, expected: ExpectedBody | None, data: bytes) -> RangeRequest:
        """An attempt failed; what the next one has to ask for.

        Args:
            status, expected: of the response, if it was accepted; else None.
            data: what came of its body.
        """
        if status == 206 and expected is not None and 0 < len(data) < expected.length:
            pin = self._request.pin or expected.validator
            if strong_etag(pin) is not None and pin.size != UNKNOWN_SIZE:
                if self._expected is None:
                    self._expected = expected
                self._parts.append(data)
                start, stop = expected.start + len(data), expected.start + expected.length
                self._request = RangeRequest(start, stop, self._whole.url, pin)
        return self._request

    def start_over(self) -> None:
        """The parts are of a version that is gone."""
        self._request, self._expected = self._whole, None
        self._parts.clear()

    def complete(self, status: int, expected: ExpectedBody, data: bytes) -> tuple[ExpectedBody, bytes]:
        """The last attempt succeeded: the whole body.

        Raises:
            InvalidResponseError: it is not of the rest.
        """
        if self._expected is None:
            return expected, data
        if status != 206:
            raise InvalidResponseError(
                f"status {status} where 206 was expected", url=self._whole.url, byte_range=self._request.byte_range
            )
        return self._expected, b"".join([*self._parts, data])

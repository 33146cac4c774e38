"""How large pages of a leaf that is not repeated become once decoded, known before they are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from asyncpq.decoding.decoded_size import (
    ENCODING_DELTA_BYTE_ARRAY,
    LEVEL_BITS,
    prefix_bytes,
    refuse,
    taken_bytes,
    value_bits,
)
from asyncpq.format.page_header import PageHeader
from asyncpq.format.schema import Leaf, PhysicalType


class LeafSize:
    """Bounds of what one leaf decodes to.

    Args:
        leaf: one that is not repeated.
        arrow_type: of its field cut to it.
        value_type: of its values.
    """

    def __init__(self, leaf: Leaf, arrow_type: pa.DataType, value_type: pa.DataType) -> None:
        self._leaf = leaf
        self._has_lengths = leaf.physical_type == PhysicalType.BYTE_ARRAY
        self._may_repeat = self._has_lengths or leaf.physical_type == PhysicalType.FIXED_LEN_BYTE_ARRAY
        # of one row: validities and level
        overhead = len(leaf.path) + LEVEL_BITS if leaf.max_definition_level else 0
        self._value_bits = overhead + value_bits(arrow_type)
        self._index_bits = overhead + 32

    def check_pages(
        self, headers: Sequence[PageHeader], pages: Sequence[bytes], encoded: bool, codec: int, limit: int
    ) -> None:
        """Refuse before decoding what would not fit, as dictionary indices if ``encoded``, else as values.

        Raises:
            ResourceLimitError: more than ``limit`` bytes would come out.
        """
        bits = self._index_bits if encoded else self._value_bits
        size = sum([header.num_values for header in headers]) * bits // 8
        if self._has_lengths and not encoded:
            size += sum([header.uncompressed_size for header in headers])
        if self._may_repeat and not encoded:
            repeating = [at for at, header in enumerate(headers) if header.encoding == ENCODING_DELTA_BYTE_ARRAY]
            # no value is longer than all that its page holds
            coarse = sum([headers[at].num_values * headers[at].uncompressed_size for at in repeating])
            if size + coarse > limit:
                repeated = sum([prefix_bytes(pages[at], headers[at], self._leaf, codec) for at in repeating])
                # values of fixed size are counted already, but only what was decoded is held to that size
                size = size + repeated if self._has_lengths else max(size, repeated)
        if size > limit:
            raise refuse(f"{len(pages)} pages", size, limit, self._leaf.dotted)

    def check_expansion(self, dictionary: pa.Array, indices: pa.Array, limit: int) -> None:
        """Refuse before expanding what would not fit; exact only where the cheap bound is too large.

        Raises:
            ResourceLimitError: ``dictionary.take(indices)`` is larger than ``limit`` bytes.
        """
        if dictionary.nbytes * len(indices) <= limit:  # no value is larger than all of them together
            return
        total = taken_bytes(dictionary, indices, dictionary.type)
        if total > limit:
            raise refuse(f"{len(indices)} dictionary-encoded values", total, limit, self._leaf.dotted)

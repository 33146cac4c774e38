"""The bytes that Arrow objects hold, whether a value refers to them or not."""

from __future__ import annotations

import pyarrow as pa


def buffers_of(array: pa.Array) -> list[bytes | None]:
    """All buffers of an array: its own, its children's and its dictionaries'."""
    if isinstance(array, pa.ExtensionArray):
        return buffers_of(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return [*buffers_of(array.indices), *buffers_of(array.dictionary)]
    if isinstance(array, pa.StructArray):  # each child apart, for its dictionaries
        children = [array.field(number) for number in range(array.type.num_fields)]
    elif isinstance(array, pa.MapArray):
        children = [array.keys, array.items]
    elif pa.types.is_nested(array.type):
        children = [array.values]
    else:
        return [None if one is None else bytes(one) for one in array.buffers()]
    own = array.buffers()[: array.type.num_buffers]
    below = [one for child in children for one in buffers_of(child)]
    return [*(None if one is None else bytes(one) for one in own), *below]


def num_bytes(array: pa.Array) -> int:
    """The bytes of all buffers of an array."""
    return sum(len(one or b"") for one in buffers_of(array))

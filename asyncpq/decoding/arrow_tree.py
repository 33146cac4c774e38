"""Read the tree of a pyarrow compute expression, which has no public accessors, from its pickled form.

An expression pickles as an Arrow IPC file (``Serialize`` in Arrow's ``cpp/src/arrow/compute/expression.cc``; the same
since Arrow 3, and read here as pyarrow 26 writes it). The file has one record batch of one row, with a column for each
literal and a struct for the options of each call. The metadata of its schema are the tree in prefix order: ``call`` and
``end`` with a function's name, ``field_ref`` with a column's name, ``nested_field_ref`` with the number of names that
follow, ``literal`` and ``options`` with the number of a column. The form is as long as the expression, whatever its
shape, while the time of pyarrow's other form, Substrait, doubles with each level.

``Schema.metadata`` of pyarrow is a mapping and drops all but one of equal keys, so the message is read from its bytes
(Arrow's ``Message.fbs`` and ``Schema.fbs``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.checkpoints import checkpoint
from asyncpq.errors import ExpressionError
from asyncpq.expressions.tree import MAX_NESTING
from asyncpq.parquet.flatbuffers import FlatBuffer

JUNCTIONS: Final = frozenset({"and_kleene", "or_kleene"})
_MESSAGE: Final = 16  # after the file's magic and padding, the message's mark and its length
# Slots of the flatbuffers' tables, in the order of their fields.
_MESSAGE_HEADER: Final = 2
_SCHEMA_METADATA: Final = 2
_KEY: Final = 0
_VALUE: Final = 1


class Call(NamedTuple):
    """A call of a compute function. A junction, AND or OR, has the arguments of the equal junctions that it was built
    of."""

    function: str
    args: list[Node]
    options: pa.StructArray | None = None  # one row


class FieldRef(NamedTuple):
    """A reference to a column by name, or to a field of structs by the names of its path."""

    path: tuple[str, ...]


class Literal(NamedTuple):
    """A literal: a pyarrow scalar, or a Python value."""

    value: object


Node: TypeAlias = Call | FieldRef | Literal


def read_tree(expression: pc.Expression) -> Node:
    """Return the tree of a pyarrow expression.

    Raises:
        pa.ArrowNotImplementedError: the expression has no pickled form, as one that refers to a column by position.
        ExpressionError: its operations are nested deeper than :data:`MAX_NESTING`.
        IndexError, KeyError, TypeError, ValueError, struct.error: pyarrow pickles expressions in another form.
    """
    _, (pickled,) = expression.__reduce__()
    batch = pa.ipc.open_file(pickled).get_batch(0)
    entries = _entries(pickled.to_pybytes())
    whole = Call("", [])
    calls, depth = [whole], 0
    for key, value in entries:
        node: Node
        match key:
            case b"call":
                checkpoint()
                function, parent = value.decode(), calls[-1]
                if function in JUNCTIONS and function == parent.function:
                    calls.append(parent)  # a chain of thousands of terms is one junction
                    continue
                node = Call(function, [])
                depth += 1
                if depth > MAX_NESTING:
                    raise ExpressionError(
                        f"the pyarrow expression has more than {MAX_NESTING} nested operations",
                        hint="Write isin(...) for many values, and join conditions with | or & alone.",
                    )
                parent.args.append(node)
                calls.append(node)
                continue
            case b"end":
                call = calls.pop()
                depth -= call is not calls[-1]
                continue
            case b"options":
                call = calls[-1]
                calls[-1] = call._replace(options=batch.column(int(value)))
                calls[-2].args[-1] = calls[-1]
                continue
            case b"literal":
                node = Literal(batch.column(int(value))[0])
            case b"field_ref":
                node = FieldRef((value.decode(),))
            case b"nested_field_ref":
                node = FieldRef(tuple([_name(*next(entries)) for _ in range(int(value))]))
            case _:
                raise KeyError(key)
        calls[-1].args.append(node)
    (root,) = whole.args
    if len(calls) != 1:
        raise ValueError("the expression ends inside a call")
    return root


def _name(key: bytes, value: bytes) -> str:
    if key != b"field_ref":
        raise KeyError(key)
    return value.decode()


def _entries(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the metadata of an IPC file's schema, in their order."""
    message = FlatBuffer(file, _MESSAGE)
    schema = message.table(message.root, _MESSAGE_HEADER)
    if schema is None:
        raise ValueError("the Arrow IPC message has no schema")
    yield from message.text_pairs(schema, _SCHEMA_METADATA, _KEY, _VALUE)

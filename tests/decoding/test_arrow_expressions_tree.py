"""The trees of pyarrow's expressions, as they are read from the pickled form."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncpq.decoding import arrow_expressions
from asyncpq.decoding.arrow_expressions import Call, FieldRef, Literal, read_tree
from asyncpq.errors import ExpressionError
from asyncpq.expressions.tree import MAX_NESTING

A, B = pc.field("a"), pc.field("b")


def plain(node: arrow_expressions.Node) -> Any:
    """A tree as nested tuples, with Python values."""
    match node:
        case Call(function, args):
            return (function, *map(plain, args))
        case FieldRef(path):
            return ".".join(path)
        case Literal(value):
            return value.as_py() if isinstance(value, pa.Scalar) else value


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (A, "a"),
        (pc.scalar(3), 3),
        (pc.field("s", "x", "y"), "s.x.y"),
        (A == 1, ("equal", "a", 1)),
        (~(A > B), ("invert", ("greater", "a", "b"))),
        (A.is_valid(), ("is_valid", "a")),
        ((A == 1) & (~B | A), ("and_kleene", ("equal", "a", 1), ("or_kleene", ("invert", "b"), "a"))),
        (pc.field("a", "b") == pc.field("c"), ("equal", "a.b", "c")),
    ],
    ids=str,
)
def test_trees(expression: pc.Expression, expected: object) -> None:
    assert plain(read_tree(expression)) == expected


def test_literals_keep_their_types() -> None:
    for scalar in (pa.scalar(1, pa.uint8()), pa.scalar("x", pa.large_string()), pa.scalar(None, pa.date32())):
        tree = read_tree(scalar == A)
        assert isinstance(tree, Call)
        (literal,) = (arg for arg in tree.args if isinstance(arg, Literal))
        assert isinstance(literal.value, pa.Scalar)
        assert literal.value.type == scalar.type
        assert literal.value.equals(scalar)


def test_a_call_has_its_options() -> None:
    tree = read_tree(A.isin([1, 2]) & A.cast(pa.int8()).is_null(nan_is_null=True))
    assert isinstance(tree, Call)
    member, null = tree.args
    assert isinstance(member, Call)
    assert isinstance(null, Call)
    assert member.options is not None
    assert member.options[0]["value_set"].as_py() == [1, 2]
    assert null.options is not None
    assert null.options[0]["nan_is_null"].as_py() is True
    (cast,) = null.args
    assert isinstance(cast, Call)
    assert cast.function == "cast"
    assert cast.options is not None
    assert cast.options.type.get_field_index("allow_int_overflow") >= 0


@pytest.mark.parametrize(("join", "function"), [(and_, "and_kleene"), (or_, "or_kleene")])
def test_a_chain_is_one_junction_however_long(join: Any, function: str) -> None:
    terms = [number == A for number in range(2 * MAX_NESTING)]
    tree = read_tree(reduce(join, terms))
    assert plain(tree) == (function, *(("equal", "a", number) for number in range(2 * MAX_NESTING)))


def test_deep_trees_are_refused() -> None:
    def nested(levels: int) -> pc.Expression:
        return reduce(lambda inner, _: ~inner, range(levels), A)

    assert isinstance(read_tree(nested(MAX_NESTING)), Call)
    with pytest.raises(ExpressionError, match=f"more than {MAX_NESTING} nested"):
        read_tree(nested(MAX_NESTING + 1))


def test_columns_by_position_have_no_pickled_form() -> None:
    with pytest.raises(pa.ArrowNotImplementedError):
        read_tree(pc.field(0) == 1)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([(b"lambda", b"x")], KeyError),
        ([], ValueError),
        ([(b"call", b"invert"), (b"field_ref", b"a")], ValueError),
        ([(b"field_ref", b"a"), (b"field_ref", b"b")], ValueError),
        ([(b"nested_field_ref", b"1"), (b"literal", b"0")], KeyError),
        ([(b"literal", b"7")], IndexError),
        ([(b"end", b"x")], IndexError),
    ],
)
def test_another_form_is_an_error_of_python(
    entries: list[tuple[bytes, bytes]], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(file: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from entries

    monkeypatch.setattr(arrow_expressions, "_entries", other)
    with pytest.raises(error):
        read_tree(A == 1)

"""Predicates of calls of Spark's functions."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from asyncpq import Expression, col
from asyncpq.engine.foreign_conditions import Untranslated
from asyncpq.spark.reads.condition_calls import FunctionCall, Name, Node, Value, predicate

_A, _B = Name(["a"]), Name(["s", "b"])


def _call(function: str, *arguments: Node) -> FunctionCall:
    return FunctionCall(function, arguments, lambda: f"the function {function}")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (_A, "a == True"),
        (Value(None), "null"),
        (Value(False), "false"),
        (_call("<", Value(5), _B), "s.b > 5"),
        (_call("<=>", _A, Value(None)), "a is null"),
        (_call("<=>", _A, Value(5)), "(a == 5) and (not (a is null))"),
        (_call("in", _A, Value(1), Value(2)), "a in [1, 2]"),
        (_call("isnotnull", _A), "not (a is null)"),
        (_call("like", _A, Value("x%")), "a like 'x%'"),
        (_call("not", _call("or", _A, col("c") == 1)), "not ((a == True) or (c == 1))"),
        (_call("and", _A, _call("f", _A)), "(a == True) and (?)"),
    ],
)
def test_what_is_understood(node: Node, expected: str) -> None:
    assert str(predicate(node)) == expected


@pytest.mark.parametrize(
    "node",
    [
        None,
        Value(5),
        Name(["a.b"]),
        _call("=", _A, _B),
        _call("=", _A, Value(None)),
        _call("=", Value(1), Value(1)),
        _call("in", _A),
        _call("like", _A, Value(5)),
        _call("like", _A, Value("%a_" * 200)),
        _call("=", _A, _call("f", _A)),
    ],
)
def test_what_is_not(node: Node) -> None:
    made: Expression = predicate(node)
    assert isinstance(made, Untranslated)
    assert made.reason.startswith("asyncpq does not translate ")

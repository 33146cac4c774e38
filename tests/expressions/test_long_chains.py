"""Predicates of thousands of terms, joined by | and & or in SQL, grow as their terms do."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

from asyncpq import checkpoints, col
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import ExpressionError
from asyncpq.expressions import Expression, parse_where, sql, tree


def chain(terms: int) -> Expression:
    joined = col("a") == 0
    for number in range(1, terms):
        joined = joined | (col("a") == number)
    return joined


def test_a_chain_of_many_terms_is_built_in_the_time_of_its_terms() -> None:
    def cpu_s(terms: int) -> float:
        began = time.process_time()
        chain(terms)
        return time.process_time() - began

    assert min(cpu_s(20_000) for _ in range(3)) < 30 * min(cpu_s(2000) for _ in range(3))


def test_junctions_that_grow_from_one_are_apart() -> None:
    first = (col("a") == 1) | (col("a") == 2)
    text = str(first)
    grown = [first | (col("a") == number) for number in (3, 4)]
    again = grown[0] | ((col("b") == 1) | (col("b") == 2))
    assert str(first) == text
    assert [str(one) for one in grown] == [f"{text} or (a == 3)", f"{text} or (a == 4)"]
    assert str(again) == f"{text} or (a == 3) or (b == 1) or (b == 2)"
    both = (col("a") == 1) & (col("a") == 2)
    assert str(first | both) == f"{text} or ((a == 1) and (a == 2))"
    assert str(both & first) == f"(a == 1) and (a == 2) and ({text})"


def test_a_grown_junction_equals_one_made_of_its_arguments() -> None:
    grown, whole = chain(5), tree.Or(tuple([col("a") == number for number in range(5)]))
    assert (grown, hash(chain(5))) == (whole, hash(whole))
    for other in (pickle.loads(pickle.dumps(chain(5))), copy.copy(chain(5)), copy.deepcopy(chain(5))):
        assert other == whole
        assert str(other | (col("b") == 1)) == f"{whole} or (b == 1)"
    with pytest.raises(AttributeError, match="nothing"):
        _ = grown.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        grown.args = ()  # type: ignore[attr-defined]


def equalities(literal: str, terms: int = 100, name: str = "a") -> str:
    return " OR ".join(f"{name} = {literal.format(number)}" for number in range(terms))


@pytest.mark.parametrize("literal", ["{}", "-{}", "{}.25", "'{}'", "'a = {} OR (a = 1'"])
@pytest.mark.parametrize("form", ["{}", "b = 1 AND ({})", "NOT ({})", "(({})) or c in (1)"])
def test_equalities_in_sql_are_a_list(form: str, literal: str) -> None:
    items = ", ".join(literal.format(number) for number in range(100))
    assert parse_where(form.format(equalities(literal))) == parse_where(form.format(f"a IN ({items})"))


@pytest.mark.parametrize(
    "text",
    [
        f"b = 1 AND {equalities('{}')}",
        f"{equalities('{}')} AND b = 1",
        f"x = '({equalities('{}')})'",
        f'"({equalities("{}")})" = 1',
        f"{equalities('{}')} OR b = 1",
        f"{equalities('{}')} OR a = NULL",
        f"{equalities('{}', 20)}",
        f"{equalities('{}')} -- all of them",
    ],
)
def test_other_conditions_stay_as_they_are(text: str) -> None:
    assert sql._with_lists(text) == text


def test_work_in_a_thread_can_stop_or_pause_in_the_parsing_of_sql() -> None:
    reached = Counter[str]()  # by the function that calls checkpoint()
    thread = threading.get_ident()
    checkpoints.checks[thread] = lambda: reached.update([sys._getframe(2).f_code.co_name])
    try:
        parse_where(" AND ".join(f"c{number} = {number}" for number in range(500)))
        assert reached["_advance"] >= 1500  # of the parser, to each token
        assert reached["_condition"] >= 500
        assert reached["paused"] >= 500
        reached.clear()
        parse_where(f"a IN ({', '.join(map(str, range(5000)))})")
        assert reached["_advance"] >= 5000
    finally:
        del checkpoints.checks[thread]


def test_an_error_after_many_equalities_has_its_place() -> None:
    text = f"({equalities('{}')}) AND"
    with pytest.raises(ExpressionError) as raised:
        parse_where(f"{text} AND b = 1")
    assert f"column {len(text) + 2})" in str(raised.value)


@pytest.mark.parametrize("head", ["A = 7", "NULL = 7", "a = 7 AND b = 1", "NOT a = 7", "a = b"])
def test_a_chain_of_sql_with_another_term_means_what_a_short_one_does(head: str) -> None:
    """Names of columns differ by their case."""
    terms = [f"a = {number}" for number in range(100)]
    for place in (0, 50, 100):
        text = " or ".join([*terms[:place], head, *terms[place:]])
        parts = [parse_where(term) for term in (*terms[:place], head, *terms[place:])]
        together = parse_where(text)
        for row in ({"a": 7, "A": 0, "b": 0}, {"a": 200, "A": 7, "b": 1}, {"a": 200, "A": 0, "b": 200}):
            table = pa.table({name: [value] for name, value in row.items()})
            wanted = any(matches(part, table) for part in parts)
            assert matches(together, table) is wanted


def matches(expr: Expression, table: pa.Table) -> bool:
    columns = {name: table[name].combine_chunks() for name in table.schema.names}
    return bool(compile_filter(expr, table.schema).mask(columns, 1)[0].as_py())


@pytest.mark.parametrize("head", ["TRUE", "CURRENT_DATE"])
def test_an_error_of_a_chain_names_what_was_written(head: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_where(" OR ".join([f"{head} = 1"] * 70))
    assert " IN " not in str(raised.value)

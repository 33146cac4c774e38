"""Functions of columns in conditions, evaluated with pyarrow's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import FunctionTest, tree

_TEXTS: Final = (pa.string(), pa.large_string())
#: The comparisons that a pattern of LIKE becomes, and their text.
_TEXT_OF: Final[Mapping[type, str]] = {
    tree.Comparison: "value",
    tree.Contains: "text",
    tree.Like: "pattern",
    tree.StartsWith: "prefix",
}


def function_type(expr: FunctionTest, type_: pa.DataType) -> pa.DataType:
    """Return the type of the function's results for a column of ``type_``.

    Raises:
        PredicateTypeError: the column's type does not have the function.
    """
    values = type_.value_type if isinstance(type_, pa.DictionaryType) else storage_type(type_)
    if expr.function != "mod" and values in _TEXTS:
        return values
    if expr.function == "mod" and pa.types.is_integer(values):
        return pa.uint64() if values == pa.uint64() else pa.int64()
    needed = "integers" if expr.function == "mod" else "strings"
    raise PredicateTypeError(
        f"{expr}: the column has the type {type_}, expected {needed}",
        column=expr.column,
        hint=f"Use it on a column of {needed}.",
    )


def compared_test(expr: FunctionTest) -> tree.Atom:
    """Return the comparison with the function's results. That of ILIKE has its texts in small letters, by the kernel
    that the column's texts go through: it knows other letters than Python does.

    Raises:
        PredicateTypeError: a text of ILIKE is not valid Unicode.
    """
    if expr.function != "folded":
        return expr.test
    name = _TEXT_OF[type(expr.test)]
    text = getattr(expr.test, name)
    try:
        small = pc.utf8_lower(pa.scalar(text, pa.string())).as_py()
    except UnicodeEncodeError:
        raise PredicateTypeError(f"the text {text!r} of ILIKE is not valid Unicode", column=expr.column) from None
    test: Any = expr.test
    return replace(test, **{name: small})  # type: ignore[no-any-return]


def function_kernel(expr: FunctionTest, type_: pa.DataType) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return the type of the function's results, and the function of an array of ``type_``. Raises the errors of
    :func:`function_type`."""
    result = function_type(expr, type_)
    if expr.function in ("lower", "folded"):
        return result, pc.utf8_lower
    if expr.function == "upper":
        return result, pc.utf8_upper
    divisor = pa.scalar(expr.divisor, result)

    def remainder(values: Any) -> Any:
        whole = values.cast(result)
        return pc.subtract(whole, pc.multiply(pc.divide(whole, divisor), divisor))

    return result, remainder

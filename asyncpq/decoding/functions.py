"""Functions of columns in conditions, evaluated with pyarrow's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import FunctionTest

_TEXTS: Final = (pa.string(), pa.large_string())


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


def function_kernel(expr: FunctionTest, type_: pa.DataType) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return the type of the function's results, and the function of an array of ``type_``. Raises the errors of
    :func:`function_type`."""
    result = function_type(expr, type_)
    if expr.function == "lower":
        return result, pc.utf8_lower
    if expr.function == "upper":
        return result, pc.utf8_upper
    divisor = pa.scalar(expr.divisor, result)

    def remainder(values: Any) -> Any:
        whole = values.cast(result)
        return pc.subtract(whole, pc.multiply(pc.divide(whole, divisor), divisor))

    return result, remainder

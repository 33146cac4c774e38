"""How large Spark takes a scan to be, which decides how it is joined.

Spark knows nothing of what ``mapInArrow`` gives, and takes it for as large as what goes in: a number a task, so that it
would broadcast any lake. So there goes in as much as is read: more numbers than tasks, the others of which are dropped
at once, beside a column without values whose type Spark takes for wide. Of columns that are selected later, it takes
their part of that, as with files of its own.

With ``spark.sql.cbo.enabled`` Spark counts the numbers, and multiplies them by the width of what is selected: there,
there are more of them, and nothing beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from asyncpq.options import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIELDS: Final = 20
_WIDTH: Final = _FIELDS * 100  # bytes: what Spark takes a BINARY for
_WIDE: Final = f"CAST(NULL AS STRUCT<{', '.join(f'c{at}: BINARY' for at in range(_FIELDS))}>) AS wide"
#: Spark takes a row for 8 bytes more than its columns have, and a number of a range for 8.
_WIDE_ROW_BYTES: Final = (8 + 8 + _WIDTH) // 2
_NUMBER_BYTES: Final = 8
# What is larger is large anyway, and numbers take time to be counted through: some 0.3 s, all tasks together.
_MOST_BYTES: Final = 65_536 * MIB
_MOST_NUMBERS_BYTES: Final = 512 * MIB


@dataclass(frozen=True, slots=True)
class Padding:
    """
    Attributes:
        numbers: how many; at least one.
        columns: beside them, in Spark's SQL.
    """

    numbers: int
    columns: tuple[str, ...]


def padding_for(spark: SparkSession, num_bytes: int) -> Padding:
    """What Spark takes for ``num_bytes``, or for up to an eighth more: it compiles code for each number of numbers."""
    if spark.conf.get("spark.sql.cbo.enabled", "false") == "true":
        return Padding(_rounded(min(num_bytes, _MOST_NUMBERS_BYTES) // _NUMBER_BYTES), ())
    return Padding(_rounded(min(num_bytes, _MOST_BYTES) // _WIDE_ROW_BYTES), (_WIDE,))


def _rounded(number: int) -> int:
    """At least one, and up to an eighth more."""
    digits = max(0, number.bit_length() - 4)
    return max(1, -(-number >> digits) << digits)

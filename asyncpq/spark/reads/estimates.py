"""How large Spark takes a scan to be, which decides how it is joined.

Spark knows nothing of what ``mapInArrow`` gives, and takes it for as large as what goes in: a number a task, so that it
would broadcast any lake. So there go in more than are needed, up to where Spark would not broadcast any more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_THRESHOLDS: Final = ("spark.sql.autoBroadcastJoinThreshold", "spark.sql.adaptive.autoBroadcastJoinThreshold")
_SIZE: Final = re.compile(r"(-?\d+)\s*([kmgtp]?)b?", re.IGNORECASE)
_NUMBER_BYTES: Final = 8


def numbers_for(spark: SparkSession, num_bytes: int) -> int:
    """How many numbers Spark takes for ``num_bytes``, or for more than it broadcasts by itself; at least one.

    By at most an eighth more than that: Spark compiles code for each number of numbers anew.
    """
    most = max(_size(spark, name) for name in _THRESHOLDS)
    numbers = max(1, -(-min(num_bytes, most + 1) // _NUMBER_BYTES))
    digits = max(0, numbers.bit_length() - 4)
    return -(-numbers >> digits) << digits


def _size(spark: SparkSession, name: str) -> int:
    """Of a setting; 0 where there is none, or it is turned off."""
    try:
        text = spark.conf.get(name)
    except PySparkException:  # another version of Spark may not have it
        return 0
    found = _SIZE.fullmatch(str(text).strip())
    return 0 if found is None else max(0, int(found[1])) << (10 * " kmgtp".index(found[2].lower() or " "))

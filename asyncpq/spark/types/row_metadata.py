"""The schema that Spark writes into footers, beside Parquet's own: CHAR and VARCHAR, comments, user-defined types.

Its JSON comes from a file: no class that it names is imported but those of pyspark itself.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from asyncpq.errors import UnsupportedFeatureError
from asyncpq.spark.types.read_conf import nullable_struct, without_char_and_varchar

ROW_METADATA_KEY: Final = "org.apache.spark.sql.parquet.row.metadata"
# Types that Spark's own parser knows and pyspark's does not.
_UNKNOWN_TO_PYSPARK: Final = re.compile(r"timestamp_(ltz|ntz)\(\d+\)")
_MAX_DEPTH: Final = 100


def row_schema(text: str | None) -> StructType | None:
    """The schema under :data:`ROW_METADATA_KEY` as Spark reads it, all nullable.

    Args:
        text: JSON, or the words of Spark before 1.2.

    Returns:
        None where there is none, or none that Spark understands: then Parquet's schema counts.

    Raises:
        UnsupportedFeatureError: a type that Spark has and pyspark has not.
    """
    if text is None:
        return None
    found: StructType | None
    try:
        found = StructType.fromJson(_safe(json.loads(text), 0))
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = _Words(text).schema()
    return None if found is None else nullable_struct(without_char_and_varchar(found))


def _safe(value: Any, depth: int) -> Any:
    """JSON of types with what pyspark would import or unpickle replaced by what it is stored as."""
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, str) and _UNKNOWN_TO_PYSPARK.fullmatch(value):
        raise UnsupportedFeatureError(f"the file has the type {value}, which pyspark does not have")
    if isinstance(value, list):
        return [_safe(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "udt":
        name = value.get("pyClass")
        if not isinstance(name, str) or not re.fullmatch(r"pyspark\.(ml|mllib)\.linalg\.\w+UDT", name):
            return _safe(value["sqlType"], depth + 1)
        return {"type": "udt", "class": value.get("class"), "pyClass": name, "sqlType": value["sqlType"]}
    return {key: item if key in ("name", "metadata") else _safe(item, depth + 1) for key, item in value.items()}


class _Words:
    """``StructType(List(StructField(a,IntegerType,true), ...))``: how Spark before 1.2 wrote a schema."""

    def __init__(self, text: str) -> None:
        self._tokens = re.findall(r"[(),]|[^(),]+", text)
        self._at = 0

    def schema(self) -> StructType | None:
        """None where the words are others."""
        try:
            found = self._type()
        except (ValueError, IndexError, RecursionError):
            return None
        return found if isinstance(found, StructType) and self._at == len(self._tokens) else None

    def _next(self) -> str:
        self._at += 1
        return str(self._tokens[self._at - 1]).strip()

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            if self._next() != token:
                raise ValueError(token)

    def _flag(self) -> bool:
        return {"true": True, "false": False}[self._one_of("true", "false")]

    def _one_of(self, *words: str) -> str:
        word = self._next()
        if word not in words:
            raise ValueError(word)
        return word

    def _type(self) -> DataType:
        word = self._next()
        if word in _WORDS:
            return _WORDS[word]()
        if word == "DecimalType":
            if self._at < len(self._tokens) and self._tokens[self._at] == "(":
                self._expect("(")
                precision = int(self._next())
                self._expect(",")
                scale = int(self._next())
                self._expect(")")
                return DecimalType(precision, scale)
            return DecimalType(10, 0)
        if word == "ArrayType":
            self._expect("(")
            element = self._type()
            self._expect(",")
            contains_null = self._flag()
            self._expect(")")
            return ArrayType(element, contains_null)
        if word == "MapType":
            self._expect("(")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(",")
            contains_null = self._flag()
            self._expect(")")
            return MapType(key, value, contains_null)
        if word == "StructType":
            return self._struct()
        raise ValueError(word)

    def _struct(self) -> StructType:
        self._expect("(")
        self._one_of("List", "ArrayBuffer")
        self._expect("(")
        fields = []
        while True:
            self._expect("StructField", "(")
            name = self._next()
            self._expect(",")
            kind = self._type()
            self._expect(",")
            fields.append(StructField(name, kind, self._flag()))
            self._expect(")")
            if self._next() == ")":
                break
        self._expect(")")
        return StructType(fields)


_WORDS: Final[dict[str, type[DataType]]] = {
    "StringType": StringType,
    "FloatType": FloatType,
    "IntegerType": IntegerType,
    "ByteType": ByteType,
    "ShortType": ShortType,
    "DoubleType": DoubleType,
    "LongType": LongType,
    "BinaryType": BinaryType,
    "BooleanType": BooleanType,
    "DateType": DateType,
    "TimestampType": TimestampType,
    "NullType": NullType,
}

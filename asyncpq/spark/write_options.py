"""The layout of written files as options of Spark, such as ``pageRows``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from asyncpq.errors import InvalidOptionError
from asyncpq.spark.settings import camel_case, flag_option, option_spelling
from asyncpq.writing.file_layout import BloomFilter, SortedBy, WriteOptions

_LISTS: Final = ("bloom_filters", "sorted_by", "dictionary_columns")
OPTION_NAMES: Final = tuple(camel_case(option.name) for option in fields(WriteOptions))


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse options with names like ``pageRows``, in any case.

    ``bloomFilters`` and ``sortedBy`` are JSON lists of names, or of objects such as ``{"column": "id", "fpp": 0.001}``;
    ``dictionaryColumns`` is a JSON list of names. An invalid value raises InvalidOptionError.
    """
    texts = {name.lower(): value for name, value in given.items()}
    values: dict[str, Any] = {}
    for option in fields(WriteOptions):
        name = camel_case(option.name)
        if name.lower() in texts:
            values[option.name] = _parsed(name, option.name, texts[name.lower()])
    with option_spelling(values):
        return WriteOptions(**values)


def _parsed(name: str, attribute: str, text: str) -> Any:
    if attribute == "compression":
        return text.lower()
    if attribute == "store_schema":
        return flag_option({name.lower(): text}, name)
    if attribute in _LISTS:
        return tuple(_item(name, attribute, item) for item in json_list(name, text))
    try:
        return int(text)
    except ValueError:
        raise InvalidOptionError(f"{name}={text!r}: must be a whole number") from None


def _item(name: str, attribute: str, item: Any) -> Any:
    if attribute == "dictionary_columns":
        if not isinstance(item, str):
            raise InvalidOptionError(f"{name}: must be a list of names, but has the item {item!r}")
        return item
    kind = BloomFilter if attribute == "bloom_filters" else SortedBy
    known = {camel_case(field.name): field.name for field in fields(kind)}
    record = {"column": item} if isinstance(item, str) else item
    if not isinstance(record, dict) or not isinstance(record.get("column"), str) or record.keys() - known.keys():
        raise InvalidOptionError(
            f"{name}: must be a list of names, or of objects with {', '.join(known)}, but has the item {item!r}"
        )
    return kind(**{known[key]: value for key, value in record.items()})


def json_list(name: str, text: str) -> list[Any]:
    """Parse the value of an option, a JSON list. Raises InvalidOptionError if ``text`` is not a JSON list."""
    try:
        items = json.loads(text)
    except ValueError as error:
        raise InvalidOptionError(f"{name}: must be JSON: {error}", hint='A list is ["id", "day"].') from error
    if not isinstance(items, list):
        raise InvalidOptionError(f'{name}: must be a JSON list such as ["id", "day"], not {text}')
    return items

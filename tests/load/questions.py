"""The data that the load test serves, and what its clients ask."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq

from tests.load.client import request

DATASET: Final = "lake"
MAX_BODY: Final = 4 << 20  # bytes that the service takes
MAX_WHERE: Final = 16 << 10  # characters that the service takes
_FILES: Final = 4
_REGIONS: Final = ("north", "east", "south", "west")
_WORDS: Final = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def write_lake(folder: Path, rows: int) -> None:
    """Write ``rows`` rows in four files: ids, texts of 200 to 500 letters, floats and a dictionary.

    Half of the texts repeat one letter, on which patterns with many wildcards have many ways to match; half are random
    letters, on which an automaton of such patterns has many states.
    """
    folder.mkdir(parents=True)
    rng = random.Random(0)
    size = rows // _FILES
    for number in range(_FILES):
        ids = range(number * size, (number + 1) * size)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "txt": [
                    _text(200 + one * 7 % 300, rng) + str(one) if one % 2 else "a" * (200 + one * 7 % 300)
                    for one in ids
                ],
                "words": [" ".join(_WORDS[(one + n * n) % 8] for n in range(20)) for one in ids],
                "price": [one * 37 % 10_000 / 100 for one in ids],
                "prices": [[one / 7.0] * (200 if one % 50 == 0 else 1) for one in ids],
                "region": pa.array([_REGIONS[one * 31 % 4] for one in ids]).dictionary_encode(),
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet", data_page_size=64 << 10, write_page_index=True)


def _text(number: int, rng: random.Random) -> str:
    length = 200 + number * 7 % 300
    letters = f"{rng.getrandbits(length) * (number % 2):0{length}b}"
    return letters.replace("0", "a").replace("1", "b") + str(number)


def ordinary(verb: str, rng: random.Random, rows: int) -> str:
    """Return the path of a cheap request."""
    if verb == "lookup":
        return _path(verb, id=rng.randrange(rows), columns="id,price,region")
    if verb == "count":
        first = rng.randrange(rows)
        return _path(verb, where=f"id >= {first} and id < {first + 500}")
    return _path(verb, where=f"price > {rng.randrange(90)}", columns="id,price", limit=3)


def everything(format_: str) -> str:
    """Return the path of a scan of all rows."""
    return _path("scan", format=format_)


def heavy_count(secret: str) -> bytes:
    """Return a request that reads all texts, which takes some tenths of a second."""
    method, path, body = _where("count", "txt like '%a%a%b%'")
    return request(method, path, secret, body)


def _path(verb: str, **parameters: object) -> str:
    return f"/v1/{DATASET}/{verb}?{urlencode(parameters)}"


def _where(verb: str, where: str, **more: object) -> tuple[str, str, bytes]:
    return "POST", f"/v1/{DATASET}/{verb}", json.dumps({"where": where, **more}).encode()


def _body(verb: str, body: bytes) -> tuple[str, str, bytes]:
    return "POST", f"/v1/{DATASET}/{verb}", body[:MAX_BODY]


def _ored(conditions: list[str], joint: str = " or ") -> str:
    """Return as many of the conditions as a request may have."""
    text = conditions[0]
    for one in conditions[1:]:
        if len(text) + len(joint) + len(one) > MAX_WHERE:
            break
        text += joint + one
    return text


def _many_keys() -> bytes:
    return json.dumps({"keys": {"id": list(range(1_000_000, 1_380_000))}}).encode()


def _many_columns() -> bytes:
    return json.dumps({"keys": {f"k{n}": [n] for n in range(200_000)}}).encode()


_LIKES: Final = [f"txt like '%{'a%' * 30}b{n}'" for n in range(400)]

# As the service allows them: 100 wildcards, 200 comparisons
_LETTERS: Final = [f"txt like '%a{'_' * 96}{letter}%'" for letter in "cdefghijklmnopqrstuvwxyz"]

#: The requests that cost most, some within the service's limits and some beyond: their names, and what makes method,
#: path and body (None for none).
EXPENSIVE: Final[dict[str, Callable[[], tuple[str, str, bytes | None]]]] = {
    "4 MB of []": lambda: _body("lookup", b'{"keys": {"id": [' + b"[]," * ((MAX_BODY - 40) // 3) + b"[]]}}"),
    "4 MB of [[": lambda: _body("lookup", b"[" * MAX_BODY),
    "4 MB of {}": lambda: _body("lookup", b'{"keys": [' + b"{}," * ((MAX_BODY - 40) // 3) + b"{}]}"),
    "4 MB in one key": lambda: _body("lookup", b'{"keys": {"' + b"k" * (MAX_BODY - 40) + b'": 1}}'),
    "200,000 key columns": lambda: _body("lookup", _many_columns()),
    "380,000 keys": lambda: _body("lookup", _many_keys()),
    "350,000 columns": lambda: _body("scan", json.dumps({"columns": [f"c{n}" for n in range(350_000)]}).encode()),
    "60,000 columns": lambda: _body("scan", json.dumps({"columns": [f"c{n}" for n in range(60_000)]}).encode()),
    "60,000 []": lambda: _body("lookup", b'{"keys": {"id": [' + b"[]," * 30_000 + b"[]]}}"),
    "1,000 keys": lambda: _body("lookup", json.dumps({"keys": {"id": list(range(0, 100_000, 100))}}).encode()),
    "nested condition": lambda: _where("count", f"{'(' * 4000}id = 1{')' * 4000}"),
    "nested not": lambda: _where("count", f"{'not ' * 3000}id = 1"),
    "wide or": lambda: _where("explain", _ored([f"id = {n}" for n in range(3000)])),
    "60 KB of query": lambda: ("GET", _path("lookup") + "&".join(f"k{n}=1" for n in range(7000)), None),
    "count, contains": lambda: _where("count", _ored([f"contains(txt, '{'a' * n}b')" for n in range(50, 500)])),
    "count, words": lambda: _where("count", _ored([f"has_phrase(words, '{'alpha beta ' * n}')" for n in range(2, 99)])),
    "count, 1,000 prices": lambda: _where("count", _ored([f"price = {n}.01" for n in range(3000)])),
    "count, 200 prices": lambda: _where("count", _ored([f"price = {n}.01" for n in range(200)])),
    "scan of all, json": lambda: ("GET", everything("json"), None),
    "scan of all, parquet": lambda: ("GET", everything("parquet"), None),
    "lists, json": lambda: ("GET", _path("scan", columns="prices", format="json"), None),
    "one row group": lambda: ("GET", _path("scan", columns="id,price", format="parquet", limit=99_000), None),
    "lookup, 1,000 texts": lambda: _body(
        "lookup", json.dumps({"keys": {"txt": ["a" * 400 + str(n) for n in range(1000)]}}).encode()
    ),
    "like, 98 letters": lambda: _where("count", _LETTERS[0]),
    "count, 24 likes": lambda: _where("count", _ored(_LETTERS)),
    "like, 1,000 wildcards": lambda: _where("count", f"txt like '{'%a' * 1000}%b'"),
    "like, 7,000 wildcards": lambda: _where("count", f"txt like '{'%a' * 7000}%b'"),
    "like, 300 letters": lambda: _where("count", f"txt like '%a{'_' * 300}c'"),
    "like, 2,000 letters": lambda: _where("count", f"txt like '%a{'_%' * 2000}c'"),
    "scan, like": lambda: _where("scan", f"txt like '{'%a' * 150}%b'", limit=3),
    "count, many likes": lambda: _where("count", _ored(_LIKES)),
    "count, 150 likes": lambda: _where("count", _ored(_LIKES[:150])),
    "count, not likes": lambda: _where("count", f"not ({_ored(_LIKES)[: MAX_WHERE // 2].rpartition(' or ')[0]})"),
}


def expensive(name: str, token: str) -> bytes:
    """Return the whole request that :data:`EXPENSIVE` calls ``name``."""
    method, path, body = EXPENSIVE[name]()
    return request(method, path, token, body)

"""The tables that every writer writes, in plain Python: columns by name, each a list of values and nulls.

This and the programs beside it run on Python 3.6, too.
"""

import datetime as dt
import decimal
import os
import random
import struct
import sys
import uuid

ROWS = 600
GROUP_ROWS = 250  # of a row group, where a writer lets one choose
PAGE_ROWS = 40
BUCKET_ROWS = 50
UTC = dt.timezone.utc
DAY = dt.datetime(2024, 2, 27, 22, 30)
# Names of the columns of `flat` whose types not every library has.
KINDS = {
    "n": "int64",
    "bucket": "int64",
    "key": "string",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f32": "float32",
    "f64": "float64",
    "nan": "float64",
    "flag": "bool",
    "word": "string",
    "long": "string",
    "unicode": "string",
    "raw": "binary",
    "fixed": "fixed4",
    "category": "category",
    "no_int": "int32",
    "no_text": "string",
    "day": "date",
    "t_ms": "time_ms",
    "t_us": "time_us",
    "ts_ms": "timestamp_ms",
    "ts_us": "timestamp_us",
    "ts_ns": "timestamp_ns",
    "ts_utc": "timestamp_utc",
    "dec9": "decimal(9,2)",
    "dec18": "decimal(18,4)",
    "dec38": "decimal(38,10)",
    "uuid": "uuid",
}


def kinds(*without):
    """Columns of `flat` and their kinds, without those kinds."""
    return [(name, kind) for name, kind in KINDS.items() if kind not in without]


def _single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _pick(rng, values, nulls):
    return None if rng.random() < nulls else values[int(rng.random() * len(values))]


def _integers(bits, signed):
    low = -(1 << bits - 1) if signed else 0
    high = (1 << bits - 1) - 1 if signed else (1 << bits) - 1
    return [low, low + 1, high, high - 1] + list(range(max(low, -8), 24)) * 2


def flat(rows=ROWS):
    """The columns of `flat`; timestamps of ts_ns are naive datetimes to which nanoseconds are added by `nanoseconds`."""
    rng = random.Random(20)
    floats = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 0.1, 1.5, -2.25, 3.0, 1e30, 16777216.0]
    words = ["alpha", "beta", "gamma", "delta", "a", "b", "", "Z", "alphabet"]
    long = ["x" * 70 + letter for letter in "abc"] + ["y" * 64, "y" * 65, "y" * 63 + "\u00e9\u00e9", "z" * 200, "short"]
    unicode_ = ["\u00e9", "e\u0301", "\u65e5\u672c\u8a9e", "\U0001f600", "\U0010ffff", "\uffff", "\u00df", "ASCII"]
    binary = [b"", b"\x00", b"\xff\xff", b"\xff", b"a", b"ab", b"\x80" * 70, b"\xff" * 70]
    out = {
        "n": list(range(rows)),
        "bucket": [row // BUCKET_ROWS for row in range(rows)],
        "key": ["key-%05d" % (row * 7919 % 10007) for row in range(rows)],
    }

    def column(name, values, nulls=0.1):
        out[name] = [_pick(rng, values, nulls) for _ in range(rows)]

    for bits in (8, 16, 32, 64):
        column("i%d" % bits, _integers(bits, True))
        column("u%d" % bits, _integers(bits, False))
    column("f32", [_single(value) for value in floats])
    column("f64", floats + [float(value) for value in range(12)])
    # nothing but NaN on some pages, none on others
    out["nan"] = [float("nan") if row % 200 < 60 else row / 8.0 for row in range(rows)]
    column("flag", [True, False])
    column("word", words, 0.2)
    column("long", long)
    column("unicode", unicode_)
    column("raw", binary)
    column("fixed", [b"aaaa", b"aaab", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff"])
    column("category", ["red", "green", "blue", "ultraviolet"], 0.2)
    out["no_int"] = [None] * rows
    out["no_text"] = [None] * rows
    out["day"] = [None if row % 17 == 3 else DAY.date() + dt.timedelta(row // 60 - 5) for row in range(rows)]
    column("t_ms", [dt.time(hour, 59, 59, 999000) for hour in range(24)])
    column("t_us", [dt.time(hour, 0, 0, hour + 1) for hour in range(24)])
    out["ts_ms"] = [_stamp(row, 1000 * (row % 7)) for row in range(rows)]
    out["ts_us"] = [_stamp(row, row % 7) for row in range(rows)]
    out["ts_ns"] = [_stamp(row, row % 3) for row in range(rows)]
    out["ts_utc"] = [value and value.replace(tzinfo=UTC) for value in out["ts_us"]]
    column("dec9", [decimal.Decimal(value) / 4 for value in range(-9, 30)] + [decimal.Decimal("9999999.99")])
    column("dec18", [decimal.Decimal(value) / 16 for value in range(-9, 30)] + [decimal.Decimal("-99999999999999.9999")])
    with decimal.localcontext() as context:
        context.prec = 40
        column(
            "dec38",
            [decimal.Decimal(value) / 1024 for value in range(-9, 30)]
            + [decimal.Decimal("1234567890123456789012345678.0123456789"), decimal.Decimal("-1") * 10**27],
        )
    column("uuid", [uuid.UUID(int=value << 124 | value) for value in range(16)])
    return out


def _stamp(row, microseconds):
    return None if row % 13 == 5 else DAY + dt.timedelta(minutes=row // 10 * 7, microseconds=microseconds)


def nanoseconds(row):
    """What is added to ts_ns of that row."""
    return row % 5


def usable(columns, attempt):
    """The names of the columns that ``attempt(name)`` can write; of others it is told why not."""
    names = []
    for name in columns:
        try:
            attempt(name)
        except BaseException as error:  # a panic of Rust is no Exception
            _tell("column-" + name, error)
        else:
            names.append(name)
    return names


def nested(rows=ROWS):
    """The columns of `nested`: lists are lists, structs dicts, maps lists of pairs."""
    rng = random.Random(21)

    def maybe(value, nulls=0.15):
        return None if rng.random() < nulls else value

    def several(make):
        return [make() for _ in range(int(rng.random() * 5))]

    def number():
        return maybe(int(rng.random() * 50) - 5)

    def word():
        return maybe("word-%d" % int(rng.random() * 12))

    def point():
        return {"x": number(), "y": word()}

    return {
        "n": list(range(rows)),
        "numbers": [maybe(several(number)) for _ in range(rows)],
        "words": [maybe(several(word)) for _ in range(rows)],
        "deep": [maybe(several(lambda: maybe(several(number)))) for _ in range(rows)],
        "point": [maybe(point()) for _ in range(rows)],
        "points": [maybe(several(lambda: maybe(point()))) for _ in range(rows)],
        "box": [maybe({"name": word(), "sizes": maybe(several(number)), "at": maybe(point())}) for _ in range(rows)],
        "pairs": [maybe([("k%d" % at, number()) for at in range(int(rng.random() * 4))]) for _ in range(rows)],
    }


def run(name, version, folder, variants):
    """Write variants, given as (name, function of a path); one that raises is left out and told of."""
    print("writer %s %s" % (name, version))
    sys.stdout.flush()
    for variant, write in variants:
        path = os.path.join(folder, variant + ".parquet")
        try:
            write(path)
        except BaseException as error:  # whatever an old library raises for what it does not know
            if os.path.exists(path):
                os.remove(path)
            _tell(variant, error)


def _tell(what, error):
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    print("skipped %s: %s: %s" % (what, type(error).__name__, " ".join(str(error).split())[:200]))
    sys.stdout.flush()

"""Parts of VARIANT columns as typed values: their paths, their types, and how they are compared."""

from __future__ import annotations

import re
from typing import ClassVar, Final, TypeAlias

from asyncpq.errors import ExpressionError
from asyncpq.expressions import tree
from asyncpq.records import dataclass

Path: TypeAlias = tuple[str | int, ...]
"""The way to a part: names of an object's fields, positions in an array."""

# As Spark's VariantPathParser has it.
_SEGMENT: Final = re.compile(r"""\[(\d+)\]|\.([^.\[]+)|\['([^'?]+)'\]|\["([^"?]+)"\]""", re.ASCII)
_NAMES: Final = {
    "int8": ("tinyint", "byte"),
    "int16": ("smallint", "short"),
    "int32": ("int", "integer"),
    "int64": ("bigint", "long"),
    "float": ("float32", "real"),
    "double": ("float64",),
    "bool": ("boolean",),
    "string": (),
    "binary": (),
    "date": ("date32",),
    "timestamp": ("timestamp[us, tz=UTC]",),
    "timestamp_ntz": ("timestamp[us]",),
}
_TYPES: Final = {name: kind for kind, others in _NAMES.items() for name in (kind, *others)}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2})(?:, ?(\d{1,2}))?\)")
_MAX_DIGITS: Final = 38
_MAX_POSITION: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VariantTest(tree.DerivedTest):
    """A comparison with a part of a VARIANT column: the part is cast to ``type``, and ``test`` compares the result.

    As in Spark's ``try_variant_get``, the part is null where the VARIANT is null or lacks the part, and where the part
    cannot be cast.
    """

    operator: ClassVar[str] = "variant_get"
    column: str
    path: Path
    type: str  # a key of ``_NAMES``, or decimal(precision, scale)
    test: tree.Atom  # of a column that is named as the part is shown

    def _key(self) -> tuple[object, ...]:
        return (self.column, self.path, self.type, self.test)


def variant_path(text: object) -> Path:
    """Parse the path of a variant's part, such as ``$.a[0]['b c']``. Raises ExpressionError if ``text`` is not
    a path."""
    path: list[str | int] = []
    rest = text[1:] if isinstance(text, str) and text.startswith("$") else None
    while rest:
        match = _SEGMENT.match(rest)
        if match is None or (match[1] and int(match[1]) > _MAX_POSITION):
            break
        rest = rest[match.end() :]
        path.append(int(match[1]) if match[1] else match[2] or match[3] or match[4])
    if rest == "":
        return tuple(path)
    raise ExpressionError(f"{text!r} is not a path in a variant", hint="Write a path such as $.a, $.a[0] or $['a b'].")


def variant_type(name: object) -> str:
    """Return asyncpq's name for a type to which parts of variants can be cast. ``name`` is that name, or Spark's name.
    Raises ExpressionError if it is neither."""
    kind = _TYPES.get(name) if isinstance(name, str) else None
    decimal = _DECIMAL.fullmatch(name) if isinstance(name, str) else None
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if 0 < precision <= _MAX_DIGITS and scale <= precision:
            kind = f"decimal({precision}, {scale})"
    if kind is None:
        raise ExpressionError(
            f"{name!r} is not a type of a variant's part", hint=f"Use one of {', '.join(_NAMES)}, decimal(p, s)."
        )
    return kind

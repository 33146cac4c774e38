"""Records that cost little: ``dataclass``, ``NamedTuple``, and sequences that make their records when they are read.

The decorator is for classes with slots, and creates a class in a twentieth of the standard library's time.

The standard one writes and compiles each method of each class, 0.3 ms a class: for 90 classes, 28 of the 170 ms from
the start of a process to its first row. Here only ``__init__`` is compiled, at its first use, and the standard one is
called when :mod:`dataclasses` is asked for fields. Type checkers see the standard one, which also says what the
arguments mean. ``order``, ``InitVar`` and ``KW_ONLY`` are not supported.

The standard ``NamedTuple`` compiles ``__new__`` and the annotation of each field, which takes five sixths of the time
to create a class. Here classes of as many fields share one compiled ``__new__``, in which only the names differ, and
annotations stay texts, so modules need ``from __future__ import annotations``.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, overload

MOST_KEPT: Final = 1000  # rows of which all records are made at once and kept

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from typing import NamedTuple as NamedTuple
else:

    def dataclass(
        *,
        slots: bool,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,
        kw_only: bool = False,
        weakref_slot: bool = False,
    ) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that works like :func:`dataclasses.dataclass`. ``slots`` must be True."""

        def make(cls: type[T]) -> type[T]:
            fields: dict[str, dataclasses.Field[Any]] = {}  # inherited ones, then the class's own
            for base in reversed(cls.__mro__[1:]):
                fields |= vars(base).get("__record_fields__", {})
            members = dict(vars(cls))
            for name, type_ in members.get("__annotations__", {}).items():
                if str(type_).removeprefix("typing.").startswith("ClassVar"):
                    continue
                default = members.pop(name, dataclasses.MISSING)
                if not isinstance(default, dataclasses.Field):
                    default = dataclasses.field(default=default)
                default.name, default.type = name, type_
                default.kw_only = kw_only if default.kw_only is dataclasses.MISSING else default.kw_only
                fields[name] = default
            inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
            slots = [*fields, *(["__weakref__"] if weakref_slot else [])]
            positional = [name for name, field in fields.items() if field.init and not field.kw_only]
            members |= {
                "__doc__": cls.__doc__ or cls.__name__,
                "__qualname__": cls.__qualname__,
                "__slots__": tuple([name for name in slots if name not in inherited]),
                "__match_args__": tuple(positional),
                "__record_fields__": fields,
                "__dataclass_fields__": _AtFirstUse(lambda _: _standard(fields, frozen).__dataclass_fields__),
                "__dataclass_params__": _AtFirstUse(lambda _: _standard(fields, frozen).__dataclass_params__),
                "__init__": _AtFirstUse(partial(_initializer, fields=fields.values(), frozen=frozen)),
                "__replace__": dataclasses.replace,  # for copy.replace of Python 3.13
            }
            methods = _FROZEN if frozen else {}
            if eq:
                methods = methods | _comparison([name for name, field in fields.items() if field.compare], frozen)
            if repr:
                methods = methods | {
                    "__repr__": _representation([name for name, field in fields.items() if field.repr])
                }
            members |= {name: method for name, method in methods.items() if members.get(name) is None}
            members.pop("__dict__", None)
            members.pop("__weakref__", None)
            return type(cls)(cls.__name__, cls.__bases__, members)

        return make

    class _NamedTupleMaker(type):
        """Makes the classes that have ``NamedTuple`` as a base: tuples, not instances of this class."""

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, namespace)
            if len(bases) > 1:
                raise TypeError(f"{name} has other bases than NamedTuple, which only the standard one allows")
            types = namespace.get("__annotations__", {})
            fields = tuple(types)
            defaults = {field: namespace.pop(field) for field in fields if field in namespace}
            methods, getters, new = _of_length(len(fields))
            renamed = new.__code__.replace(co_varnames=("_cls", *fields))
            made = FunctionType(renamed, new.__globals__, "__new__", tuple(defaults.values()))
            made.__qualname__, made.__annotations__ = f"{name}.__new__", types
            members = {"__doc__": f"{name}({', '.join(fields)})", "__slots__": (), "__new__": made, **methods}
            members |= {"_fields": fields, "__match_args__": fields, "_field_defaults": defaults}
            return type(name, (tuple,), members | dict(zip(fields, getters, strict=True)) | namespace)

    @cache
    def _of_length(count: int) -> tuple[dict[str, Any], list[Any], FunctionType]:
        """Return what all named tuples of ``count`` fields share: methods, the descriptors of the fields, and
        ``__new__``, which has other names of parameters in each class."""
        made = namedtuple("made", [f"field_{number}" for number in range(count)])
        members = vars(made)
        methods = {name: members[name] for name in ("_make", "_asdict", "__getnewargs__")}
        methods |= {"_replace": _replace, "__replace__": _replace, "__repr__": _represent}
        return methods, [members[name] for name in made._fields], made.__new__

    def _replace(self: Any, /, **changes: object) -> Any:
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise TypeError(f"{type(self).__name__} has no fields {list(changes)}")
        return made

    def _represent(self: Any) -> str:
        shown = ", ".join([f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)])
        return f"{self.__class__.__name__}({shown})"

    class NamedTuple(metaclass=_NamedTupleMaker):
        """Do what :class:`typing.NamedTuple` does as the only base of a class."""


class _AtFirstUse:
    """An attribute of a class that ``make`` makes of the class at its first use: a process makes no record of most
    classes that it loads."""

    __slots__ = ("_make", "_name", "_owner")

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, record: object, cls: type | None = None) -> Any:
        made = self._make(self._owner)
        setattr(self._owner, self._name, made)
        return partial(made, record) if record is not None and callable(made) else made


class _Factory:
    """The default, in a signature, of what a factory makes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


def _standard(fields: dict[str, dataclasses.Field[Any]], frozen: bool) -> Any:
    """Return a standard dataclass with these fields, for the attributes that :mod:`dataclasses` uses, also where a
    standard dataclass has the record as its base."""
    types = {name: field.type for name, field in fields.items()}
    made = type("made", (), {**fields, "__annotations__": types, "__doc__": "without one, it would take 2 ms"})
    return dataclasses.dataclass(init=False, eq=False, repr=False, match_args=False, frozen=frozen)(made)


def _initializer(cls: type, *, fields: Collection[dataclasses.Field[Any]], frozen: bool) -> Callable[..., None]:
    """Return an ``__init__`` for the class. If ``frozen``, attributes cannot be set, so it sets the slots directly,
    which is as fast."""
    names: dict[str, Any] = {"MISSING": _FACTORY}
    positional, keywords, lines = ["self"], ["*"], []
    for field in fields:
        name = field.name
        parameter = value = name
        if field.default is not dataclasses.MISSING:
            names[f"default_{name}"] = field.default
            parameter, value = f"{name}=default_{name}", name if field.init else f"default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"factory_{name}"] = field.default_factory
            parameter = f"{name}=MISSING"
            value = f"factory_{name}()" + (f" if {name} is MISSING else {name}" if field.init else "")
        elif not field.init:
            continue
        if field.init:
            (keywords if field.kw_only else positional).append(parameter)
        if frozen:
            names[f"set_{name}"] = getattr(cls, name).__set__
        lines.append(f"  set_{name}(self, {value})\n" if frozen else f"  self.{name} = {value}\n")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()\n")
    parameters = ", ".join([*positional, *(keywords if len(keywords) > 1 else ())])
    source = (
        f"def make({', '.join(names)}):\n def __init__({parameters}):\n{''.join(lines) or '  pass'}\n return __init__"
    )
    made: dict[str, Any] = {}
    exec(source, {}, made)  # of the names of fields alone
    initializer: Callable[..., None] = made["make"](**names)
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    initializer.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return initializer


def _comparison(names: list[str], hashed: bool) -> dict[str, Any]:
    """Return the methods ``__eq__`` and, if ``hashed``, ``__hash__``, which use the values of the fields ``names``."""
    values = _values(names)

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if hashed else None}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that takes an object and returns the values of its attributes ``names`` as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


def _representation(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: object) -> str:  # noqa: N807
        shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({shown})"

    return __repr__


def _refuse_to_set(self: object, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN = {
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _state,  # the default would set the attributes of a copy
    "__setstate__": _set_state,
}


class LazyRecords(Sequence[T_co]):
    """A sequence of the records ``make(row)``, each made whenever it is read; of at most 1,000 rows, all are made at
    once and kept. ``rows`` must not change.

    The records of a lake of 100,000 files would be some 100,000 objects, which the garbage collector walks over in each
    full collection: that takes half of a read's time, and stops the event loop for as long. It ignores a tuple of texts
    and numbers once it has seen it, so rows are such tuples. Two sequences are equal if their records are.
    """

    __slots__ = ("_made", "_make", "rows")

    def __init__(self, rows: Sequence[Any], make: Callable[[Any], T_co]) -> None:
        self.rows: Sequence[Any] = rows
        self._make = make
        self._made: list[T_co] | None = list(map(make, rows)) if len(rows) <= MOST_KEPT else None

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> T_co: ...

    @overload
    def __getitem__(self, index: slice) -> LazyRecords[T_co]: ...

    def __getitem__(self, index: int | slice) -> T_co | LazyRecords[T_co]:
        if isinstance(index, slice):
            return LazyRecords(self.rows[index], self._make)
        return self._make(self.rows[index]) if self._made is None else self._made[index]

    def __iter__(self) -> Iterator[T_co]:
        return map(self._make, self.rows) if self._made is None else iter(self._made)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyRecords) and other._make == self._make:
            return bool(self.rows == other.rows)
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} records>"

"""Classes of ``asyncpq.records`` behave as those of the standard ``dataclass`` and ``NamedTuple``."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
import typing
from collections.abc import Callable
from dataclasses import field
from typing import Any, Generic, TypeVar

import pytest

from asyncpq import records
from asyncpq.records import LazyRecords

Decorator = Callable[..., Callable[[type], type]]


def _plain(dataclass: Decorator) -> type:
    @dataclass(slots=True)
    class Plain:
        count: typing.ClassVar[int] = 0
        number: int
        text: str = "a"
        items: list[int] = field(default_factory=list)
        hidden: int = field(default=3, repr=False, compare=False)
        inner: int = field(default=4, init=False)
        made: list[int] = field(default_factory=list, init=False)

    return Plain


def _frozen(dataclass: Decorator) -> type:
    @dataclass(frozen=True, slots=True)
    class Frozen:
        number: int
        text: str = "a"
        items: tuple[int, ...] = field(default_factory=tuple)

        def __post_init__(self) -> None:
            if self.number > 1000:
                raise ValueError(self.number)

    return Frozen


def _keywords(dataclass: Decorator) -> type:
    @dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
    class Keywords:
        number: int
        text: str = "a"

    return Keywords


def _mixed(dataclass: Decorator) -> type:
    @dataclass(slots=True, eq=False)
    class Mixed:
        late: bool = field(kw_only=True)
        number: int
        text: str = field(default="a", kw_only=True)
        unset: int = field(init=False)

        def __repr__(self) -> str:
            return "mixed"

    return Mixed


def _inherited(dataclass: Decorator) -> type:
    @dataclass(frozen=True, slots=True)
    class Base:
        number: int

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True, slots=True, repr=False)
    class Inherited(Base):
        text: str = "a"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 8

    return Inherited


def _single(dataclass: Decorator) -> type:
    @dataclass(frozen=True, slots=True)
    class Single:
        number: int

    return Single


SHAPES = (_plain, _frozen, _keywords, _mixed, _inherited, _single)
ARGUMENTS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}),
    ((1,), {}),
    ((2,), {}),
    ((1, "b"), {}),
    ((1, "b", [4]), {}),
    ((1, "b", (4,)), {}),
    ((1, "a", [], 9), {}),
    ((5000,), {}),
    ((), {"number": 1}),
    ((1,), {"text": "c"}),
    ((1,), {"late": True}),
    ((1,), {"late": True, "text": "c"}),
    ((1, 2, 3, 4, 5), {}),
    ((1,), {"unknown": 1}),
)


def _outcome(work: Callable[..., object], *arguments: Any, **keywords: Any) -> Any:
    try:
        return work(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001
        return type(error)


def _values(record: Any) -> list[object]:
    return [getattr(record, item.name, None) for item in dataclasses.fields(record)]


@pytest.mark.parametrize("shape", SHAPES)
def test_records_behave_as_standard_dataclasses(shape: Callable[[Decorator], Any]) -> None:
    ours, theirs = shape(records.dataclass), shape(dataclasses.dataclass)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    assert ours.__match_args__ == theirs.__match_args__
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    made = [tuple([_outcome(cls, *args, **names) for cls in (ours, theirs)]) for args, names in ARGUMENTS]
    assert all(mine is other for mine, other in made if isinstance(mine, type) or isinstance(other, type))
    pairs = [(mine, other) for mine, other in made if not isinstance(mine, type)]
    assert pairs
    for (first, left), (second, right) in itertools.product(pairs, pairs):
        assert (first == second) == (left == right)
        assert (first == right) == (left == second)
        if ours.__hash__ is not object.__hash__:
            assert _outcome(hash, first) == _outcome(hash, left)
    for mine, other in pairs:
        assert not hasattr(mine, "__dict__")
        for change in (copy.copy, copy.deepcopy, lambda record: dataclasses.replace(record, number=7)):
            changed, expected = _outcome(change, mine), _outcome(change, other)
            assert repr(changed) == repr(expected) or repr(changed) == object.__repr__(changed)
            assert isinstance(expected, type) or _values(changed) == _values(expected)
        assert _outcome(setattr, mine, "number", 1) == _outcome(setattr, other, "number", 1)
        assert _outcome(delattr, mine, "number") == _outcome(delattr, other, "number")
        assert _values(mine) == _values(other)


def test_an_initializer_is_compiled_when_the_first_record_is_made() -> None:
    """Compiling takes half of the time of making the class, and a process makes no record of most classes it loads."""
    made: Any = _plain(records.dataclass)
    assert not inspect.isfunction(made.__dict__["__init__"])
    assert made(1, text="b") == made(1, "b")
    assert inspect.isfunction(made.__dict__["__init__"])
    inherited: Any = type("Inherited", (_plain(records.dataclass),), {})
    assert inherited(1, "b").text == "b"


@records.dataclass(frozen=True, slots=True)
class Sent:
    number: int
    text: str = "a"


def test_frozen_records_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(3, "b"))) == Sent(3, "b")


def test_records_are_replaced_as_standard_dataclasses_are() -> None:
    """``copy.replace`` of Python 3.13 calls this method."""
    made: Any = Sent(3, "b")
    assert made.__replace__(number=4) == Sent(4, "b")
    with pytest.raises(TypeError):
        made.__replace__(unknown=1)


def test_standard_dataclasses_inherit_from_records() -> None:
    frozen = dataclasses.make_dataclass("frozen", [("more", int, 5)], bases=(Sent,), frozen=True)
    assert frozen(3, more=6) == frozen(3, "a", 6)
    with pytest.raises(TypeError, match="frozen"):
        dataclasses.make_dataclass("changeable", [("more", int, 5)], bases=(Sent,))


T = TypeVar("T")


class Point(records.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    names: tuple[str, ...] = ("b",)

    @property
    def total(self) -> int:
        return self.x + self.y

    @classmethod
    def origin(cls) -> Point:
        return cls(0, 0)


class StandardPoint(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    names: tuple[str, ...] = ("b",)


def test_named_tuples_behave_as_standard_ones() -> None:
    assert Point.__mro__ == (Point, tuple, object)
    assert (Point.__module__, Point.__qualname__, Point.__doc__) == (__name__, "Point", "A point.")
    ours, theirs = (inspect.signature(cls).parameters.values() for cls in (Point, StandardPoint))
    assert [(item.name, item.default) for item in ours] == [(item.name, item.default) for item in theirs]
    for name in ("_fields", "_field_defaults", "__match_args__", "__slots__"):
        assert getattr(Point, name) == getattr(StandardPoint, name)
    assert typing.get_type_hints(Point) == typing.get_type_hints(StandardPoint)
    point = Point(1)
    assert tuple(point) == tuple(StandardPoint(1)) == (1, 2, ("b",))
    assert repr(StandardPoint(1)) == f"Standard{point!r}"
    assert (point.total, Point.origin()._asdict()) == (3, {"x": 0, "y": 0, "names": ("b",)})
    assert point._replace(y=5) == Point(1, 5)
    assert type(pickle.loads(pickle.dumps(point))) is type(copy.deepcopy(point)) is Point
    assert _outcome(Point) is _outcome(StandardPoint) is TypeError
    assert _outcome(setattr, point, "x", 2) is AttributeError
    assert not hasattr(point, "__dict__")


def test_named_tuples_with_other_bases_are_refused() -> None:
    with pytest.raises(TypeError, match="other bases"):

        class Pair(records.NamedTuple, Generic[T]):
            left: T


@pytest.mark.parametrize("few", [0, 10])
def test_lazy_records_are_a_sequence(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_KEPT", few)
    lazy = LazyRecords([1, 2, 3], str)
    assert list(lazy) == ["1", "2", "3"]
    assert (lazy[0], lazy[-1], len(lazy), "2" in lazy) == ("1", "3", 3, True)
    assert list(lazy[1:]) == ["2", "3"]
    assert lazy == LazyRecords((1, 2, 3), lambda row: str(row))
    assert lazy == ["1", "2", "3"] == lazy
    assert lazy != ["1", "2"]
    assert lazy != LazyRecords([1, 2, 4], str)
    assert lazy != "123"


def test_many_lazy_records_are_no_objects() -> None:
    made: list[int] = []
    lazy = LazyRecords(range(100_000), made.append)
    assert not made
    assert lazy[5] is None
    assert made == [5]

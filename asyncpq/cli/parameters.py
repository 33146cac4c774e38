"""The parameters of commands, and the reader of complete command lines.

Commands declare their parameters with :class:`Option` and :class:`Argument`. Parameters that belong together are the
fields of a dataclass, which commands take whole. A command line that is complete and right is read here. For all
others, which ask for help or for completion or are wrong, ``commands.py`` makes parameters of typer, which takes longer
to load than most commands take to run.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from importlib import import_module
from types import NoneType
from typing import Annotated, Any, Final, TypedDict, TypeVar, Unpack, get_args, get_origin, get_type_hints

from asyncpq.cli.command_table import PANELS

F = TypeVar("F", bound=Callable[..., Any])
_MOST_DIGITS: Final = 20  # of a whole number; Python converts no text of very many
_MODULES: Final = {name: module for commands in PANELS.values() for name, module, _ in commands}


class TyperSettings(TypedDict, total=False):
    """Settings of a command's parameter, by the names of typer."""

    metavar: str
    help: str
    show_default: bool
    min: int
    dir_okay: bool
    rich_help_panel: str


class Argument:
    """A parameter of a command that has a place, such as the url."""

    def __init__(self, **settings: Unpack[TyperSettings]) -> None:
        self.settings = settings


class Option:
    """A parameter of a command that has a name, such as ``--where``. ``completes`` returns the texts to which a shell
    may complete a value, for the url of the command line and the text so far."""

    def __init__(
        self,
        *names: str,
        completes: Callable[[str | None, str], list[str]] | None = None,
        **settings: Unpack[TyperSettings],
    ) -> None:
        self.names = names
        self.completes = completes
        self.settings = settings


class Group:
    """Commands that share a first word, such as ``index``."""

    def __init__(self, name: str, about: str) -> None:
        self.name = name
        self.about = about
        self.commands: dict[str, Callable[..., None]] = {}

    def command(self, function: F) -> F:
        """Register a function as the command of its name."""
        self.commands[function.__name__] = function
        return function


def load(name: str) -> Callable[..., None] | Group:
    """Import the module of a command of the table; return the command, or the group of that name."""
    _load_pyarrow_without_numpy()
    module = import_module(f"asyncpq.cli.{_MODULES[name]}")
    command: Callable[..., None] | Group = getattr(module, "GROUP", None) or getattr(module, name)
    return command


def _load_pyarrow_without_numpy() -> None:
    """Load pyarrow as it is where numpy is not installed, unless one of the two is loaded.

    pyarrow loads numpy for conversions that no command makes, and that takes longer than all else of a short command.
    A later import of numpy, such as that of the decoder of ALP, loads it.
    """
    if "numpy" in sys.modules or "pyarrow" in sys.modules:
        return
    sys.modules["numpy"] = None  # type: ignore[assignment]  # an import of it now raises ModuleNotFoundError
    try:
        from asyncpq import File  # noqa: F401  # with the parts of pyarrow that its reads need
    finally:
        del sys.modules["numpy"]


def signature_of(command: Callable[..., None]) -> inspect.Signature:
    """Return the signature of a command, with evaluated annotations."""
    return inspect.signature(command, eval_str=True)


def spread(parameters: Iterable[inspect.Parameter]) -> inspect.Signature:
    """Return a signature of keywords in which a parameter of a dataclass is replaced by the fields of the class."""
    keywords: list[inspect.Parameter] = []
    for parameter in parameters:
        group = parameter.annotation
        if not is_dataclass(group):
            keywords.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        keywords += [
            inspect.Parameter(
                field.name,
                parameter.KEYWORD_ONLY,
                default=parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)
        ]
    return inspect.Signature(keywords)


def option_names(signature: inspect.Signature) -> dict[str, str]:
    """Return the options of a command, such as ``--sort-by``, by the names of its parameters."""
    declared = {name: get_args(parameter.annotation)[-1] for name, parameter in signature.parameters.items()}
    return {name: max(one.names, key=len) for name, one in declared.items() if isinstance(one, Option)}


def gathered(parameters: Iterable[inspect.Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for ``parameters`` from those that fit their :func:`spread` signature."""
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        group = parameter.annotation
        if is_dataclass(group) and isinstance(group, type):
            names = (field.name for field in fields(group))
            arguments[parameter.name] = group(**{name: given[name] for name in names if name in given})
        elif parameter.name in given:
            arguments[parameter.name] = given[parameter.name]
    return arguments


class _UnclearError(Exception):
    """The command line is not complete, not right, or of a form that is left to typer."""


def complete_call(words: Sequence[str]) -> Callable[[], None] | None:
    """Return the call of the command that a complete and right command line names, bound to its arguments; None for a
    command line that typer must read."""
    try:
        if not words or words[0] not in _MODULES:
            return None
        command, words = load(words[0]), words[1:]
        if isinstance(command, Group):
            if not words or words[0] not in command.commands:
                return None
            command, words = command.commands[words[0]], words[1:]
        return partial(command, **_given(signature_of(command), words))
    except _UnclearError:
        return None


def _given(signature: inspect.Signature, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of the parameters that the words of a command line give."""
    options: dict[str, tuple[str, Any]] = {}
    places: list[tuple[str, Any]] = []
    for name, parameter in signature.parameters.items():
        if get_origin(parameter.annotation) is not Annotated:
            raise _UnclearError
        type_, declared = get_args(parameter.annotation)
        if isinstance(declared, Option):
            options.update((option, (name, type_)) for option in declared.names)
        else:
            places.append((name, type_))
    given: dict[str, Any] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            rest.append(word)
            continue
        option, equals, value = word.partition("=")
        if option not in options or (equals and not option.startswith("--")):
            raise _UnclearError
        name, type_ = options[option]
        if type_ is bool:
            if equals:
                raise _UnclearError
            given[name] = True
        else:
            _take(given, name, type_, value if equals else _next(left), signature)
    for number, (name, type_) in enumerate(places):
        several = get_origin(type_) is list and number == len(places) - 1
        for word in rest if several else rest[:1]:
            _take(given, name, type_, word, signature)
        rest = [] if several else rest[1:]
    if rest or any(one.default is one.empty and name not in given for name, one in signature.parameters.items()):
        raise _UnclearError
    return given


def _next(words: Iterator[str]) -> str:
    word = next(words, "-")
    if word.startswith("-"):  # an option whose value is missing, or a value that looks like one
        raise _UnclearError
    return word


def _take(given: dict[str, Any], name: str, type_: Any, text: str, signature: inspect.Signature) -> None:
    """Add the value that a text has as a value of the type."""
    kinds = [kind for kind in get_args(type_) if kind is not NoneType]
    if get_origin(type_) is list:
        given.setdefault(name, []).append(_value(kinds[0], text))
    elif len(kinds) == 1:  # of a union with None
        _take(given, name, kinds[0], text, signature)
    else:
        value = _value(type_, text)
        _, declared = get_args(signature.parameters[name].annotation)
        if isinstance(value, int) and value < declared.settings.get("min", 0):
            raise _UnclearError
        given[name] = value


def _value(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    if kind is int and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    if isinstance(kind, enum.EnumMeta) and text in kind._value2member_map_:
        return kind(text)
    raise _UnclearError

"""The functions of ``pyarrow.compute``, which is imported only for the functions that need it.

The import creates a documented Python function for each of Arrow's 280 kernels, which takes 20 ms: a sixth of the time
from a process's start to its first row. A lookup uses three kernels. This module calls Arrow's kernel directly if the
call has arrays only (the kernel then has its default options), or if the kernel is in :data:`_OPTIONS`. For all other
calls and names it imports ``pyarrow.compute``. A kernel that is called without options takes no ``Expression``; combine
expressions with operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncpq.storage.threads import import_whole

try:
    from pyarrow._compute import (
        CastOptions,
        Expression,
        MatchSubstringOptions,
        NullOptions,
        SearchSortedOptions,
        SetLookupOptions,
        SliceOptions,
        get_function,
    )
except ImportError:  # pragma: no cover  # their public place, should a later pyarrow move them
    from pyarrow.compute import (
        CastOptions,
        Expression,
        MatchSubstringOptions,
        NullOptions,
        SearchSortedOptions,
        SetLookupOptions,
        SliceOptions,
        get_function,
    )

__all__ = ["Expression", "cast"]


def cast(array: Any, type_: Any) -> Any:
    """Cast ``array`` to ``type_``; raise ``pa.ArrowInvalid`` if a value would be changed."""
    return _CAST.call([array], CastOptions.safe(type_))


_CAST = get_function("cast")
_OPTIONS = {  # of the kernels that are called with keyword options
    "binary_slice": SliceOptions,
    "index_in": SetLookupOptions,
    "is_in": SetLookupOptions,
    "is_null": NullOptions,
    "match_like": MatchSubstringOptions,
    "match_substring": MatchSubstringOptions,
    "match_substring_regex": MatchSubstringOptions,
    "search_sorted": SearchSortedOptions,
    "starts_with": MatchSubstringOptions,
}


def kernel(name: str) -> Callable[[Sequence[Any]], Any]:
    """Return the kernel ``name`` as a function of a list of arrays. Compared to calling the kernel by name, this saves
    a Python call."""
    call: Callable[[Sequence[Any]], Any] = get_function(name).call
    return call


def __getattr__(name: str) -> Any:
    """Return the function or class ``name`` of ``pyarrow.compute``."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        function = get_function(name.rstrip("_"))
    except KeyError:
        return getattr(import_whole("pyarrow.compute"), name)
    arity, call, options_of = function.arity, function.call, _OPTIONS.get(name)

    def with_options(*arrays: Any, **options: Any) -> Any:
        if len(arrays) == arity and not options:
            return call(arrays)
        if len(arrays) == arity and options_of is not None and not isinstance(arrays[0], Expression):
            return call(arrays, options_of(**options))
        return getattr(import_whole("pyarrow.compute"), name)(*arrays, **options)

    globals()[name] = with_options
    return with_options

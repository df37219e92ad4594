"""What a callable is underneath: a function, a method of an object, or what a partial calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast


def own_function(function: Any) -> Any:
    """The function that a call runs first: of a partial the function, of an object with ``__call__`` the method."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function if inspect.isroutine(function) or inspect.isclass(function) else function.__call__


def is_async(function: Callable[..., Any]) -> bool:
    """A call gives something to await or to iterate over; behind a plain decorator an async function stays one."""
    own = own_function(function)
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in (own, inspect.unwrap(own))
    )


def takes(function: Callable[..., Any], count: int) -> bool:
    """It can be called with so many arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return True
    return True


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)

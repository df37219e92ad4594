"""What a callable is underneath: a function, a method of an object, or what a partial calls."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

from eventbus.errors import ConfigError


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


def hints_of(function: Callable[..., Any], frame: FrameType | None, where: str) -> dict[str, Any]:
    """The annotations of a function's parameters, whole; ``frame``: where types that are local to a function are found.

    Raises ConfigError for a name that nothing has; ``where`` begins its text.
    """
    try:
        local = {**frame.f_globals, **frame.f_locals} if frame is not None else None
        hints = typing.get_type_hints(function, localns=local, include_extras=True)
    except NameError as error:
        raise ConfigError(f"{where}: annotation {error.name!r} is not known where the handler is defined") from error
    except TypeError:
        return {}
    hints.pop("return", None)
    return hints

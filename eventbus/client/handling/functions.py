"""Inspect callables: find the function below decorators, methods and partials, and its annotations."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, Literal, cast

from eventbus.errors import ConfigError
from eventbus.suggest import nearest


def own_function(function: Any) -> Any:
    """The function that a call runs first: of a partial the function, of an object with ``__call__`` the method."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function if inspect.isroutine(function) or inspect.isclass(function) else function.__call__


def check_function(function: Any, decorator: str) -> None:
    """Raises ConfigError for what a ``decorator`` cannot stand above; its text is what was written."""
    if callable(function) and not inspect.isclass(function):
        return
    if inspect.isclass(function):
        fix = f"{function.__name__} is a class: decorate a function, or hand it an object with __call__: "
        fix += f"{decorator}({function.__name__}(...))"
    elif function is None:
        fix = "it got None: a decorator below it does not return the function"
    elif inspect.isawaitable(function):
        fix = f"it got {function!r}, which is a call: leave out the parentheses after the function"
    elif isinstance(function, (classmethod, property)):
        fix = (
            f"it got a {type(cast(Any, function)).__name__}: decorate the method of an object: {decorator}(shop.handle)"
        )
    else:
        fix = f"it got {function!r}"
    raise ConfigError(f"{decorator} decorates a function: {fix}")


def is_async(function: Callable[..., Any]) -> bool:
    """True if a call returns an awaitable or an async iterator, also below a decorator that is a plain function."""
    own = own_function(function)
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in (own, inspect.unwrap(own))
    )


Opening = Literal["", "await ", "with ", "async with "]
"""How the value of a call is obtained."""

_CONTEXT = contextmanager(own_function).__code__
_ASYNC_CONTEXT = asynccontextmanager(own_function).__code__
"""The code that every function decorated with `contextlib.asynccontextmanager` shares."""


def opening_of(function: Callable[..., Any]) -> tuple[Opening, Callable[..., Any]]:
    """Return how the value of a call is obtained, and the function to call for it.

    A generator becomes a context manager, unless `contextlib` has made it one already. All of this is also found below
    decorators that are plain functions: called as a plain function, a generator would never run.
    """
    own = own_function(function)
    inner: Any = inspect.unwrap(own, stop=lambda one: getattr(one, "__code__", None) in (_CONTEXT, _ASYNC_CONTEXT))
    code, functions = getattr(inner, "__code__", None), (own, inner)
    if code is _CONTEXT:
        return "with ", function
    if code is _ASYNC_CONTEXT:
        return "async with ", function
    if any(map(inspect.isasyncgenfunction, functions)):
        return "async with ", asynccontextmanager(function)
    if any(map(inspect.iscoroutinefunction, functions)):
        return "await ", function
    return ("with ", contextmanager(function)) if any(map(inspect.isgeneratorfunction, functions)) else ("", function)


def takes(function: Callable[..., Any], count: int) -> bool:
    """True if the function's signature, where it is known, allows a call with ``count`` positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return True
    return True


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


RAW_RECORD = (
    "a handler's record holds the stored bytes, ConsumerRecord[bytes | None, bytes | None]. For the value as an Order "
    "take both, (order: Order, record: ConsumerRecord)"
)


def _reason(error: Exception) -> str:
    if "ConsumerRecord" in str(error) and "arguments for" in str(error):
        return f"a ConsumerRecord has two types, of its key and its value; {RAW_RECORD}"
    return error.msg if isinstance(error, SyntaxError) else str(error)


def hints_of(function: Callable[..., Any], frame: FrameType | None, where: str) -> dict[str, Any]:
    """Return the evaluated annotations of a function's parameters. Types local to a function are found in ``frame``.

    Raises ConfigError for an unknown name or an annotation that is not a type; ``where`` begins its text.
    """
    known = {**frame.f_globals, **frame.f_locals} if frame is not None else None
    if not hasattr(function, "__annotations__"):  # a builtin has no annotations
        return {}
    try:
        hints = typing.get_type_hints(function, localns=known, include_extras=True)
    except NameError as error:
        names = {*getattr(function, "__globals__", ()), *(known or ())}
        raise ConfigError(
            f"{where}: annotation {error.name!r} is not known where the handler is defined"
            f"{nearest(str(error.name), names)}; import it, or define it above. What stands under `if TYPE_CHECKING:` "
            "is not there when the program runs"
        ) from error
    except (TypeError, SyntaxError, AttributeError) as error:
        raise ConfigError(f"{where}: an annotation is not a type: {_reason(error)}") from error
    hints.pop("return", None)
    return hints

"""Validate options. Each function raises ConfigError that names the option as the user wrote it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any, cast

from dlq.signals import FailureSignal
from dlq.state import STATE_TOPIC
from eventbus.errors import ConfigError

_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")

ErrorClass = type[BaseException]


def whole(what: str, value: Any, least: int) -> int:
    """Return a whole number of at least ``least``. The message appends "=" and the value to ``what``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{what}={value!r}): a whole number, {least} or more")
    return value


def share(what: str, value: Any, meaning: str) -> float:
    """Return a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{what}{value!r}): {meaning}")
    return float(value)


def is_topic(name: Any) -> bool:
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None


def topic(what: str, name: Any, before: str = "") -> str:
    if not is_topic(name):
        raise ConfigError(f"{what}: {before}a topic's name, 1 to 249 of a-z A-Z 0-9 . _ -")
    if name == STATE_TOPIC:
        raise ConfigError(f"{what}: this topic keeps the states of dead letters; name another topic")
    return name


def function(what: str, value: Any, signature: str) -> Any:
    """Return a synchronous callable that accepts ``signature``, such as "(attempt, error)"."""
    if not callable(value):
        raise ConfigError(f"{what}: a function {signature}")
    if isinstance(value, type):
        raise ConfigError(f"{what}: the class; an object of it, or a function {signature}")
    if any(map(inspect.iscoroutinefunction, (value, getattr(value, "__call__", None)))):  # noqa: B004 - not "is it callable"
        raise ConfigError(f"{what}: an async function; it is asked at once, so it is a plain function {signature}")
    try:
        inspect.signature(value).bind(*signature.split(","))
    except TypeError:
        raise ConfigError(f"{what}: takes other arguments; it is called as {signature}") from None
    except ValueError:  # a builtin without a signature
        pass
    return value


def error_classes(what: str, **lists: Any) -> dict[str, tuple[ErrorClass, ...]]:
    """Return the error classes of each option. No class may be in two of them."""
    result: dict[str, tuple[ErrorClass, ...]] = {}
    home: dict[ErrorClass, str] = {}
    for name, given in lists.items():
        result[name] = tuple(_error_class(f"{what}({name}", one) for one in _listed(f"{what}({name}", given))
        for cls in result[name]:
            if (other := home.setdefault(cls, name)) != name:
                raise ConfigError(f"{what}: {cls.__name__} is in {other}= and in {name}=: leave it in one of them")
    return result


def _listed(what: str, given: Any) -> Collection[Any]:
    if isinstance(given, type):
        raise ConfigError(f"{what}={given.__name__}): a list of error classes, [{given.__name__}]")
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise ConfigError(f"{what}={given!r}): a list of error classes, [ValueError]")
    return cast("Collection[Any]", given)


def _error_class(what: str, cls: Any) -> ErrorClass:
    if not isinstance(cls, type) or not issubclass(cls, Exception):
        raise ConfigError(f"{what}=[{shown(cls)}]): classes of errors (Exception), [ValueError]")
    if issubclass(cls, FailureSignal):
        raise ConfigError(f"{what}=[{cls.__name__}]): what is raised as {cls.__name__} says itself what becomes of it")
    return cls


def shown(value: Any) -> str:
    """Return a value roughly as the user's program spells it."""
    return value.__name__ if inspect.isroutine(value) or isinstance(value, type) else f"{value!r:.200}"

"""A mirror's logs that are cut off at a step: as if its process had been killed there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from eventbus.backends.base import Backend


class Killed(Exception):
    """Nothing reaches the log from here on."""


class Life:
    """Counts the steps of one process, and ends it at one of them."""

    def __init__(self, last_step: int | None = None) -> None:
        self.steps = 0
        self._last_step = last_step

    def step(self) -> None:
        self.steps += 1
        if self._last_step is not None and self.steps >= self._last_step:
            raise Killed


_UNTOUCHED = frozenset({"run", "start", "give_up"})
_CLIENTS = frozenset({"producer", "consumer"})
_PUTS = frozenset({"appender", "adder"})


class Dying:
    """Around a `Backend`, and around its clients: a step before each call, and one after those that wait."""

    def __init__(self, inner: Any, life: Life) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_bus_run", life)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __getattr__(self, name: str) -> Any:
        inner: Any = object.__getattribute__(self, "_inner")
        life: Life = object.__getattribute__(self, "_bus_run")
        value = getattr(inner, name)
        if name in _UNTOUCHED or not callable(value) or (name == "aclose" and hasattr(inner, "create_topics")):
            return value
        if inspect.iscoroutinefunction(value):

            async def call(*args: Any, **options: Any) -> Any:
                life.step()
                result = await value(*args, **options)
                life.step()
                return result

            return call

        def call_now(*args: Any, **options: Any) -> Any:
            life.step()
            result = value(*args, **options)
            if name in _CLIENTS:
                return Dying(result, life)
            return stepping(result, life) if name in _PUTS else result

        return call_now


def stepping(put: Callable[..., Any], life: Life) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        life.step()
        return put(*args)

    return call


def dying(backend: Backend, life: Life) -> Backend:
    wrapped: Any = Dying(backend, life)
    return wrapped

"""Functions that run as a bus starts and as it ends."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from eventbus.backends.clock import Timers
from eventbus.client.handling.functions import name_of, own_function, takes
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

logger = logging.getLogger("eventbus.life")

Hook = TypeVar("Hook", bound=Callable[..., Any])
When = Literal["on_startup", "on_shutdown"]


class Hooks:
    """A part of the bus: those of ``on_startup`` in their order, later those of ``on_shutdown`` in theirs.

    What a generator among the first has behind its ``yield`` comes last, the last one first.
    """

    def __init__(self) -> None:
        self.timeout_seconds = math.inf
        """What those of the end may take."""
        self._hooks: dict[When, list[Callable[..., Any]]] = {"on_startup": [], "on_shutdown": []}
        self._stack: AsyncExitStack | None = None
        self._timers: Timers | None = None

    def add(self, when: When, hook: Callable[..., Any]) -> None:
        """Raises ConfigError for what cannot be called without arguments, or with the bus."""
        check_hook(when, hook)
        self._hooks[when].append(hook)

    def __bool__(self) -> bool:
        return any(self._hooks.values())

    async def start(self, bus: EventBus) -> None:
        """What one raises ends the start; what those before it opened is closed."""
        self._timers = bus.backend.timers
        async with AsyncExitStack() as stack:
            for hook in self._hooks["on_startup"]:
                if inspect.isasyncgenfunction(own_function(hook)):
                    await stack.enter_async_context(asynccontextmanager(_bound(hook, bus))())
                elif inspect.isgeneratorfunction(own_function(hook)):
                    stack.enter_context(contextmanager(_bound(hook, bus))())
                else:
                    await _called(hook, bus)
            for hook in reversed(self._hooks["on_shutdown"]):
                stack.push_async_callback(_called, hook, bus)
            self._stack = stack.pop_all()

    async def aclose(self) -> None:
        """All of them, whatever one raises, within the bus's ``drain_timeout_ms``; then that is raised."""
        stack, self._stack = self._stack, None
        if stack is None or self._timers is None:
            return
        with self._timers.move_on_after(self.timeout_seconds) as scope:
            await stack.aclose()
        if scope.cancelled_caught:
            logger.warning("on_shutdown: not through after %g s (drain_timeout_ms); given up", self.timeout_seconds)


def check_hook(when: When, hook: Callable[..., Any]) -> None:
    """Raises ConfigError for what cannot be called without arguments, or with the bus."""
    if not callable(hook):
        raise ConfigError(f"@bus.{when} decorates a function: @bus.{when}, without parentheses")
    if not takes(hook, 0) and not takes(hook, 1):
        raise ConfigError(f"@bus.{when} {name_of(hook)}: it is called without arguments, or with the bus alone")
    if when == "on_shutdown" and _is_generator(hook):
        raise ConfigError(
            f"@bus.{when} {name_of(hook)} yields: decorate it with @bus.on_startup, and what stands behind the yield "
            "runs at the end"
        )


def _is_generator(hook: Callable[..., Any]) -> bool:
    own = own_function(hook)
    return inspect.isasyncgenfunction(own) or inspect.isgeneratorfunction(own)


def _bound(hook: Callable[..., Any], bus: EventBus) -> Callable[[], Any]:
    return hook if takes(hook, 0) else lambda: hook(bus)


async def _called(hook: Callable[..., Any], bus: EventBus) -> None:
    result = _bound(hook, bus)()
    if isinstance(result, Awaitable):
        await result

"""Functions that run at the start and the end of a bus."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncContextDecorator, AsyncExitStack, ContextDecorator
from typing import Any, Literal, TypeVar

import anyio

from eventbus.backends.clock import deadline_after
from eventbus.client.handling.functions import name_of, opening_of, takes
from eventbus.client.host import Host
from eventbus.errors import ConfigError

logger = logging.getLogger("eventbus.bus_run")

_AT_ONCE_SECONDS = 1.0
"""Time for shutdown hooks after a second signal."""

Hook = TypeVar("Hook", bound=Callable[..., Any])
When = Literal["on_startup", "on_shutdown"]


class Hooks:
    """The declared functions of ``on_startup`` and ``on_shutdown``."""

    def __init__(self) -> None:
        self._hooks: dict[When, list[Callable[..., Any]]] = {"on_startup": [], "on_shutdown": []}

    def add(self, when: When, hook: Callable[..., Any]) -> None:
        """Add a hook. Raises ConfigError unless it can be called without arguments, or with the bus."""
        check_hook(when, hook)
        self._hooks[when].append(hook)

    def __bool__(self) -> bool:
        return any(self._hooks.values())

    def of(self, when: When) -> list[Callable[..., Any]]:
        """Return the hooks in the order of their declaration."""
        return self._hooks[when]


class HooksAtWork:
    """Runs the hooks as a part of the bus: ``on_startup`` in order at the start, ``on_shutdown`` in order at the end.

    The code after the ``yield`` of a startup generator runs last, in reverse order.
    """

    def __init__(self, hooks: Hooks, bus: Host) -> None:
        self._hooks = hooks
        self._bus = bus
        self._stack = AsyncExitStack()
        """The shutdown hooks, and the rest of the generators."""
        self._scope = anyio.CancelScope()
        """The scope of the shutdown, with its deadline."""

    async def start(self, bus: Host) -> None:
        """Run the startup hooks. An error ends the start; `aclose` then closes what earlier hooks opened."""
        for hook in self._hooks.of("on_startup"):
            try:
                await self._begin(hook)
            except Exception as error:
                error.add_note(f"@bus.on_startup {name_of(hook)} raised it, which ends the start")
                raise
        for hook in reversed(self._hooks.of("on_shutdown")):
            self._stack.push_async_callback(_called, hook, bus)

    async def _begin(self, hook: Callable[..., Any]) -> None:
        # A generator always continues after its ``yield`` normally, even if another hook raises: it closes what it has
        # opened, and cannot swallow the other's error.
        opening, opener = opening_of(hook)
        if opening == "async with ":
            opened = _bound(opener, self._bus)()
            await opened.__aenter__()
            self._stack.push_async_callback(opened.__aexit__, None, None, None)
        elif opening == "with ":
            entered = _bound(opener, self._bus)()
            entered.__enter__()
            self._stack.callback(entered.__exit__, None, None, None)
        else:
            await _called(hook, self._bus)

    async def aclose(self) -> None:
        """Run all hooks within ``drain_timeout_ms``, even if one raises; then raise its error."""
        seconds = self._bus.context.drain_timeout_ms / 1000
        with self._scope, self._bus.context.backend.timers.move_on_after(seconds) as in_time:
            await self._stack.aclose()
        if in_time.cancelled_caught:
            logger.warning("on_shutdown: not through after %g s (drain_timeout_ms); given up", seconds)

    def end(self) -> None:
        """Shorten the remaining time after a second signal, in real time."""
        self._scope.deadline = min(self._scope.deadline, deadline_after(_AT_ONCE_SECONDS))


def check_hook(when: When, hook: Callable[..., Any]) -> None:
    """Raise ConfigError unless the hook can be called without arguments, or with the bus."""
    if not callable(hook):
        raise ConfigError(f"@bus.{when} decorates a function: @bus.{when}, without parentheses")
    if isinstance(hook, (ContextDecorator, AsyncContextDecorator)):
        raise ConfigError(f"@bus.{when} got a call of a context manager: leave out the parentheses after the function")
    if not takes(hook, 0) and not takes(hook, 1):
        raise ConfigError(f"@bus.{when} {name_of(hook)}: it is called without arguments, or with the bus alone")
    if when == "on_shutdown" and opening_of(hook)[0].endswith("with "):
        raise ConfigError(
            f"@bus.{when} {name_of(hook)} yields: decorate it with @bus.on_startup, and the code after the yield "
            "runs at the end"
        )


def _bound(hook: Callable[..., Any], bus: Host) -> Callable[[], Any]:
    return hook if takes(hook, 0) else lambda: hook(bus)


async def _called(hook: Callable[..., Any], bus: Host) -> None:
    result = _bound(hook, bus)()
    if isinstance(result, Awaitable):
        await result

"""Targets, which the author of a backend supplies, and promises, which run on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

import anyio
import anyio.lowlevel

from eventbus.client.bus import EventBus

if TYPE_CHECKING:
    from eventbus.testing.conformance.world import World
    from eventbus.types import TopicPartition

Ability = Literal["restart", "kill", "clock", "damage"]
"""Operations that only some backends support in tests: ``restart`` the log in order, ``kill`` its process, move its
``clock``, ``damage`` stored data."""

PATIENCE_SECONDS = 30
"""How long a promise may take where no other limit applies: an upper limit for failures, not a measurement."""


class Target(ABC):
    """A log on which promises are checked. Each promise gets a new log, or new names on a shared log.

    All buses returned by `open` use the same log. Other promises (or people) may use the log at the same time:
    everything a promise creates has names with ``prefix``.
    """

    can: ClassVar[frozenset[Ability]] = frozenset()
    """The operations that this target supports; promises that need more are skipped (`promises_for`)."""
    prefix: str = ""

    @abstractmethod
    def open(self) -> EventBus:
        """Return a bus on the log, not started: the promise starts it. Called several times."""

    def now_ms(self) -> int:
        """Return the time of the log's clock, which is also that of the buses. Needed for ``clock``."""
        # Optional: only targets that declare the ability are called, so the message is for their author.
        raise NotImplementedError(f"{type(self).__name__} says it can move the clock, but has no now_ms()")

    def advance(self, milliseconds: int) -> None:
        """Advance that clock. Everything then due must happen soon without further calls. Needed for ``clock``."""
        # Optional, as `now_ms` is.
        raise NotImplementedError(f"{type(self).__name__} says it can move the clock, but has no advance()")

    async def restart(self) -> None:
        """Stop the log and start it again. Called when all buses are closed, which already restarts an embedded log."""
        await anyio.lowlevel.checkpoint()

    async def kill(self) -> None:
        """Kill the process that holds the log while buses are open. Needed for ``kill``.

        Buses opened from now on see everything that was acknowledged. The old ones are closed afterwards, which may
        fail, and must not change anything any more.
        """
        # Optional, as `now_ms` is.
        raise NotImplementedError(f"{type(self).__name__} says it can kill the log, but has no kill()")

    async def damage(self, partition: TopicPartition) -> None:
        """Change stored bytes of a partition's first records, so that they cannot be read. Needed for ``damage``.

        All buses are closed.
        """
        # Optional, as `now_ms` is.
        raise NotImplementedError(f"{type(self).__name__} says it can damage the log, but has no damage()")


class Promise:
    """A sentence that holds for every backend, and the function that checks it."""

    def __init__(
        self, function: Callable[[World], Awaitable[None]], area: str, name: str, needs: Iterable[Ability]
    ) -> None:
        self.function = function
        self.area = area
        self.name = name
        self.needs = frozenset(needs)
        """The abilities that the target must have."""

    def __repr__(self) -> str:
        return f"{self.area}: {self.name}"

    def check(self, target: Target, event_loop: str = "asyncio", *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Check the promise on a new event loop, "asyncio" or "trio".

        Raises AssertionError, errors of the backend, or TimeoutError if the promise did not come true within
        ``patience_seconds``.
        """
        anyio.run(self.run, target, patience_seconds, backend=event_loop)

    async def run(self, target: Target, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Check the promise on the running event loop."""
        from eventbus.testing.conformance.world import World

        with anyio.fail_after(patience_seconds):
            async with World(target) as world:
                await self.function(world)


PROMISES: list[Promise] = []
"""All promises, in the order of the modules."""


def promise(
    *needs: Ability, each: Collection[str] = ()
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Mark a promise. With ``each`` there is a promise per value, which is the function's second argument."""

    def register(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        area = function.__module__.rpartition(".")[2]
        if not each:
            PROMISES.append(Promise(function, area, function.__name__, needs))
        PROMISES.extend(
            Promise(_with(function, value), area, f"{function.__name__} ({value})", needs) for value in each
        )
        return function

    return register


def _with(function: Callable[..., Awaitable[None]], value: str) -> Callable[[World], Awaitable[None]]:
    def run(world: World) -> Awaitable[None]:
        return function(world, value)

    return run


def promises_for(target: type[Target]) -> list[Promise]:
    """Return the promises that can be checked on a target of this kind."""
    return [one for one in PROMISES if one.needs <= target.can]

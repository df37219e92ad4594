"""What the author of a backend supplies, and how a promise is run on it."""

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
"""What not every backend lets a test do: ``restart`` the log in order, ``kill`` what holds it, move its ``clock``,
``damage`` what it has stored."""

PATIENCE_SECONDS = 30
"""How long a promise may take to come true where nothing says when: a bound for failures, not a measurement."""


class Target(ABC):
    """One log to try promises on. Each promise gets a new one, or new names on a shared one.

    All buses that `open` gives see the same log. A log that other promises (or other people) use at the same time is
    fine: everything a promise creates has ``prefix`` in front of its name.
    """

    can: ClassVar[frozenset[Ability]] = frozenset()
    """What this target lets a promise do; promises that need more are not for it (`promises_for`)."""
    prefix: str = ""

    @abstractmethod
    def open(self) -> EventBus:
        """A bus on the log, not started: the promise does that. Called several times."""

    def now_ms(self) -> int:
        """The log's clock, which is also that of the buses. Needed for ``clock``."""
        # Optional: only a target that says it `can` is asked, so the message is for its author.
        raise NotImplementedError(f"{type(self).__name__} says it can move the clock, but has no now_ms()")

    def advance(self, milliseconds: int) -> None:
        """Move that clock. What is due then has to happen by itself, soon. Needed for ``clock``."""
        # Optional, as `now_ms` is.
        raise NotImplementedError(f"{type(self).__name__} says it can move the clock, but has no advance()")

    async def restart(self) -> None:
        """Called when all buses are closed: stop the log and start it again. An embedded log did that already."""
        await anyio.lowlevel.checkpoint()

    async def kill(self) -> None:
        """What holds the log dies where it stands, while buses are open. Needed for ``kill``.

        Buses opened from now on see the log with all that was acknowledged. The old ones are closed afterwards, may
        fail at that, and must change nothing any more.
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
    """One sentence that holds on every backend, and the function that tries it."""

    def __init__(
        self, function: Callable[[World], Awaitable[None]], area: str, name: str, needs: Iterable[Ability]
    ) -> None:
        self.function = function
        self.area = area
        self.name = name
        self.needs = frozenset(needs)
        """What the target must be able to do."""

    def __repr__(self) -> str:
        return f"{self.area}: {self.name}"

    def check(self, target: Target, event_loop: str = "asyncio", *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Try it on an event loop of its own, "asyncio" or "trio".

        Raises AssertionError, whatever the backend raised, or TimeoutError: what was promised did not come true within
        ``patience_seconds``.
        """
        anyio.run(self.run, target, patience_seconds, backend=event_loop)

    async def run(self, target: Target, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """The same on the running event loop."""
        from eventbus.testing.conformance.world import World

        with anyio.fail_after(patience_seconds):
            async with World(target) as world:
                await self.function(world)


PROMISES: list[Promise] = []
"""Every promise, in the order of the modules."""


def promise(
    *needs: Ability, each: Collection[str] = ()
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Mark a promise. With ``each`` there is one per value, which the function gets as its second argument."""

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
    """Those that can be tried on a target of this kind."""
    return [one for one in PROMISES if one.needs <= target.can]

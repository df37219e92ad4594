"""Who is asked how it stands: a bus, from any thread and event loop, without ever waiting for it for long."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from eventbus.backends.clock import RealTimers
from eventbus.client.health import BusHealth
from eventbus.client.metrics import Sample
from eventbus.client.threads import Home, settle
from eventbus.errors import ConfigError, RequestTimedOut
from eventbus.web.probes import Standing

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

T = TypeVar("T")

_PROBE_SECONDS = 0.5
"""How long a probe waits for news; then it is answered with what was known. Kubernetes gives one second."""
_SCRAPE_SECONDS = 5.0
"""The same for metrics, of which old ones are none. Prometheus gives ten."""


class Source(Protocol):
    """What an app of health and metrics speaks of."""

    async def standing(self) -> Standing: ...

    async def samples(self) -> Iterable[Sample]:
        """Raises RequestTimedOut when there is no answer."""
        ...


class OfBus:
    """A bus. What it says of itself is asked of its own event loop, whichever loop this is called in."""

    def __init__(self, bus: EventBus, *, is_coming: bool = False) -> None:
        """``is_coming``: somebody is about to start it; until then it is starting, not stopped."""
        self._bus = bus
        self._is_coming = is_coming
        self._timers = RealTimers()  # whoever asks does not live by the clock of a test
        self._known: BusHealth | None = None
        self._asked: Future[BusHealth] | None = None
        """The question that is under way; one at a time, for all that ask."""
        self._asked_at = 0.0

    async def standing(self) -> Standing:
        bus = self._bus
        phase = bus.context.phase
        if phase != "running":
            self._known = self._asked = None
            self._is_coming = self._is_coming and phase == "stopped"
            return Standing(phase="starting" if self._is_coming else phase)
        self._is_coming = False
        asked = self._ask()
        unanswered_ms = 0
        try:
            self._known = await settled(asked, _PROBE_SECONDS)
        except RequestTimedOut:
            unanswered_ms = max(int((self._timers.current_time() - self._asked_at) * 1000), 1)
        except ConfigError:  # it closed in between
            return Standing(phase=bus.context.phase)
        if asked.done() and self._asked is asked:
            self._asked = None
        return Standing(
            phase=bus.context.phase,
            health=self._known,
            unanswered_ms=unanswered_ms,
            patience_ms=bus.context.wedged_after_ms,
        )

    def _ask(self) -> Future[BusHealth]:
        if self._asked is None:
            self._asked_at = self._timers.current_time()
            self._asked = submitted(self._bus, self._bus.health)
        return self._asked

    async def samples(self) -> Iterable[Sample]:
        bus = self._bus
        if bus.context.phase != "running":
            return []

        async def metrics() -> list[Sample]:
            return list(bus.metrics().samples())

        try:
            return await settled(submitted(bus, metrics), _SCRAPE_SECONDS)
        except ConfigError:  # it closed in between
            return []


def submitted(bus: EventBus, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Have the bus's event loop run it. ConfigError, here or in the future: the bus has closed."""
    future: Future[T] = Future()
    try:
        try:
            bus.context.start_soon(partial(_run, function, future))
        except ConfigError:  # this is another thread or loop, or the bus does not run any more
            # The bus's loop may be of another kind than this one, which the context variables of this task tell.
            return Context().run(lambda: bus.blocking().submit(function))
    except ConfigError as error:
        settle(future, error=error)
    return future


async def _run(function: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
    try:
        settle(future, await function())
    except anyio.get_cancelled_exc_class():
        settle(future, error=ConfigError("the bus has closed"))
        raise
    except Exception as error:  # passed on to whoever asked
        settle(future, error=error)


async def settled(future: Future[T], seconds: float) -> T:
    """Its outcome, awaited in whichever loop this is. Raises RequestTimedOut; the future goes on."""
    home, done = Home(), anyio.Event()
    future.add_done_callback(lambda _: home.call(done.set))
    with RealTimers().move_on_after(seconds):
        await done.wait()
    if not future.done():
        raise RequestTimedOut(f"no answer within {seconds:g} s")
    return future.result()

"""Query the state of a bus, from any thread and event loop, without ever waiting for it for long."""

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
"""How long a probe waits for an answer; then the last known state is used. Kubernetes allows one second."""
_SCRAPE_SECONDS = 5.0
"""How long a scrape waits for metrics, which must be current. Prometheus allows ten seconds."""


class Source(Protocol):
    """The source of an app's health and metrics."""

    async def standing(self) -> Standing: ...

    async def samples(self) -> Iterable[Sample]:
        """Return current samples. Raises RequestTimedOut without an answer."""
        ...


class OfBus:
    """A bus. It is queried in its own event loop, from whichever loop this is called in."""

    def __init__(self, bus: EventBus, *, is_coming: bool = False) -> None:
        """``is_coming``: the bus is about to be started; until then it counts as starting, not stopped."""
        self._bus = bus
        self._is_coming = is_coming
        self._timers = RealTimers()  # the clients of probes do not use a test's clock
        self._known: BusHealth | None = None
        self._asked: Future[BusHealth] | None = None
        """The running query; only one at a time, for all callers."""
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
        except ConfigError:  # it was closed in between
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
        except ConfigError:  # it was closed in between
            return []


def submitted(bus: EventBus, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Run the function in the bus's event loop. Raises ConfigError, here or in the future, if the bus has closed."""
    future: Future[T] = Future()
    try:
        try:
            bus.context.start_soon(partial(_run, function, future))
        except ConfigError:  # this is another thread or loop, or the bus has stopped
            # The bus's loop may differ in type from this one, whose type is in the context variables of this task.
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
    except Exception as error:  # passed on to the caller
        settle(future, error=error)


async def settled(future: Future[T], seconds: float) -> T:
    """Await the outcome in the present loop. Raises RequestTimedOut; the future continues."""
    home, done = Home(), anyio.Event()
    future.add_done_callback(lambda _: home.call(done.set))
    with RealTimers().move_on_after(seconds):
        await done.wait()
    if not future.done():
        raise RequestTimedOut(f"no answer within {seconds:g} s")
    return future.result()

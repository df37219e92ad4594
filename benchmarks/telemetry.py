"""What metrics and tracing cost beside the handler's call: with and without, in turns, in one process.

On and off differ by a few per cent, less than two processes differ by chance; so fetches alternate, and the fastest
one of each kind is compared.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bus import Order, encoded_orders
from handlers import PER_FETCH, fetches, handled
from harness import Figure, Numbers, case

ROUNDS = 9

TELEMETRY_FIGURES = [
    Figure("I1", "metrics on / off, payload alone", "metrics of a handler:payload", None, None, 1.03, True, "x"),
    Figure("I2", "metrics on / off, with its record", "metrics of a handler:record", None, None, 1.03, True, "x"),
    Figure("I3", "metrics on / off, slow calls", "metrics of a handler:slow", None, None, 1.03, True, "x"),
    Figure("I4", "without Tracing / the same once more", "tracing:off", None, None, 1.03, True, "x"),
    Figure("I5a", "a handler's call, Tracing without a provider", "tracing:api us", None, None, 10, True, "us"),
    Figure("I5b", "a handler's call, Tracing with the SDK", "tracing:sdk us", None, None, 60, True, "us"),
    Figure(
        "I7",
        "metrics and log lines' record / a record's way, fetches of one",
        "metrics of single records:share",
        None,
        None,
        0.03,
        True,
        "x",
    ),
    Figure("I6", "/metrics of 20 handlers, 100 partitions", "page of metrics:ms", None, None, 25, True, "ms"),
]


class _Off:
    """In place of `CallTimes`: nothing is measured."""

    is_each = False

    def now(self) -> float:
        return 0.0

    def ran(self, began: float, calls: int, was_each: bool) -> None: ...

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call


async def _cpu_of(kinds: dict[str, Any], n: int) -> dict[str, float]:
    """CPU seconds per record of each kind of handler and dispatch: of its fastest fetch, fetches in turns."""
    from eventbus import TopicPartition
    from eventbus.backends.clock import RealTimers
    from eventbus.client.handling.call_timeouts import CallTimeouts
    from eventbus.client.handling.partition_driver import PartitionDriver

    watches = deque(
        (name, CallTimeouts(handler, RealTimers(), lambda driver, error: None), dispatch)
        for name, (handler, dispatch) in kinds.items()
    )
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(ROUNDS):
        drivers = {name: PartitionDriver(TopicPartition("log", 0), lambda error: False) for name in kinds}
        for chunk in fetches(n):
            watches.rotate()  # the first one finds the fetch in no cache
            for name, watch, dispatch in watches:
                began = time.thread_time()
                await handled(watch, dispatch, drivers[name], chunk)
                best[name] = min(best[name], (time.thread_time() - began) / PER_FETCH)
    return best


def _dispatch(handler: Any, middleware: tuple[Any, ...] = (), is_off: bool = False) -> tuple[Any, Any]:
    from eventbus.client.handling.dispatch import Dispatch

    dispatch: Any = Dispatch(handler, None, {}, middleware)
    if is_off:
        dispatch.times = _Off()
        dispatch.work = dispatch._choose()
    return handler, dispatch


@case("metrics of a handler", n=60_000, quick=10_000)
def metrics_of_a_handler(n: int) -> Numbers:
    """How much longer a record takes with metrics, of three kinds of handlers."""
    from eventbus import ConsumerRecord, consumer

    @consumer("log")
    async def payload(order: Order) -> None: ...

    @consumer("log")
    async def record(order: Order, record: ConsumerRecord) -> None: ...

    @consumer("log")
    async def slow(order: Order) -> None:
        end = time.perf_counter() + 40e-6
        while time.perf_counter() < end:
            pass

    numbers: Numbers = {}
    for name, handler, count in (("payload", payload, n), ("record", record, n), ("slow", slow, n // 10)):
        kinds = {"on": _dispatch(handler), "off": _dispatch(handler, is_off=True)}
        found = asyncio.run(_cpu_of(kinds, max(count, PER_FETCH)))
        numbers[name] = found["on"] / found["off"]
        numbers[f"{name} on us"], numbers[f"{name} off us"] = found["on"] * 1e6, found["off"] * 1e6
    return numbers


@case("metrics of single records", n=20_000, quick=2_000)
def metrics_of_single_records(n: int) -> Numbers:
    """Microseconds of CPU per fetch of one record: what is measured and remembered, and the record's whole way."""
    from eventbus import TopicPartition, consumer
    from eventbus.backends.clock import RealTimers
    from eventbus.client.handling import call_timeouts
    from eventbus.client.handling.partition_driver import PartitionDriver
    from eventbus.types import FetchedRecords

    @consumer("log")
    async def payload(order: Order) -> None: ...

    (many,) = fetches(PER_FETCH)
    ones = [
        FetchedRecords("log", 0, [number], [0], [b"k"], [value], None, many.timestamp_type, number + 1)
        for number, value in enumerate(many.values)
    ]

    async def seconds_of(handler: Any, dispatch: Any) -> float:
        one, driver = call_timeouts.CallTimeouts(handler, RealTimers(), lambda driver, error: None), _driver()
        began = time.thread_time()
        for fetch in ones:
            await handled(one, dispatch, driver, fetch)
        return (time.thread_time() - began) / len(ones)

    def _driver() -> PartitionDriver:
        return PartitionDriver(TopicPartition("log", 0), lambda error: False)

    on, off = _dispatch(payload), _dispatch(payload, is_off=True)
    best = dict.fromkeys(("all", "unmeasured", "bare"), float("inf"))
    remembers = call_timeouts.current_caller
    for _ in range(max(n // len(ones), 5)):
        for name, kind in (("all", on), ("unmeasured", off), ("bare", off)):
            begin, ends = call_timeouts.set_current_caller, remembers
            if name == "bare":
                call_timeouts.set_current_caller, call_timeouts.current_caller = _nothing, _Nowhere()
            try:
                best[name] = min(best[name], asyncio.run(seconds_of(*kind)))
            finally:
                call_timeouts.set_current_caller, call_timeouts.current_caller = begin, ends
    way = min(asyncio.run(_seconds_of_a_way(max(n // 20, 200))) for _ in range(3))
    numbers = {f"{name} us": seconds * 1e6 for name, seconds in best.items()}
    return {"share": (best["all"] - best["bare"]) / way, "way us": way * 1e6, **numbers}


def _nothing(*_: Any) -> None:
    """In place of remembering which record is at work."""


class _Nowhere:
    """In place of the context's variable."""

    def set(self, _: Any) -> None: ...


async def _seconds_of_a_way(n: int) -> float:
    """CPU seconds of a record that is sent, stored, fetched alone, and handled, one after the other on memory://."""
    from eventbus import EventBus

    bus = EventBus("memory://")
    bus.topic("log", partitions=1)
    handled = asyncio.Event()

    @bus.consumer("log", group="g")
    async def payload(order: Order) -> None:
        handled.set()

    value = encoded_orders()[0]
    async with bus:
        began = 0.0
        for number in range(n + 100):
            if number == 100:
                began = time.thread_time()
            handled.clear()
            await bus.send("log", value)
            await handled.wait()
        return (time.thread_time() - began) / n


@case("tracing", n=20_000, quick=5_000)
def tracing(n: int) -> Numbers:
    """A handler with the bus's own middleware (none), and with that of `Tracing`, which records or does not."""
    from opentelemetry.sdk.trace import TracerProvider

    from eventbus import EventBus, consumer
    from eventbus.telemetry import Tracing

    @consumer("log")
    async def payload(order: Order) -> None: ...

    bus = EventBus("memory://")
    around, interceptors = bus._surroundings()
    assert not around and not interceptors
    kinds = {
        "off": _dispatch(payload, tuple(around)),
        "never": _dispatch(payload),
        "api": _dispatch(payload, tuple(Tracing().middleware)),
        "sdk": _dispatch(payload, tuple(Tracing(TracerProvider(shutdown_on_exit=False)).middleware)),
    }
    assert kinds["off"][1].run.__func__ is kinds["never"][1].run.__func__  # the very same code
    found = asyncio.run(_cpu_of(kinds, n))
    return {"off": found["off"] / found["never"], **{f"{name} us": found[name] * 1e6 for name in found}}


@case("page of metrics", n=50, quick=5)
def page_of_metrics(n: int) -> Numbers:
    """Milliseconds to make the page."""
    from eventbus.backends.histogram import RECORDS, SECONDS, Histogram
    from eventbus.backends.statistics import TopicStatistics
    from eventbus.client.handling.invocation import HandlerCounts
    from eventbus.client.metrics import BusMetrics, HandlerMetrics
    from eventbus.telemetry.prometheus import exposition

    handlers = tuple(
        HandlerMetrics(
            handler=f"handler_{number}",
            group="g",
            counts=HandlerCounts(),
            at_work=1,
            lag_by_partition={f"orders-{partition}": 5 for partition in range(5)},
            age_seconds_by_partition={f"orders-{partition}": 0.5 for partition in range(5)},
            histograms={
                "call_seconds": Histogram(SECONDS),
                "commit_seconds": Histogram(SECONDS),
                "fetch_records": Histogram(RECORDS),
            },
        )
        for number in range(20)
    )
    topics = tuple(
        TopicStatistics(topic=f"topic-{number}", partitions=5, records=1, size_bytes=1) for number in range(20)
    )
    began = time.process_time()
    for _ in range(n):
        page = exposition(BusMetrics(handlers=handlers, topics=topics))
    assert page.count("\n") > 1_000
    return {"ms": (time.process_time() - began) / n * 1_000}

"""Crash points: the user's handlers, with an end of the process before and after each of their steps.

They run once without a crash, to learn the steps and the outputs. Then they run once for each step and each way to
end, start again on what is left, and are compared: was a record lost, handled twice, half done?
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

from eventbus.backends.urls import broker_config
from eventbus.client.bus import EventBus
from eventbus.errors import ConfigError
from eventbus.testing.clock import FakeClock
from eventbus.testing.crash_judge import Expected, Run, judge
from eventbus.testing.crash_process import Disk, Instant, Process, Settings, Way
from eventbus.testing.crash_report import CrashReport, Finding
from eventbus.types import ConsumerRecord

Publish = Sequence[tuple[Any, ...]] | Callable[[EventBus], Awaitable[object]]
"""``(topic, value)`` or ``(topic, value, key)`` for each record, or an async function that sends them."""


class _Case(NamedTuple):
    """Where the first life ends, and the second one."""

    way: Way
    first: Instant
    second: int | None = None


async def crash_points(
    app: EventBus | Callable[[], EventBus],
    *,
    publish: Publish,
    run: Callable[[EventBus], Awaitable[object]] | None = None,
    state: Callable[[], Any] | None = None,
    reset: Callable[[], object] | None = None,
    identity: Callable[[ConsumerRecord], Hashable] | None = None,
    ways: Sequence[Way] = ("kill", "cancel", "stop"),
    pairs: int = 50,
    seed: int = 0,
    clock: FakeClock | None = None,
    limit_seconds: float = 300,
    **config: Any,
) -> CrashReport:
    """Run the handlers of ``app``, ending the process at every step, and report what each end has cost.

    ``app``: the bus, stopped; or a function that builds it, called for each life, so that what handlers keep in memory
    dies with the process. ``publish``: the records to handle. ``run``: a loop of the application's own, started beside
    the handlers. ``state`` gives the effects outside of the log (rows, calls of an API) and ``reset`` undoes them; they
    are compared with those of a run without a crash. ``identity`` says what makes two outputs the same, by default key
    and value; needed where values hold a time or a random id. ``ways``: "kill" (nothing of the process reaches the log
    any more), "cancel" (everything is cancelled at once), "stop" (it is closed in order). ``pairs``: so many runs end
    twice in a row, at instants drawn by ``seed``. ``clock``: what the handlers sleep by. ``limit_seconds`` of it are
    given to each life. Further keywords are settings of the log (``num_partitions``, ...).

    Steps are: polls, calls of handlers, awaited sends, flushes, commits, the steps of transactions, and each write to a
    partition. What a handler does in `finally` when it is cancelled is done in a killed process too. Raises ConfigError
    when nothing is handled without a crash, or differently each time, and what a handler raises then.
    """
    began = time.perf_counter()
    settings = {
        "auto_create_topics": True,
        "offsets_topic_num_partitions": 1,
        "transaction_state_log_num_partitions": 1,
    }
    make = (lambda: app) if isinstance(app, EventBus) else app
    trials = _Trials(
        make,
        Settings(clock or _clock_of(app), broker_config({**settings, **config}), run, limit_seconds),
        state,
        reset,
        identity or (lambda record: (record.key, record.value)),
    )
    with _quietly():
        await trials.prepare(publish)
        cases = trials.cases(ways, pairs, Random(seed))
        findings: list[Finding] = []
        not_reached = 0
        for case in cases:
            found = await trials.end_at(case)
            not_reached += found is None
            findings.extend(found or ())
    return CrashReport(
        findings,
        runs=len(cases) - not_reached,
        instants=len(trials.expected.trace),
        not_reached=not_reached,
        seconds=time.perf_counter() - began,
    )


class _Trials:
    """The runs of one report."""

    def __init__(
        self,
        make: Callable[[], EventBus],
        settings: Settings,
        state: Callable[[], Any] | None,
        reset: Callable[[], object] | None,
        identity: Callable[[ConsumerRecord], Hashable],
    ) -> None:
        self._make = make
        self._settings = settings
        self._state = state
        self._reset = reset
        self._identity = identity
        self._disk = Disk()
        self.expected: Expected

    async def prepare(self, publish: Publish) -> None:
        """Publish, and learn what happens without a crash."""
        await self._publish(publish)
        first, second = await self._run(), await self._run()
        self.expected = Expected.of(first, self._identity)
        if not any(life.calls for life in first.lives) and self._settings.run is None:
            raise ConfigError(
                "no handler was called in the run without a crash: do publish= and the handlers name the same topics, "
                "and do they start at the earliest record?"
            )
        again = Expected.of(second, self._identity)
        if again.outputs != self.expected.outputs:
            raise ConfigError(
                "the handlers publish other records each time, so that they cannot be compared: "
                f"{again.difference(self.expected)}; give identity=, a function of a record that leaves out times and "
                "random ids"
            )

    async def _publish(self, publish: Publish) -> None:
        async def send(bus: EventBus) -> None:
            if callable(publish):
                await publish(bus)
                return
            for topic, value, *key in publish:
                await bus.send(topic, value, key=key[0] if key else None)

        process = Process(self._make(), self._disk, self._settings._replace(run=send))
        await process.only_publish()
        _raise(process)

    def cases(self, ways: Sequence[Way], pairs: int, random: Random) -> list[_Case]:
        """Every instant, in every way; of those that nothing tells apart, one."""
        trace, keys = self.expected.trace, self.expected.keys
        sees_all = self._state is not None or self._settings.run is not None
        cases: list[_Case] = []
        killed: list[Instant] = []
        for index, instant in enumerate(trace):
            if sees_all or index == 0 or keys[index] != keys[index - 1]:
                killed.append(instant)
        for way in ways:
            if way == "kill":
                cases += [_Case(way, instant) for instant in killed]
            else:  # what is written has been decided at the step that writes it
                cases += [_Case(way, instant) for instant in trace if not instant.what.startswith("write ")]
        if "kill" in ways:
            for _ in range(pairs if killed else 0):
                cases.append(_Case("kill", random.choice(killed), random.randrange(len(trace))))
        return cases

    async def end_at(self, case: _Case) -> list[Finding] | None:
        """The findings of one run; None when it did not come to its instant."""
        run = await self._run(case)
        ends = [life for life in run.lives if life.ended_at is not None]
        if len(ends) < (1 if case.second is None else 2):
            return None
        return judge(run, self.expected, self._identity)

    async def _run(self, case: _Case | None = None) -> Run:
        clock = self._settings.clock
        if self._reset is not None:
            undone = self._reset()
            if inspect.isawaitable(undone):
                await undone
        way: Way = "kill" if case is None else case.way
        ends: list[Instant | int | None] = [] if case is None else [case.first]
        if case is not None and case.second is not None:
            ends.append(case.second)
        disk = self._disk.copy()
        lives: list[Process] = []
        for end in (*ends, None):
            process = Process(self._make(), disk, self._settings, end, way)
            await process.live()
            lives.append(process)
            if process.ended_at is None:
                break
            disk = process.survivors
            await clock.settle()
        if case is None:
            _raise(lives[0])
        return Run(way, lives, None if self._state is None else self._state())


def _clock_of(app: EventBus | Callable[[], EventBus]) -> FakeClock:
    clock = getattr(app, "clock", None)
    return clock if isinstance(clock, FakeClock) else FakeClock()


def _raise(process: Process) -> None:
    if process.error is not None:
        raise process.error
    if process.is_stuck:
        raise ConfigError(
            "without a crash the handlers do not come to an end within limit_seconds: does one wait for a real clock, "
            "or publish to its own topic?"
        )


@contextmanager
def _quietly() -> Generator[None]:
    """A process that ends at every step complains at every step."""
    logger = logging.getLogger("eventbus")
    before = logger.disabled, logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before[1])

"""Crash points: run the user's handlers, ending the process before and after each of their steps.

They run once without a crash, to record the steps and the outputs. Then they run once for each step and each way to
end, start again on what is left, and the results are compared: was a record lost, handled twice, half done?
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple, Unpack

from eventbus.backends.urls import broker_config
from eventbus.client.bus import EventBus
from eventbus.client.keywords import LogOptions
from eventbus.errors import ConfigError
from eventbus.testing.clock import FakeClock
from eventbus.testing.crash_disk import Disk
from eventbus.testing.crash_judge import Expected, Run, judge
from eventbus.testing.crash_process import Instant, Past, Process, Settings, Way
from eventbus.testing.crash_report import CrashReport, Finding
from eventbus.testing.testbus import log_settings_of
from eventbus.types import ConsumerRecord

Publish = Sequence[tuple[Any, ...]] | Callable[[EventBus], Awaitable[object]]
"""``(topic, value)`` or ``(topic, value, key)`` for each record, or an async function that sends them."""


_FEW_PARTITIONS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
"""Each life opens the log: fifty partitions of each internal topic would take most of its time."""


class _Case(NamedTuple):
    """The instants at which the first and the second life end."""

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
    **config: Unpack[LogOptions],
) -> CrashReport:
    """Run the handlers of ``app``, ending the process at every step, and report the effects of each end.

    ``app``: the bus, stopped; or a function that builds it, called for each life, so that what handlers keep in memory
    dies with the process. ``publish``: the records to handle. ``run``: a loop of the application, started alongside the
    handlers. ``state`` returns the effects outside of the log (rows, calls of an API) and ``reset`` undoes them; they
    are compared with those of a run without a crash. ``identity`` decides which outputs are equal, by default key and
    value; needed if values contain a time or a random id. ``ways``: "kill" (nothing of the process reaches the log any
    more), "cancel" (everything is cancelled at once), "stop" (it is closed in order). ``pairs``: the number of runs
    that end twice in a row, at instants drawn by ``seed``. ``clock``: the clock that the handlers sleep by. Each life
    gets ``limit_seconds`` of it. Further keywords replace settings of the log (``num_partitions``, ...), by default
    those of the bus.

    Steps are: polls, calls of handlers, awaited sends, flushes, commits, the steps of transactions, and each write to a
    partition. What a handler does in `finally` when it is cancelled is done in a killed process too. Raises ConfigError
    if nothing is handled without a crash, or differently each time, and errors of handlers in that run.
    """
    began = time.perf_counter()
    make = (lambda: app) if isinstance(app, EventBus) else app
    settings = {**_FEW_PARTITIONS, **log_settings_of(make()), **config}
    trials = _Trials(
        make,
        Settings(clock or _clock_of(app), broker_config(settings), run, limit_seconds),
        state,
        reset,
        identity or (lambda record: (record.key, record.value)),
    )
    with _quietly():
        await trials.prepare(publish)
        findings = await trials.all_findings(ways, pairs, Random(seed))
    return CrashReport(
        findings,
        runs=trials.runs,
        instants=len(trials.expected.trace),
        not_reached=trials.not_reached,
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
        self._sees_all = state is not None or reset is not None or settings.run is not None
        """True if effects outside of the log are compared: then no two instants are equivalent."""
        self._kept: dict[Instant, Past] | None = None
        """The remains of each instant, if they are in the log alone: then the first life need not be repeated."""
        self.expected: Expected
        self.runs = 0
        self.not_reached = 0

    async def prepare(self, publish: Publish) -> None:
        """Publish, and record the results without a crash."""
        await self._publish(publish)
        first, second = await self._run(), await self._run()
        self.expected = Expected.of(first, self._identity)
        self._kept = first.last.kept
        if not first.last.calls and self._settings.run is None:
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

    async def all_findings(self, ways: Sequence[Way], pairs: int, random: Random) -> list[Finding]:
        """Return findings for an end at every instant, in every way, and for pairs. Equivalent instants are tried
        once."""
        trace = self.expected.trace
        told_apart = [instant for instant in trace if self._sees_all or instant in self.expected.told_apart]
        findings: list[Finding] = []
        lengths: dict[Instant, int] = {}
        for way in ways:
            # The content of a write was decided at the step before: only a kill can come in between.
            for instant in told_apart if way == "kill" else [one for one in trace if not one.what.startswith("write ")]:
                run = await self._judged(_Case(way, instant), findings)
                if run is not None and way == "kill":
                    lengths[instant] = len(run.last.trace)
        for _ in range(pairs if lengths else 0):
            instant = random.choice(list(lengths))
            await self._judged(_Case("kill", instant, random.randrange(lengths[instant])), findings)
        return findings

    async def _judged(self, case: _Case, findings: list[Finding]) -> Run | None:
        """Run a case and add its findings; return None if its instants were not reached."""
        run = await self._run(case)
        if len(run.past) < (1 if case.second is None else 2):
            self.not_reached += 1
            return None
        self.runs += 1
        findings.extend(judge(run, self.expected, self._identity))
        return run

    async def _run(self, case: _Case | None = None) -> Run:
        if self._reset is not None:
            undone = self._reset()
            if inspect.isawaitable(undone):
                await undone
        way: Way = "kill" if case is None else case.way
        ends: list[Instant | int] = [] if case is None else [case.first]
        if case is not None and case.second is not None:
            ends.append(case.second)
        past: list[Process | Past] = []
        disk = self._disk.copy()
        if case is not None and way == "kill" and self._kept is not None:
            ends.pop(0)
            kept = self._kept[case.first]
            past.append(kept)
            disk = kept.survivors.copy()
        while True:
            process = Process(self._make(), disk, self._settings, ends.pop(0) if ends else None, way)
            if case is None and not self._sees_all:
                process.kept = {}
            await process.live()
            if process.ended_at is None:
                break
            past.append(process)
            disk = process.survivors
        if case is None:
            _raise(process)
        return Run(way, past, process, None if self._state is None else self._state())


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
    """Silence the log: a process that ends at every step warns at every step."""
    logger = logging.getLogger("eventbus")
    before = logger.disabled, logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before[1])

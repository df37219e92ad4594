"""Check the handlers of a running bus every few seconds: lag over time, and partitions that do not move."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec

from eventbus.backends.base import Backend
from eventbus.client.handling.runner import Runner
from eventbus.client.health import (
    BusHealth,
    Facts,
    HandlerHealth,
    HasHealth,
    PartHealth,
    RecordAtWork,
    Verdict,
    judge,
    summary,
)
from eventbus.client.metrics import HandlerMetrics
from eventbus.client.running.open_transactions import OpenTransactions
from eventbus.errors import EventBusError
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.health")

_LOOK_SECONDS = 5.0
"""Maximum interval between checks."""
_ANSWER_SECONDS = 2.0
"""How long the log may take to return the ends of partitions."""
_DELETED_SECONDS = 600.0
"""How long a handler that has lost records counts as degraded."""
_TREND_SECONDS = 60.0
"""The period of the lag's trend."""


class HealthWatch:
    """Observes the runners over time, and logs a warning when a handler is wedged, or recovers."""

    def __init__(
        self,
        runners: Sequence[Runner],
        parts: Sequence[object],
        backend: Backend,
        wedged_after_ms: int,
        blocked: Callable[[float], str] | None = None,
    ) -> None:
        """``parts`` are those of the bus; only those that implement `HasHealth` count. ``blocked`` returns a remark if
        the event loop was blocked within the given number of seconds, or "".
        """
        self._runners = runners
        self._parts = parts
        self._backend = backend
        self._timers = backend.timers
        self._limit_ms = wedged_after_ms
        self._blocked = blocked
        self._tracks: dict[Runner, _Track] = {}

    async def run(self) -> None:
        """Check regularly. Runs as a task of the bus."""
        while True:
            await self._timers.sleep(min(_LOOK_SECONDS, self._limit_ms / 4000))
            await self.look()

    async def look(self) -> BusHealth:
        """Check now, and return the health of the bus."""
        handlers: list[HandlerHealth] = []
        verdicts: list[Verdict] = []
        for runner in self._runners:
            track = self._tracks.get(runner)
            if track is None:
                track = self._tracks[runner] = _Track(runner, OpenTransactions(self._backend))
            await track.ask(self._backend)
            now = self._timers.current_time()
            facts = track.facts(now)
            verdict = judge(facts, self._limit_ms)
            track.tell(verdict)
            handlers.append(track.health(facts, verdict, now))
            verdicts.append(verdict)
        blocked = "" if self._blocked is None else self._blocked(self._limit_ms / 1000)
        return summary(handlers, verdicts, self._part_healths(), blocked=blocked, trouble=self._backend.trouble)

    def _part_healths(self) -> list[PartHealth]:
        return [part.health() for part in self._parts if isinstance(part, HasHealth)]

    def metrics(self) -> tuple[HandlerMetrics, ...]:
        """Return the current counters of the handlers, with the lags of the last check."""
        return tuple(
            HandlerMetrics(
                handler=runner.handler.__name__,
                group=runner.group,
                counts=msgspec.structs.replace(runner.counts),
                at_work=len(list(runner.in_flight())),
                lag_by_partition=self._tracks[runner].lag_by_partition if runner in self._tracks else {},
                age_seconds_by_partition={str(one): age for one, age in runner.ages_seconds().items()},
                histograms=runner.histograms(),
                moves=runner.moves,
                deleted_unread_by_partition={str(one): count for one, count in runner.deleted_unread.items()},
                failing={} if runner.failure_policy is None else runner.failure_policy.gauges(),
            )
            for runner in self._runners
        )


class _Track:
    """The history of one runner."""

    def __init__(self, runner: Runner, transactions: OpenTransactions) -> None:
        self._runner = runner
        self._transactions = transactions
        self._lags: deque[tuple[float, int]] = deque()
        self._finished: dict[TopicPartition, tuple[int, float]] = {}
        """How far each partition with lag was finished, and since when."""
        self._rebalancing_since: float | None = None
        self._polls_fail_since: float | None = None
        self._is_wedged = False
        self._lag: dict[TopicPartition, int] = {}
        self._missing = ""
        self._deleted_unread: tuple[Counter[TopicPartition], float] = Counter(), -_DELETED_SECONDS
        """The counts at the last check, and when they last grew."""
        self._group_moves = False
        """True while the group rebalances, even if it does not wait for this member."""

    @property
    def lag_by_partition(self) -> dict[str, int]:
        return {str(partition): lag for partition, lag in self._lag.items()}

    async def ask(self, backend: Backend) -> None:
        """Request the facts that only the log has. Keep the last ones if it does not answer now."""
        if self._runner.has_left:
            return
        is_starting = self._runner.last_poll_at is None
        with backend.timers.move_on_after(_ANSWER_SECONDS):
            try:
                self._lag = await self._runner.lag()
                [group] = await backend.describe_groups([self._runner.group])
                self._group_moves = group.state in ("PreparingRebalance", "CompletingRebalance")
                if is_starting:
                    return  # all topics existed a moment ago
                self._missing = await self._runner.missing_topics()
                if self._runner.is_committed_only:
                    read = [partition for partition, behind in self._lag.items() if not behind]
                    await self._transactions.look(read, backend.timers.current_time())
            except EventBusError as error:
                logger.debug("handler %r: its lag is not known: %s", self._runner.handler.__name__, error)

    def facts(self, now: float) -> Facts:
        runner, lag = self._runner, self._lag
        moves = self._group_moves or runner.is_rebalancing
        self._rebalancing_since = _since(self._rebalancing_since, moves, now)
        self._polls_fail_since = _since(self._polls_fail_since, bool(runner.poll_error), now)
        self._see_lag(lag, now)
        failed = {one: driver.error for one, driver in runner.drivers.items() if driver.error is not None}
        error = runner.error or next(iter(failed.values()), None)
        return Facts(
            handler=runner.handler.__name__,
            group=runner.group,
            running_ms=_ago(runner.started_at, now) or 0,
            has_left=runner.has_left,
            error="" if error is None else str(error),
            stopped=tuple(failed),
            since_last_poll_ms=_ago(runner.last_poll_at, now),
            since_last_commit_ms=_ago(runner.last_commit_at, now),
            since_last_assignment_ms=_ago(runner.last_assigned_at, now),
            rebalancing_ms=_ago(self._rebalancing_since, now),
            polls_failing_ms=_ago(self._polls_fail_since, now),
            poll_error=runner.poll_error,
            commits_failing_ms=_ago(runner.commit_failing_since, now),
            commit_error=runner.commit_error or "the log does not answer",
            assignment=tuple(sorted(lag)),
            lag=lag,
            at_work=[RecordAtWork(one.topic_partition, one.offset, _ms(now - one.since)) for one in runner.in_flight()],
            standing_ms={one: _ms(now - since) for one, (_, since) in self._finished.items()},
            waiting_for={**self._transactions.reasons, **runner.waiting_for},
            missing=self._missing,
            deleted_unread=self._deleted_lately(now),
            acks_by_hand=runner.handler.spec.ack == "manual",
        )

    def _deleted_lately(self, now: float) -> Counter[TopicPartition]:
        before, at = self._deleted_unread
        skipped = +self._runner.deleted_unread
        if skipped != before:
            self._deleted_unread = skipped, at = skipped, now
        return skipped if now - at < _DELETED_SECONDS else Counter()

    def _see_lag(self, lag: dict[TopicPartition, int], now: float) -> None:
        finished: dict[TopicPartition, tuple[int, float]] = {}
        # Records that wait for the end of an outage may occupy all workers. Then that is the reason why other records
        # wait.
        for one, behind in () if self._runner.waiting_for else lag.items():
            driver = self._runner.drivers.get(one)
            if behind > 0 and not (driver is not None and driver.waits):
                at = -1 if driver is None else driver.work.finished
                before = self._finished.get(one)
                finished[one] = before if before is not None and before[0] == at else (at, now)
        self._finished = finished
        if not self._lags or now - self._lags[-1][0] >= _LOOK_SECONDS / 2:
            self._lags.append((now, sum(lag.values())))
        while len(self._lags) > 2 and now - self._lags[1][0] >= _TREND_SECONDS:
            self._lags.popleft()

    def _trend(self, lag: int, now: float) -> float | None:
        """Return the rate in records per second."""
        then, before = self._lags[0]
        return round((lag - before) / (now - then), 1) if now > then else None

    def tell(self, verdict: Verdict) -> None:
        """Log once when the handler becomes wedged, and once when it recovers."""
        wedged, name = verdict.status == "wedged", self._runner.handler.__name__
        if wedged and not self._is_wedged:
            logger.warning("handler %r is wedged: %s", name, verdict.reason)
        elif self._is_wedged and not wedged:
            logger.warning("handler %r is not wedged any more: %s", name, verdict.reason)
        self._is_wedged = wedged

    def health(self, facts: Facts, verdict: Verdict, now: float) -> HandlerHealth:
        runner = self._runner
        total = sum(facts.lag.values())
        member = runner.member
        retries, next_retry_ms = (0, None) if runner.failure_policy is None else runner.failure_policy.depth()
        return HandlerHealth(
            handler=facts.handler,
            group=facts.group,
            status=verdict.status,
            reason=verdict.reason,
            since_last_poll_ms=facts.since_last_poll_ms,
            since_last_commit_ms=facts.since_last_commit_ms,
            since_last_assignment_ms=facts.since_last_assignment_ms,
            member_id=member.member_id,
            generation_id=member.generation_id,
            assignment=facts.assignment,
            paused=tuple(runner.paused),
            lag=total,
            lag_by_partition=self.lag_by_partition,
            lag_trend=self._trend(total, now),
            at_work=tuple(facts.at_work),
            counts=msgspec.structs.replace(runner.counts),
            retries=retries,
            next_retry_ms=next_retry_ms,
        )


def _since(known: float | None, is_so: bool, now: float) -> float | None:
    """Return since when the condition holds: now if it is new, None if it does not hold."""
    if not is_so:
        return None
    return now if known is None else known


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _ago(at: float | None, now: float) -> int | None:
    return None if at is None else _ms(now - at)

"""Apply a `Retry` policy to one handler: count calls, decide what happens, and build the records to write."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from dlq.circuit import Breaker
from dlq.classify import signal_of
from dlq.decisions import Again, Failed, Reason, RetryAt, Skipped, Stopped, decide
from dlq.events import Signals
from dlq.failures import class_of
from dlq.headers import Cause, dead_letter_record, size_of
from dlq.policy import Retry
from dlq.reporting import Reporter
from dlq.selection import MARK, RETRY_TOPIC_BYTES, looks_dead
from eventbus import recovery
from eventbus.delays.retry_partition import RetryPartition
from eventbus.delays.retry_records import Tried, attempts_of, entry_behind, retry_entry, root_of
from eventbus.recovery import Handling, Move, Outgoing, RetryOrder, Stop, Verdict, WaitHere
from eventbus.types import ConsumerRecord

_NO_LIMIT = 1 << 31
_MOST_IN_PLACE = 1000
"""Maximum number of tracked records. One per partition waits, or as many as are handled concurrently.
"""
_OPEN = {"closed": 0.0, "half-open": 0.5, "open": 1.0}

Place: TypeAlias = tuple[str, int, int]


class _InPlace(NamedTuple):
    """The calls of a record that waits in its partition, including those before the wait."""

    calls: int
    outages: int
    """Calls that ended in an outage and are not counted against the record."""
    first_failed_ms: int


class PolicyRecovery:
    """The failure policy of a running handler: it implements `eventbus.recovery.Recovery` with `Policy`."""

    def __init__(
        self,
        policy: Retry,
        handling: Handling,
        order: RetryOrder,
        retry_topic: str | None,
        dead_letter_topic: str | None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._handling = handling
        self.order: Final = order
        self.retry_topic: Final = retry_topic
        self.dead_letter_topic: Final = dead_letter_topic
        is_shared = policy.topic or retry_topic != recovery.retry_topic_of(handling.group)
        self.owner: Final = handling.group if is_shared else None
        """The group to write into entries. None if the topic is named after the group, and so has no other writer."""
        self._chance = chance
        self._breaker = None if policy.circuit is None else Breaker(policy.circuit)
        self._reporter = Reporter(policy, handling)
        self._max_message_bytes: Mapping[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        """Ids of the topics that the handler reads, as of the last assignment."""
        self._in_place: dict[Place, _InPlace] = {}
        """Records that wait or waited in their partition. This is kept only in memory."""
        self._waiting = 0
        self._oldest_due_ms: int | None = None

    @property
    def crashes(self) -> int | None:
        """How many crashes of the process at a record make it a dead letter. None if crashes are not counted."""
        return self._policy.crashes

    def configs(self, topic: str) -> Mapping[str, str]:
        keep = {"cleanup.policy": "delete", "retention.ms": "-1"}
        if topic == self.retry_topic:
            return {**keep, "max.message.bytes": str(RETRY_TOPIC_BYTES)}
        # the mark identifies it as a dead-letter topic whatever its name is
        return keep if looks_dead(topic, {}) else {**keep, MARK: "true"}

    def created(self, partitions: Mapping[str, int], max_message_bytes: Mapping[str, int]) -> None:
        self._max_message_bytes = dict(max_message_bytes)

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        self._topic_ids.update(topic_ids)

    def topic_id_of(self, record: ConsumerRecord) -> str:
        root = root_of(record)  # for a retry entry: the topic of the original record may have been deleted since
        return (root and root.topic_id) or self._topic_ids.get(record.topic, "")

    def waiting(self, partition: int) -> RetryPartition:
        return RetryPartition(
            self.order, owner=self.owner, max_waiting=self._policy.max_waiting,
            max_bytes=self._policy.max_waiting_bytes, logs_others=True, topic_ids=self._topic_ids,
        )  # fmt: skip

    def decide(self, record: ConsumerRecord, error: Exception, tries: int, now_ms: int) -> Verdict:
        tried = attempts_of(record)
        failed = self._failed(record, tried, tries, now_ms)
        if self._breaker is not None and self._blames_dependency(error):
            wait_ms = self._breaker.failed(now_ms)
            self._reporter.circuit(self._breaker, now_ms)
            if wait_ms:
                self._keep(record, failed, outages=failed.tries)
                return WaitHere(wait_ms / 1000, "the circuit of the handler is open")
            failed = failed._replace(circuit_open=self._breaker.state == "open")
        decision = decide(self._policy, error, failed, now_ms=now_ms, chance=self._chance())
        if isinstance(decision, Again):
            if _place(record) in self._in_place:
                self._keep(record, failed, outages=failed.outages - tried.outages)
            return recovery.Again()
        self._in_place.pop(_place(record), None)
        if isinstance(decision, RetryAt):
            return self._later(record, error, failed, tried, decision, now_ms)
        if isinstance(decision, Skipped):
            return recovery.Skip(decision.reason)
        if isinstance(decision, Stopped):
            return Stop()
        return self._dead(record, error, failed, decision.reason, now_ms)

    def behind(self, record: ConsumerRecord, now_ms: int) -> Outgoing:
        assert self.retry_topic is not None, "records wait only if there is a retry topic"
        return Outgoing(self.retry_topic, record.partition, entry_behind(record, self.owner, self.topic_id_of(record)))

    def admit(self, now_ms: int) -> float:
        """Implement `Recovery.admit`. A half-open circuit returns 0 to only one caller, whose record is the probe."""
        if self._breaker is None:
            return 0.0
        wait_ms = self._breaker.admit(now_ms)
        self._reporter.circuit(self._breaker, now_ms)
        return wait_ms / 1000

    def handled(self, count: int, now_ms: int) -> None:
        if self._breaker is not None:
            self._breaker.handled(count)
            self._reporter.circuit(self._breaker, now_ms)

    def depth(self, waiting: int, oldest_due_ms: int | None) -> None:
        self._waiting, self._oldest_due_ms = waiting, oldest_due_ms

    def gauges(self, now_ms: int) -> dict[str, float]:
        signals = self.signals(now_ms)
        gauges = {
            "retry_waiting_records": signals.waiting,
            "retry_overdue_seconds": signals.overdue_ms / 1000,
            "dead_letters_last_minute_records": signals.dead_letters_last_minute,
        }
        if signals.circuit is not None:
            gauges["circuit_open_ratio"] = _OPEN[signals.circuit]
        return gauges

    def signals(self, now_ms: int) -> Signals:
        """Return failure statistics of the handler in this process."""
        return self._reporter.signals(self._waiting, self._oldest_due_ms, self._breaker, now_ms)

    # counts

    def _blames_dependency(self, error: Exception) -> bool:
        """True if the error suggests that a dependency failed, not only this record."""
        return signal_of(error) is None and self._policy.kind_of(error) in ("retry", "outage")

    def _failed(self, record: ConsumerRecord, tried: Tried, tries: int, now_ms: int) -> Failed:
        """Add earlier calls to ``tries``, which counts only calls since the record last waited in its partition."""
        known = self._in_place.get(_place(record))
        first_failed_ms = known.first_failed_ms if known is not None else tried.first_failed_ms
        return Failed(
            tries=tries if known is None else known.calls + 1,
            before=tried.attempt,
            outages=tried.outages + (0 if known is None else known.outages),
            # A time in the future comes from a wrong clock, and by it the record would never be too old.
            first_failed_ms=now_ms if first_failed_ms is None else min(first_failed_ms, now_ms),
            hops=tried.hops,
        )

    def _keep(self, record: ConsumerRecord, failed: Failed, *, outages: int) -> None:
        """Remember a record that waits in its partition. ``outages``: its calls that are not counted against the
        record.
        """
        place = _place(record)
        if len(self._in_place) == _MOST_IN_PLACE and place not in self._in_place:
            del self._in_place[next(iter(self._in_place))]  # it was handled meanwhile, or went to another member
        self._in_place[place] = _InPlace(failed.tries, outages, failed.first_failed_ms or 0)

    # what was decided, written down

    def _later(
        self, record: ConsumerRecord, error: Exception, failed: Failed, tried: Tried, decision: RetryAt, now_ms: int
    ) -> Verdict:
        """Move the record to the retry topic. If there is none or it does not fit, let it wait in its partition."""
        # The last call determines whether all calls since the record was fetched count as an outage.
        outages = failed.tries if decision.is_outage else failed.outages - tried.outages
        message = self._reporter.message(error)
        text = f"{class_of(error)}: {message}"
        # Without later tries the retry topic is only being drained.
        if self.retry_topic is not None and self._policy.tries_later:
            entry = retry_entry(
                record,
                attempt=failed.attempts,
                due_ms=decision.due_ms,
                first_failed_ms=failed.first_failed_ms or 0,
                error=text,
                outages=tried.outages + outages,
                owner=self.owner,
                topic_id=self.topic_id_of(record),
            )
            if size_of(entry) <= self._max_message_bytes.get(self.retry_topic, _NO_LIMIT):
                self._reporter.retry(record, error, message, failed, decision.due_ms, now_ms)
                return Move(Outgoing(self.retry_topic, record.partition, entry), "retry")
        self._keep(record, failed, outages=outages)
        return WaitHere((decision.due_ms - now_ms) / 1000, text)

    def _dead(self, record: ConsumerRecord, error: Exception, failed: Failed, reason: Reason, now_ms: int) -> Verdict:
        topic = self.dead_letter_topic
        if topic is None:
            return Stop()
        cause = Cause(
            error=error,
            reason=reason,
            group=self._handling.group,
            handler=self._handling.handler,
            service=self._handling.client_id,
            topic_id=self.topic_id_of(record),
            attempts=failed.attempts,
            first_failed_ms=failed.first_failed_ms or 0,
            now_ms=now_ms,
            retry_topic=self.retry_topic,
        )
        max_bytes = self._max_message_bytes.get(topic, _NO_LIMIT)
        letter = dead_letter_record(record, cause, max_bytes=max_bytes, redact=self._policy.redact)
        message = self._reporter.message(error)
        self._reporter.dead_letter(record, error, message, failed, reason, topic, now_ms)
        return Move(Outgoing(topic, record.partition, letter), "dead-letter")


def _place(record: ConsumerRecord) -> Place:
    return record.topic, record.partition, record.offset

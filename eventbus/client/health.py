"""Health by progress: whether records move through each handler, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from eventbus.client.handling.invocation import HandlerCounts
from eventbus.types import TopicPartition

HandlerStatus = Literal["starting", "rebalancing", "running", "idle", "stopped", "wedged"]
"""The status of a handler.

``starting``: it has no assignment yet. ``rebalancing``: partitions move. ``running``: records wait or are in flight.
``idle``: there is nothing to do. ``stopped``: a partition stopped because its handler raised, or the handler has ended.
``wedged``: nothing moves, and that will not change without intervention.
"""

BusStatus = Literal["ok", "starting", "degraded", "failed"]
"""The status of a bus. ``degraded``: it works, but needs attention. ``failed``: a handler has stopped permanently."""

BusPhase = Literal["stopped", "starting", "running", "closing"]
"""The phase of a bus. ``closing``: records in flight are finished, and no others are started."""

_POLL_MS = 10_000
"""How long a poll itself may wait for records."""
_ORDER: tuple[BusStatus, ...] = ("ok", "starting", "degraded", "failed")


class RecordAtWork(msgspec.Struct, frozen=True):
    """A record, or the first record of a batch, whose handler has been called and has not finished."""

    topic_partition: TopicPartition
    offset: int
    for_ms: int
    """How long it has been in flight."""


class HandlerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one handler. Times are milliseconds before the query; None means never."""

    handler: str
    group: str
    status: HandlerStatus
    reason: str
    """Describes what happens, where, for how long, and what to do about it, if anything."""
    since_last_poll_ms: int | None
    since_last_commit_ms: int | None
    since_last_assignment_ms: int | None
    member_id: str
    generation_id: int
    """The group's generation as this member knows it; -1 if it has not joined."""
    assignment: tuple[TopicPartition, ...]
    paused: tuple[TopicPartition, ...]
    """Not fetched for now, because enough of their records wait for the handler."""
    lag: int
    """Unfinished records in this member's partitions."""
    lag_by_partition: dict[str, int]
    """Unfinished records by partition, as in ``{"orders-0": 12}``."""
    lag_trend: float | None
    """Change of the lag over the last minute in records per second; None if it is too early to know."""
    at_work: tuple[RecordAtWork, ...]
    counts: HandlerCounts
    """Records by outcome since the start."""
    retries: int = 0
    """Records in this member's partitions that wait for their next try."""
    next_retry_ms: int | None = None
    """When the first of them is due, in milliseconds since the epoch. None if none waits."""


class PartHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a part of the bus, such as an outbox's relay."""

    part: str
    """Kind and name of the part, such as "outbox eventbus_outbox"."""
    status: BusStatus
    reason: str
    """Describes what happens, since when, and what to do about it, if anything."""
    details: dict[str, Any] = {}
    """Further numbers and names that depend on the part."""


@runtime_checkable
class HasHealth(Protocol):
    """A `Part` whose health counts towards that of the bus."""

    def health(self) -> PartHealth:
        """Return the current health without any request."""
        ...


class BusHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a bus, its handlers and parts. ``msgspec.json.encode(health)`` makes it the body of a probe."""

    status: BusStatus
    reason: str
    """The most serious problem in one line."""
    handlers: tuple[HandlerHealth, ...] = ()
    parts: tuple[PartHealth, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """True unless only a restart or a person can help. Use it for liveness probes."""
        return self.status != "failed"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one handler as the input of `judge`. Times are in milliseconds before the query."""

    handler: str
    group: str
    running_ms: int
    """Time since its start."""
    has_left: bool = False
    """True if it no longer runs."""
    error: str = ""
    """The error of the first partition that stopped."""
    stopped: tuple[TopicPartition, ...] = ()
    """Partitions that stopped because a record failed."""
    since_last_poll_ms: int | None = None
    since_last_commit_ms: int | None = None
    since_last_assignment_ms: int | None = None
    rebalancing_ms: int | None = None
    """How long the group has been rebalancing. None if it is not."""
    polls_failing_ms: int | None = None
    """Time since the first of the polls that have failed in a row. None if polls succeed."""
    poll_error: str = ""
    commits_failing_ms: int | None = None
    """Time since the first of the commits that have failed in a row. None if commits succeed."""
    commit_error: str = ""
    assignment: tuple[TopicPartition, ...] = ()
    lag: Mapping[TopicPartition, int] = {}
    at_work: Sequence[RecordAtWork] = ()
    standing_ms: Mapping[TopicPartition, int] = {}
    """How long no record has finished, for each partition with lag."""
    acks_by_hand: bool = False
    waiting_for: Mapping[TopicPartition, str] = {}
    """Partitions in which a record waits in place, with the reason: an outage, or an open circuit."""
    missing: str = ""
    """Names topics that do not exist, or ""."""
    deleted_unread: Mapping[TopicPartition, int] = {}
    """Offsets skipped recently because their records were deleted before they were read."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of `judge`: the status of a handler, and its effect on the bus."""

    status: HandlerStatus
    reason: str
    weight: BusStatus = "ok"


def judge(facts: Facts, limit_ms: int) -> Verdict:
    """Return the most serious finding about a handler. Things may take up to ``limit_ms`` (``wedged_after_ms``)."""
    for rule in (_ended, _all_stopped, _no_poll, _failing_polls, _no_rest, _no_commits, _stuck_record, _standing):
        verdict = rule(facts, limit_ms)
        if verdict is not None:
            return verdict
    if facts.stopped:
        return Verdict("stopped", f"{_stopped(facts)}; its other partitions go on", "degraded")
    if facts.missing:
        return Verdict("running" if any(facts.lag.values()) else "idle", facts.missing, "degraded")
    if facts.waiting_for:
        partition, reason = next(iter(sorted(facts.waiting_for.items())))
        others = f" (and {len(facts.waiting_for) - 1} more partitions)" if len(facts.waiting_for) > 1 else ""
        return Verdict("running", f"{partition} waits{others}: {reason}", "degraded")
    if facts.polls_failing_ms is not None:
        return Verdict(
            "running", f"polls fail since {_seconds(facts.polls_failing_ms)}: {facts.poll_error}", "degraded"
        )
    if facts.commits_failing_ms is not None:
        return Verdict(
            "running", f"commits fail since {_seconds(facts.commits_failing_ms)}: {facts.commit_error}", "degraded"
        )
    if facts.deleted_unread:
        partitions, count = ", ".join(map(str, sorted(facts.deleted_unread))), sum(facts.deleted_unread.values())
        return Verdict(
            "running",
            f"{partitions}: {count:,} record(s) are lost to the handler. They were deleted before it read them, by "
            "retention or delete-records",
            "degraded",
        )
    if facts.rebalancing_ms is not None and facts.since_last_assignment_ms is None:
        return Verdict("starting", f"joining the group {facts.group!r}", "starting")
    if facts.since_last_poll_ms is None:
        return Verdict("starting", "has not polled yet", "starting")
    if facts.rebalancing_ms is not None:
        return Verdict("rebalancing", f"the group {facts.group!r} is reassigning its partitions")
    if facts.at_work or any(facts.lag.values()):
        return Verdict("running", f"{sum(facts.lag.values()):,} records to go")
    if not facts.assignment:
        return Verdict("idle", f"the group {facts.group!r} has more members than partitions, or no topic yet")
    return Verdict("idle", "everything is handled")


def _ended(facts: Facts, limit_ms: int) -> Verdict | None:
    if not facts.has_left:
        return None
    return Verdict("stopped", f"has ended{f': {facts.error}' if facts.error else ''}; restart the bus", "failed")


def _all_stopped(facts: Facts, limit_ms: int) -> Verdict | None:
    if not facts.stopped or set(facts.assignment) - set(facts.stopped):
        return None
    return Verdict("stopped", f"{_stopped(facts)}; it has no other partition", "failed")


def _no_poll(facts: Facts, limit_ms: int) -> Verdict | None:
    waits_ms = facts.running_ms if facts.since_last_poll_ms is None else facts.since_last_poll_ms
    if waits_ms <= limit_ms + _POLL_MS or facts.rebalancing_ms is not None:
        return None
    return _wedged(
        f"has not polled for {_seconds(waits_ms)}: the log does not answer, or the event loop has no time for it; "
        "restart the service if it lasts"
    )


def _failing_polls(facts: Facts, limit_ms: int) -> Verdict | None:
    if facts.polls_failing_ms is None or facts.polls_failing_ms <= limit_ms:
        return None
    return _wedged(
        f"no poll has worked for {_seconds(facts.polls_failing_ms)}: {facts.poll_error}; it is tried again, see "
        "whether the log can be reached"
    )


def _no_rest(facts: Facts, limit_ms: int) -> Verdict | None:
    if facts.rebalancing_ms is None or facts.rebalancing_ms <= limit_ms:
        return None
    return _wedged(
        f"the group {facts.group!r} has been rebalancing for {_seconds(facts.rebalancing_ms)}: a member does not come "
        f"back to it, a record in flight there may block it. To see which: run eventbus groups describe {facts.group}"
    )


def _no_commits(facts: Facts, limit_ms: int) -> Verdict | None:
    if facts.commits_failing_ms is None or facts.commits_failing_ms <= limit_ms:
        return None
    return _wedged(
        f"no offset could be committed for {_seconds(facts.commits_failing_ms)}: {facts.commit_error}; what was "
        "handled meanwhile is handled again after a restart"
    )


def _stuck_record(facts: Facts, limit_ms: int) -> Verdict | None:
    late = [one for one in facts.at_work if one.for_ms > limit_ms and _waits_behind(facts, one.topic_partition)]
    if not late:
        return None
    longest = max(late, key=lambda one: one.for_ms)
    others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
    return _wedged(
        f"{longest.topic_partition} offset {longest.offset} has been in flight for {_seconds(longest.for_ms)}{others}, "
        f"and {_waits_behind(facts, longest.topic_partition):,} records wait for it: see what the handler waits "
        "for, and limit it with timeout=..."
    )


def _waits_behind(facts: Facts, topic_partition: TopicPartition) -> int:
    at_work = sum(one.topic_partition == topic_partition for one in facts.at_work)
    return max(0, facts.lag.get(topic_partition, 0) - at_work)


def _standing(facts: Facts, limit_ms: int) -> Verdict | None:
    """Find a partition that does not move although no handler works on it, for none of the known reasons."""
    busy = {one.topic_partition for one in facts.at_work}
    late = {
        one: ms
        for one, ms in facts.standing_ms.items()
        if ms > limit_ms and one not in busy and one not in facts.stopped
    }
    if not late or facts.rebalancing_ms is not None:
        return None
    longest = max(late, key=lambda one: late[one])
    others = f" (and {len(late) - 1} more partitions)" if len(late) > 1 else ""
    oldest = max(facts.at_work, key=lambda one: one.for_ms, default=None)
    if oldest is not None and oldest.for_ms > limit_ms:
        why = (
            f"the handler is busy with {oldest.topic_partition} offset {oldest.offset} for "
            f"{_seconds(oldest.for_ms)}: see what it waits for, limit it with timeout=..., or raise concurrency="
        )
    elif facts.acks_by_hand:
        why = (
            "no record is in flight there: records were handled and never acknowledged: every path of the handler must "
            "lead to record.ack()"
        )
    else:
        why = (
            "no record is in flight there: they are not fetched, or outputs of the handler are not stored; the log's "
            "warnings may say why"
        )
    return _wedged(
        f"no record of {longest} has finished for {_seconds(late[longest])}{others}, {facts.lag.get(longest, 0):,} "
        f"wait, and {why}"
    )


def _wedged(reason: str) -> Verdict:
    return Verdict("wedged", reason, "failed")


def _stopped(facts: Facts) -> str:
    names = ", ".join(map(str, facts.stopped))
    return f"{names} stopped: {facts.error}; fix it and restart (on_error says what a failure does)"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms // 1000:,} s"


def summary(
    handlers: Sequence[HandlerHealth],
    verdicts: Sequence[Verdict],
    parts: Sequence[PartHealth] = (),
    *,
    blocked: str = "",
    trouble: str = "",
) -> BusHealth:
    """Combine all handlers and parts into a status and a single line.

    ``blocked`` and ``trouble`` are remarks about the event loop and the log, or "".
    """
    remarks: list[tuple[BusStatus, str]] = [
        (verdict.weight, f"handler {one.handler!r}: {verdict.reason}")
        for one, verdict in zip(handlers, verdicts, strict=True)
    ]
    remarks.extend((part.status, f"{part.part}: {part.reason}") for part in parts)
    remarks.extend(("degraded", what) for what in (trouble, blocked) if what)
    status = _ORDER[max((_ORDER.index(weight) for weight, _ in remarks), default=0)]
    if status == "ok":
        return BusHealth(status="ok", reason=_fine(handlers, parts), handlers=tuple(handlers), parts=tuple(parts))
    reasons = [reason for weight, reason in remarks if weight == status]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return BusHealth(status=status, reason=reasons[0] + more, handlers=tuple(handlers), parts=tuple(parts))


def _fine(handlers: Sequence[HandlerHealth], parts: Sequence[PartHealth]) -> str:
    if not handlers:
        return "; ".join(f"{one.part}: {one.reason}" for one in parts) or "the bus runs, without handlers"
    counted = {status: sum(one.status == status for one in handlers) for status in ("running", "rebalancing", "idle")}
    return "handlers: " + ", ".join(f"{count} {status}" for status, count in counted.items() if count)

"""Health by progress: not whether a task is alive, but whether records go through it, and what stands in their way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from eventbus.client.handling.calls import Counts
from eventbus.types import TopicPartition

HandlerStatus = Literal["starting", "rebalancing", "running", "idle", "stopped", "wedged"]
"""``starting``: has no share of its group yet; ``rebalancing``: partitions move; ``running``: records wait or are at
work; ``idle``: nothing to do; ``stopped``: a partition stands since its handler raised, or the handler has ended;
``wedged``: nothing moves, and nothing will by itself."""

BusStatus = Literal["ok", "starting", "degraded", "failed"]
"""``degraded``: it works, and somebody should look; ``failed``: a handler does nothing any more, and will not."""

BusPhase = Literal["stopped", "starting", "running", "closing"]
"""Where in its life a bus is; ``closing``: records at work are finished, no others are begun."""

_POLL_MS = 10_000
"""So long a poll itself may wait for records."""
_ORDER: tuple[BusStatus, ...] = ("ok", "starting", "degraded", "failed")


class RecordAtWork(msgspec.Struct, frozen=True):
    """A record (of a batch, its first one) that a handler was called with and that has not finished."""

    topic_partition: TopicPartition
    offset: int
    for_ms: int
    """How long it has been at work, as of the moment of the question."""


class HandlerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one handler of a bus does. Times in milliseconds before the question; None: never."""

    handler: str
    group: str
    status: HandlerStatus
    reason: str
    """What is so, where, for how long, and what to do about it, if anything."""
    since_last_poll_ms: int | None
    since_last_commit_ms: int | None
    since_last_assignment_ms: int | None
    member_id: str
    generation_id: int
    """Of the group, as this member knows it; -1: it has not joined."""
    assignment: tuple[TopicPartition, ...]
    paused: tuple[TopicPartition, ...]
    """Not fetched for now, because enough of their records wait for the handler."""
    lag: int
    """Records of this member's partitions that are not finished."""
    lag_by_partition: dict[str, int]
    """The same for each, as in ``{"orders-0": 12}``."""
    lag_trend: float | None
    """Records a second by which the lag has grown over the last minute (negative: it shrinks); None: too early."""
    at_work: tuple[RecordAtWork, ...]
    counts: Counts
    """What became of records since the start."""
    retries: int = 0
    """Records that wait for their next try, of this member's partitions."""
    next_retry_ms: int | None = None
    """When the first of them is due, in milliseconds since the epoch; None: none waits."""


class PartHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How something that lives with a bus does: an outbox's relay, say."""

    part: str
    """What it is, as in "outbox eventbus_outbox"."""
    status: BusStatus
    reason: str
    """What is so, since when, and what to do about it, if anything."""
    details: dict[str, Any] = {}
    """Numbers and names of its own."""


@runtime_checkable
class HasHealth(Protocol):
    """A `Part` of a bus that the bus's health takes into account."""

    def health(self) -> PartHealth:
        """As of now, and without asking anybody."""
        ...


class BusHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How a bus, its handlers and parts do; ``msgspec.json.encode(health)`` makes it a probe's answer."""

    status: BusStatus
    reason: str
    """One line: the worst there is to say."""
    handlers: tuple[HandlerHealth, ...] = ()
    parts: tuple[PartHealth, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """What a liveness probe asks: False when only a restart helps, or a person."""
        return self.status != "failed"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What `judge` goes by: how one handler stands at one moment. Times in milliseconds before it."""

    handler: str
    group: str
    running_ms: int
    """Since its start."""
    has_left: bool = False
    """It runs no more."""
    error: str = ""
    """Of the first partition that stopped."""
    stopped: tuple[TopicPartition, ...] = ()
    """Partitions that stand since a record of theirs failed."""
    since_last_poll_ms: int | None = None
    since_last_commit_ms: int | None = None
    since_last_assignment_ms: int | None = None
    rebalancing_ms: int | None = None
    """For how long the group has been rebalancing; None: it is not."""
    polls_failing_ms: int | None = None
    """Since the first failed poll that no successful one followed; None: they work."""
    poll_error: str = ""
    commits_failing_ms: int | None = None
    """Since the first failed commit that no successful one followed; None: they work."""
    commit_error: str = ""
    assignment: tuple[TopicPartition, ...] = ()
    lag: Mapping[TopicPartition, int] = {}
    at_work: Sequence[RecordAtWork] = ()
    standing_ms: Mapping[TopicPartition, int] = {}
    """Per partition with lag: for how long no record of it has finished."""
    acks_by_hand: bool = False
    waiting_for: Mapping[TopicPartition, str] = {}
    """Partitions in which a record waits in its place, and the reason: an outage, an open circuit."""
    missing: str = ""
    """Which of its topics do not exist."""
    deleted_unread: Mapping[TopicPartition, int] = {}
    """Offsets that were skipped lately, because their records were deleted before they were read."""


class Verdict(msgspec.Struct, frozen=True):
    """What `judge` says of a handler, and what that makes of its bus."""

    status: HandlerStatus
    reason: str
    weight: BusStatus = "ok"


def judge(facts: Facts, limit_ms: int) -> Verdict:
    """The worst that is true of a handler. ``limit_ms``: what may take time, may take so long (``wedged_after_ms``)."""
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
        return Verdict("rebalancing", f"the group {facts.group!r} shares its partitions anew")
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
        f"back to it, as a record at work there may keep it; see which: eventbus groups describe {facts.group}"
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
        f"{longest.topic_partition} offset {longest.offset} has been at work for {_seconds(longest.for_ms)}{others}, "
        f"and {_waits_behind(facts, longest.topic_partition):,} records wait behind it: see what the handler waits "
        "for, and limit it with timeout=..."
    )


def _waits_behind(facts: Facts, topic_partition: TopicPartition) -> int:
    at_work = sum(one.topic_partition == topic_partition for one in facts.at_work)
    return max(0, facts.lag.get(topic_partition, 0) - at_work)


def _standing(facts: Facts, limit_ms: int) -> Verdict | None:
    """A partition that nobody is at, and that does not move: whatever the reason is, it is none of the known ones."""
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
            f"the handler is at work elsewhere, at {oldest.topic_partition} offset {oldest.offset} for "
            f"{_seconds(oldest.for_ms)}: see what it waits for, limit it with timeout=..., or raise concurrency="
        )
    elif facts.acks_by_hand:
        why = (
            "no handler is at work there: records were handled and never acknowledged: every path of the handler must "
            "lead to record.ack()"
        )
    else:
        why = (
            "no handler is at work there: they are not fetched, or outputs of the handler are not stored; the log's "
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
    return f"{names} stopped: {facts.error}; mend it and restart (on_error says what a failure does)"


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
    """All handlers and parts in one status and one line. ``blocked``: what is to be said of the event loop, if
    anything; ``trouble``: of the log."""
    said: list[tuple[BusStatus, str]] = [
        (verdict.weight, f"handler {one.handler!r}: {verdict.reason}")
        for one, verdict in zip(handlers, verdicts, strict=True)
    ]
    said.extend((part.status, f"{part.part}: {part.reason}") for part in parts)
    said.extend(("degraded", what) for what in (trouble, blocked) if what)
    status = _ORDER[max((_ORDER.index(weight) for weight, _ in said), default=0)]
    if status == "ok":
        return BusHealth(status="ok", reason=_fine(handlers, parts), handlers=tuple(handlers), parts=tuple(parts))
    reasons = [reason for weight, reason in said if weight == status]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return BusHealth(status=status, reason=reasons[0] + more, handlers=tuple(handlers), parts=tuple(parts))


def _fine(handlers: Sequence[HandlerHealth], parts: Sequence[PartHealth]) -> str:
    if not handlers:
        return "; ".join(f"{one.part}: {one.reason}" for one in parts) or "the bus runs, without handlers"
    counted = {status: sum(one.status == status for one in handlers) for status in ("running", "rebalancing", "idle")}
    return "handlers: " + ", ".join(f"{count} {status}" for status, count in counted.items() if count)

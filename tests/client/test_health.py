"""Health: the rules as a table, what a running bus says of itself, and the warnings."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from eventbus import BusHealth, HandlerHealth, TopicPartition
from eventbus.client.handling.invocation import HandlerCounts
from eventbus.client.health import BusStatus, Facts, HandlerStatus, PartHealth, RecordAtWork, Verdict, judge, summary

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LIMIT_MS = 60_000
LONG_MS = LIMIT_MS + 1

WELL: dict[str, Any] = {
    "handler": "bill",
    "group": "billing",
    "running_ms": 3_600_000,
    "since_last_poll_ms": 10,
    "since_last_commit_ms": 100,
    "since_last_assignment_ms": 3_599_000,
    "assignment": (A, B),
    "lag": {A: 0, B: 0},
}


def at_work(for_ms: int, partition: TopicPartition = A) -> list[RecordAtWork]:
    return [RecordAtWork(partition, 17, for_ms)]


TABLE: list[tuple[str, dict[str, Any], HandlerStatus, BusStatus, str]] = [
    ("idle", {}, "idle", "ok", "everything is handled"),
    ("busy", {"lag": {A: 3, B: 1}, "at_work": at_work(5)}, "running", "ok", "4 records to go"),
    ("lag alone", {"lag": {A: 3, B: 0}}, "running", "ok", "3 records to go"),
    ("one too many", {"assignment": (), "lag": {}}, "idle", "ok", "more members than partitions"),
    (
        "just begun",
        {"running_ms": 5, "since_last_poll_ms": None, "since_last_assignment_ms": None, "assignment": (), "lag": {}},
        "starting", "starting", "has not polled yet",
    ),
    (
        "joining",
        {"rebalancing_ms": 5, "since_last_assignment_ms": None, "assignment": (), "lag": {}},
        "starting", "starting", "joining the group 'billing'",
    ),
    ("rebalancing", {"rebalancing_ms": LIMIT_MS}, "rebalancing", "ok", "is reassigning its partitions"),
    (
        "rebalancing for ever", {"rebalancing_ms": LONG_MS},
        "wedged", "failed", "the group 'billing' has been rebalancing for 60 s.*eventbus groups describe billing",
    ),
    (
        "joining for ever",
        {"rebalancing_ms": LONG_MS, "since_last_assignment_ms": None, "assignment": (), "lag": {}},
        "wedged", "failed", "rebalancing for 60 s",
    ),
    ("polls late", {"since_last_poll_ms": LIMIT_MS + 10_000}, "idle", "ok", ""),
    ("polls no more", {"since_last_poll_ms": 75_000}, "wedged", "failed", "has not polled for 75 s.*restart"),
    (
        "never polled", {"since_last_poll_ms": None, "running_ms": LONG_MS + 10_000},
        "wedged", "failed", "has not polled for 70 s",
    ),
    ("drains for a rebalance", {"since_last_poll_ms": LONG_MS, "rebalancing_ms": 1_000}, "rebalancing", "ok", ""),
    (
        "a commit failed", {"commits_failing_ms": 200, "commit_error": "disk full"},
        "running", "degraded", r"commits fail since 0\.2 s: disk full",
    ),
    (
        "commits fail", {"commits_failing_ms": LONG_MS, "commit_error": "disk full"},
        "wedged", "failed", "no offset could be committed for 60 s: disk full.*handled again",
    ),
    (
        "a poll failed", {"polls_failing_ms": 12_345, "poll_error": "no answer"},
        "running", "degraded", "polls fail since 12 s: no answer",
    ),
    (
        "polls fail", {"polls_failing_ms": LONG_MS, "poll_error": "x"},
        "wedged", "failed", "no poll has worked for 60 s: x",
    ),
    ("a long record", {"lag": {A: 9, B: 0}, "at_work": at_work(LIMIT_MS)}, "running", "ok", ""),
    (
        "a record too long", {"lag": {A: 9, B: 0}, "at_work": at_work(95_000)},
        "wedged", "failed", "t-0 offset 17 has been in flight for 95 s, and 8 records wait for it.*timeout=",
    ),
    ("a long record that keeps nobody waiting", {"lag": {A: 1, B: 0}, "at_work": at_work(95_000)}, "running", "ok", ""),
    ("lag elsewhere", {"lag": {A: 1, B: 50}, "at_work": at_work(95_000)}, "running", "ok", ""),
    (
        "two of them", {"lag": {A: 9, B: 5}, "at_work": [*at_work(95_000), *at_work(99_000, B)]},
        "wedged", "failed", r"t-1 offset 17 has been in flight for 99 s \(and 1 more\), and 4 records",
    ),
    (
        "a partition stopped", {"stopped": (A,), "error": "t-0 offset 3: boom"},
        "stopped", "degraded", "t-0 stopped: t-0 offset 3: boom; fix it and restart.*other partitions go on",
    ),
    (
        "all stopped", {"stopped": (A, B), "error": "boom", "lag": {A: 9, B: 5}},
        "stopped", "failed", "t-0, t-1 stopped: boom.*no other partition",
    ),
    (
        "stopped, with lag", {"stopped": (A,), "error": "boom", "lag": {A: 9, B: 0}, "standing_ms": {A: 10 * LONG_MS}},
        "stopped", "degraded", "t-0 stopped: boom",
    ),
    (
        "waits for the end of an outage", {"waiting_for": {A: "an outage: no database", B: "an outage: no database"}},
        "running", "degraded", r"t-0 waits \(and 1 more partitions\): an outage: no database",
    ),
    ("ended", {"has_left": True}, "stopped", "failed", "has ended; restart the bus"),
    ("ended badly", {"has_left": True, "error": "boom"}, "stopped", "failed", "has ended: boom"),
    ("stands", {"lag": {A: 9, B: 0}, "standing_ms": {A: LIMIT_MS}}, "running", "ok", ""),
    (
        "stands too long", {"lag": {A: 9, B: 0}, "standing_ms": {A: 3_600_000}},
        "wedged", "failed", "no record of t-0 has finished for 3,600 s, 9 wait, and no record is in flight there: they",
    ),
    (
        "never acknowledged", {"lag": {A: 9, B: 0}, "standing_ms": {A: LONG_MS}, "acks_by_hand": True},
        "wedged", "failed", r"never acknowledged: .* record\.ack\(\)",
    ),
    (
        "the one call there may be hangs elsewhere",
        {"lag": {A: 9, B: 1}, "standing_ms": {A: LONG_MS}, "at_work": at_work(LONG_MS, B)},
        "wedged", "failed", "no record of t-0.*9 wait, and the handler is busy with t-1 offset 17 for 60 s",
    ),
    (
        "stands while its record is at work",
        {"lag": {A: 9, B: 0}, "standing_ms": {A: LONG_MS}, "at_work": at_work(LIMIT_MS)}, "running", "ok", "",
    ),
    (
        "stands in a rebalance", {"lag": {A: 9, B: 0}, "standing_ms": {A: LONG_MS}, "rebalancing_ms": 10},
        "rebalancing", "ok", "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changed", "status", "weight", "reason"), TABLE, ids=[row[0] for row in TABLE])
def test_what_is_said_of_a_handler(
    name: str, changed: dict[str, Any], status: HandlerStatus, weight: BusStatus, reason: str
) -> None:
    verdict = judge(Facts(**{**WELL, **changed}), LIMIT_MS)
    assert (verdict.status, verdict.weight) == (status, weight), verdict
    assert re.search(reason, verdict.reason), verdict.reason
    assert "\n" not in verdict.reason


def test_every_status_is_in_the_table() -> None:
    assert {row[2] for row in TABLE} == set(HandlerStatus.__args__)
    assert {row[3] for row in TABLE} == set(BusStatus.__args__)


def handler(name: str, status: HandlerStatus = "running") -> HandlerHealth:
    return HandlerHealth(
        handler=name,
        group="g",
        status=status,
        reason="",
        since_last_poll_ms=1,
        since_last_commit_ms=None,
        since_last_assignment_ms=2,
        member_id="m",
        generation_id=3,
        assignment=(A,),
        paused=(),
        lag=4,
        lag_by_partition={"t-0": 4},
        lag_trend=-1.5,
        at_work=tuple(at_work(5)),
        counts=HandlerCounts(),
    )


def test_the_worst_handler_is_the_bus() -> None:
    well, slow, dead = (
        Verdict("running", "4 to go"),
        Verdict("running", "slow", "degraded"),
        Verdict("wedged", "stuck", "failed"),
    )
    names = [handler("a"), handler("b"), handler("c")]
    assert summary([], []) == BusHealth(status="ok", reason="the bus runs, without handlers")
    assert summary(names, [well] * 3).reason == "handlers: 3 running"
    assert summary(names, [well] * 3).is_healthy
    degraded = summary(names, [well, slow, slow])
    assert (degraded.status, degraded.reason) == ("degraded", "handler 'b': slow (and 1 more)") and degraded.is_healthy
    failed = summary(names, [slow, dead, well])
    assert (failed.status, failed.reason) == ("failed", "handler 'b': stuck") and not failed.is_healthy
    blocked = summary(names, [well] * 3, blocked="the event loop was blocked for 5.0 s")
    assert (blocked.status, blocked.reason) == ("degraded", "the event loop was blocked for 5.0 s")


def test_parts_count_as_handlers_do() -> None:
    fine = PartHealth(part="outbox a", status="ok", reason="nothing waits")
    late = PartHealth(part="outbox b", status="degraded", reason="12 events wait since 70 s", details={"backlog": 12})
    dead = PartHealth(part="outbox c", status="failed", reason="the tables are of another version")
    well = Verdict("running", "4 to go")
    assert summary([], [], [fine]).reason == "outbox a: nothing waits"
    assert summary([handler("h")], [well], [fine]).reason == "handlers: 1 running"
    degraded = summary([handler("h")], [well], [fine, late])
    assert (degraded.status, degraded.reason) == ("degraded", "outbox b: 12 events wait since 70 s")
    assert degraded.parts == (fine, late) and degraded.is_healthy
    assert summary([], [], [late, dead]).reason == "outbox c: the tables are of another version"
    assert msgspec.json.decode(msgspec.json.encode(degraded))["parts"][1]["details"] == {"backlog": 12}


def test_a_probe_can_answer_with_it() -> None:
    text = msgspec.json.encode(summary([handler("a")], [Verdict("running", "")]))
    decoded = msgspec.json.decode(text)
    assert decoded["status"] == "ok"
    assert decoded["handlers"][0]["lag_by_partition"] == {"t-0": 4}
    assert decoded["handlers"][0]["at_work"][0]["offset"] == 17

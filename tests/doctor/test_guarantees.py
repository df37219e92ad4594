"""What is said of a handler, by its facts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from eventbus.doctor import HandlerReport, examine
from eventbus.doctor.facts import Facts, HandlerFacts, RetryFacts
from eventbus.doctor.guarantees import durability
from eventbus.doctor.text import lines_of


def of(**options: Any) -> HandlerReport:
    one = HandlerFacts(**{"name": "h", "topics": ("t",), "group": "g", **options})
    return examine(Facts(url="file://./data", handlers=(one,))).handlers[0]


def test_at_least_once() -> None:
    told = of()
    assert told.delivery.startswith("at least once: committed after the handler")
    assert told.duplicates == (
        "after a crash: what was finished in the last 100 ms, and what was in flight; after a clean stop: none"
    )
    assert told.crash["after"] == "handled again, unless its offset is committed"
    assert told.commits == "every 100 ms; the finished beginning of each partition, never past a gap"
    told = of(commit_every=10, commit_interval_ms=60_000)
    assert "finished in the last 1 min, at most 10 records" in told.duplicates
    assert "or as soon as 10 records are finished" in told.commits


def test_at_most_once() -> None:
    told = of(delivery="at-most-once", commit_every=7)
    assert told.duplicates == "none; a crash loses what was committed and not handled yet, up to 7 records"
    assert told.crash["in"] == "lost: it is committed" and told.commits == "before each slice of 7 records"
    assert "up to 500 records" in of(delivery="at-most-once").duplicates


def test_exactly_once() -> None:
    told = of(delivery="exactly-once", transaction_records=50, publishes="out")
    assert "one transaction, of up to 50 records" in told.delivery and told.publishes == "out"
    assert told.duplicates.startswith("none in the log") and "up to 50 records" in told.duplicates
    assert told.crash["in"].startswith("its transaction is aborted")


def test_in_a_database() -> None:
    told = of(tx=True)
    assert told.delivery.startswith("once in its database") and told.duplicates.startswith("none in the database")
    assert told.crash["in"].startswith("the database rolls back") and told.crash["after"].startswith("nothing")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "records of a partition in order, partitions side by side"),
        ({"concurrency": 4}, "up to 4 partitions side by side"),
        ({"is_async": False}, "one at a time in total, in one thread"),
        ({"order": "key", "concurrency": 32}, "up to 32 keys side by side"),
        ({"order": "none", "concurrency": 8}, "none: up to 8 records side by side"),
        ({"order": "global"}, "it has one partition"),
        ({"batch": True}, "batches of a partition"),
    ],
)
def test_order(options: dict[str, Any], expected: str) -> None:
    assert expected in of(**options).order


def test_without_order_records_after_a_gap_are_repeated() -> None:
    told = of(order="key", concurrency=4, max_unfinished=99)
    assert "finished after a record that was not, up to 99 records of each partition" in told.duplicates
    assert "finished after a record" in of(ack="manual").duplicates


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "its partition stops, loudly; the others go on; an outage is waited for in its place"),
        ({"on_error": "skip"}, "the record is lost; an outage"),
        ({"on_error": "crash"}, "the bus ends with the error"),
        (
            {"retry": RetryFacts(at_once=2, delays_ms=(5_000, 600_000), retry_topic="r", dead_letter_topic="d")},
            "2 more tries at once, then after 5 s, 10 min in r, then to d",
        ),
        ({"retry": RetryFacts(at_once=1)}, "1 more try at once, then its partition stops, loudly; the others go on"),
        ({"retry": RetryFacts(at_once=0, dead_letter_topic="d")}, "no further try, then to d"),
        (
            {"retry": RetryFacts(at_once=0, dead_letter_topic="d", redrive_topic="r")},
            "no further try, then to d (redriven letters come in r)",
        ),
        (
            {"retry": RetryFacts(at_once=0, decides_by_function=True, retry_topic="r", dead_letter_topic="d")},
            "then when its function of delays says, in r, then to d",
        ),
        (
            {"retry": RetryFacts(policy="<mine>")},
            "as <mine> decides, then its partition stops, loudly",
        ),
        ({"problem": "no name"}, "cannot be said: no name"),
    ],
)
def test_failures(options: dict[str, Any], expected: str) -> None:
    assert expected in of(**options).failure


def test_crashes_that_count() -> None:
    assert of(retry=RetryFacts(at_once=0, crashes=3)).crash["in"].endswith("after 3 crashes it counts as failed")


def test_rebalances() -> None:
    assert of().rebalance.endswith("the others stop for that time")
    assert of(cooperative=True, drain_timeout_ms=500).rebalance.endswith("the others go on")
    assert "has 500 ms to end" in of(drain_timeout_ms=500).rebalance
    assert "a restart within 45 s moves none" in of(group_instance_id="a").rebalance
    assert "it is not waited for" in of(is_async=False).rebalance


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "survives a power cut"),
        ({"fsync": "interval", "fsync_interval_ms": 7}, "at most the last 7 ms"),
        ({"fsync": "os"}, "5 to 30 s"),
        ({"acks": "1"}, "acknowledged when written"),
        ({"acks": "0"}, "sends do not wait"),
        ({"scheme": "memory"}, "nothing survives the process"),
        ({"scheme": "kafka"}, "all replicas in sync have it"),
        ({"scheme": "kafka", "acks": "1"}, "a failover may lose it"),
    ],
)
def test_what_an_acknowledged_record_survives(changes: dict[str, Any], expected: str) -> None:
    assert expected in durability(msgspec.structs.replace(Facts(url="x"), **changes))


def test_lines_are_no_wider_than_a_page() -> None:
    long = HandlerFacts(name="h", topics=("t",), group="g", delivery="exactly-once", on_error="skip")
    lines = list(lines_of(examine(Facts(url="file://./data", handlers=(long,)))))
    assert max(map(len, lines)) <= 118
    assert lines[-1] == "1 handler(s), 0 error(s), 1 warning(s)"

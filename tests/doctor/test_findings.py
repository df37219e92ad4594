"""Rules over facts: each finds what it is for, and nothing where all is well."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec
import pytest

from eventbus.doctor import Facts, examine, findings
from eventbus.doctor.facts import HandlerFacts, LogFacts, ProducerFacts, RetryFacts
from tests.named import find_page

WELL = HandlerFacts(name="bill", topics=("orders",), group="g", publishes="bills", delivery="exactly-once")


def facts(*handlers: HandlerFacts, **changes: Any) -> Facts:
    producers = (ProducerFacts(name="place", topic="orders", has_key=True),)
    return msgspec.structs.replace(
        Facts(url="file://./data", handlers=handlers, producers=producers, topics={"orders": 3}), **changes
    )


def with_(**changes: Any) -> HandlerFacts:
    return msgspec.structs.replace(WELL, **changes)


def found(facts: Facts) -> dict[str, str]:
    return {one.code: one.severity for one in examine(facts).findings}


def test_where_all_is_well_nothing_is_found() -> None:
    assert examine(facts(WELL)).findings == []


PLAIN = {"delivery": "at-least-once", "publishes": None}


@pytest.mark.parametrize(
    ("case", "code", "severity"),
    [
        (facts(WELL, acks="0"), "acks-and-exactly-once", "warning"),
        (facts(with_(**PLAIN), acks="1"), "weak-acks", "warning"),
        (facts(WELL, fsync="os"), "weak-fsync", "warning"),
        (facts(with_(**PLAIN), fsync="interval"), "weak-fsync", "info"),
        (facts(with_(**PLAIN, tx=True), fsync="os"), "weak-fsync", "warning"),
        (facts(with_(), with_(name="other")), "shared-group", "error"),
        (facts(with_(), with_(name="other", topics=(), pattern="ord.*")), "shared-group", "error"),
        (facts(with_(), with_(group="h")), "name-twice", "warning"),
        (
            facts(with_(group_instance_id="a"), with_(name="b", topics=("bills",), group_instance_id="a")),
            "static-id-twice",
            "error",
        ),
        (facts(with_(group_instance_id="a")), "static-member", "info"),
        (facts(with_(order="global")), "global-order", "error"),
        (facts(with_(problem="no")), "cannot-start", "error"),
        (facts(WELL, problems=("no",)), "cannot-start", "error"),
        (facts(WELL, notes=("EVENTBUS_X",)), "unknown-name", "warning"),
        (
            facts(with_(retry=RetryFacts(at_once=0, dead_letter_topic="dlq.g"))),
            "dead-letters-without-retry",
            "warning",
        ),
        (facts(with_(on_error="skip")), "skips", "warning"),
        (
            facts(with_(retry=RetryFacts(at_once=1, delays_ms=(5,), retry_topic="r", dead_letter_topic="d"))),
            "retry-overtaken",
            "warning",
        ),
        (facts(with_(**PLAIN, commit_interval_ms=60_000)), "long-window", "warning"),
        (facts(with_(publishes=None)), "exactly-once-of-nothing", "info"),
        (facts(with_(delivery="at-least-once")), "outputs-twice", "info"),
        (
            facts(with_(order="key", concurrency=4), producers=(ProducerFacts(name="p", topic="orders"),)),
            "order-without-keys",
            "warning",
        ),
        (facts(with_(order="none", concurrency=4)), "keys-without-order", "warning"),
        (facts(with_(drain_timeout_ms=400_000)), "drain-too-long", "warning"),
        (facts(with_(timeout_seconds=400)), "timeout-too-long", "warning"),
        (facts(with_(timeout_seconds=90)), "timeout-and-transaction", "warning"),
        (facts(with_(timeout_seconds=40)), "timeout-and-drain", "info"),
        (facts(with_(blocking_calls=("time.sleep (line 3)",))), "blocks-the-loop", "warning"),
        (facts(with_(is_async=False)), "one-thread", "info"),
        (facts(WELL, slow_loop_ms=None), "slow-loop-off", "info"),
        (facts(WELL, producers=()), "nobody-produces", "info"),
        (facts(with_(topics=("order",)), topics={}), "misspelt-topic", "warning"),
        (facts(), "nobody-consumes", "info"),
        (facts(WELL, auto_create_topics=True), "auto-create", "info"),
        (facts(WELL, scheme="memory"), "memory", "info"),
        (facts(WELL, secret_in_url=True), "secret-in-url", "warning"),
        (
            facts(WELL, scheme="kafka", security_protocol="SASL_PLAINTEXT", mechanism="PLAIN"),
            "password-in-clear",
            "warning",
        ),
        (facts(WELL, scheme="kafka", verifies_certificates=False), "certificates", "warning"),
        (facts(WELL, log=LogFacts(problem="away")), "log", "error"),
        (facts(WELL, topics={}, log=LogFacts(topics={"ordrs": 1})), "missing-topic", "error"),
        (facts(WELL, log=LogFacts(topics={"orders": 6})), "other-partitions", "warning"),
        (facts(with_(concurrency=8), log=LogFacts(topics={"orders": 3})), "idle-concurrency", "warning"),
        (facts(WELL, log=LogFacts(topics={"orders": 3}, members={"g": 3})), "idle-members", "warning"),
        (facts(WELL, log=LogFacts(directory="d", writable=False)), "permissions", "error"),
        (facts(WELL, log=LogFacts(directory="d", exists=False)), "new-log", "info"),
        (facts(WELL, log=LogFacts(directory="d", locked_by="process 7")), "locked", "warning"),
        (facts(WELL, log=LogFacts(directory="d", free_bytes=5, total_bytes=100)), "disk-almost-full", "warning"),
        (facts(WELL, log=LogFacts(directory="d", free_bytes=5, total_bytes=1_000)), "disk-almost-full", "error"),
    ],
)
def test_what_is_found(case: Facts, code: str, severity: str) -> None:
    assert found(case)[code] == severity


def test_every_code_is_on_the_page() -> None:
    page = find_page("configuration.md").read_text("utf-8")
    source = inspect.getsource(findings)
    codes = set(re.findall(r'(?:"(?:error|warning|info)"|severity), "([a-z-]+)"', re.sub(r"\s+", " ", source)))
    told = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", page.partition("| what it finds")[2].partition("In a program")[0]))
    assert codes == told and len(codes) > 30


def test_grave_ones_come_first() -> None:
    report = examine(facts(with_(), with_(name="other", group_instance_id="a", on_error="skip")))
    order = [one.severity for one in report.findings]
    assert order == sorted(order, key=["error", "warning", "info"].index) and set(order) == {"error", "warning", "info"}


def test_the_other_end_of_a_topic_may_be_declared_and_elsewhere() -> None:
    """A name like another one is no slip where somebody declared it."""
    other = with_(name="other", topics=("orders2",), group="h")
    case = facts(WELL, other, topics={"orders2": 1})
    assert found(case)["nobody-produces"] == "info" and "misspelt-topic" not in found(case)

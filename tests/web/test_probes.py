"""What a probe is answered, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.client.handling.invocation import HandlerCounts
from eventbus.client.health import BusHealth, BusStatus, HandlerHealth, PartHealth
from eventbus.web.probes import Standing, answer


def health(status: BusStatus, **more: Any) -> BusHealth:
    return BusHealth(status=status, reason=f"it is {status}", **more)


def standing(status: BusStatus, **more: Any) -> Standing:
    return Standing(phase="running", health=health(status), **more)


STARTING = Standing(phase="starting")
CASES: dict[str, tuple[Standing, tuple[bool, bool, bool], str]] = {
    # (live, ready, startup), and a part of the reason
    "starting": (STARTING, (True, False, False), "the bus is starting"),
    "not asked yet": (Standing(phase="running"), (True, False, False), "has not answered yet"),
    "joining its group": (standing("starting"), (True, False, False), "it is starting"),
    "ok": (standing("ok"), (True, True, True), "it is ok"),
    "degraded": (standing("degraded"), (True, True, True), "it is degraded"),
    "failed": (standing("failed"), (False, False, True), "it is failed"),
    "closing": (Standing(phase="closing"), (True, False, True), "records in flight are finished"),
    "stopped": (Standing(phase="stopped"), (False, False, False), "the bus is not running"),
    "slow to answer": (standing("ok", unanswered_ms=700), (True, True, True), "it is ok (the bus has not answered"),
    "silent": (standing("ok", unanswered_ms=60_001), (False, False, True), "has not answered for 60.0 s"),
    "silent from the first": (Standing(phase="running", unanswered_ms=700), (True, False, False), "for 0.7 s"),
    "silent, less patient": (standing("ok", unanswered_ms=200, patience_ms=100), (False, False, True), "is blocked"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_passes_and_why(case: str) -> None:
    how, passes, reason = CASES[case]
    answers = [answer("live", how), answer("ready", how), answer("startup", how)]
    assert tuple(one.passed for one in answers) == passes
    assert all(reason in one.reason for one in answers)
    assert len({one.status for one in answers}) == 1


def test_each_handler_and_part_has_its_reason() -> None:
    handler = HandlerHealth(
        handler="bill", group="billing", status="wedged", reason="orders-0 offset 7 has been in flight for 61.0 s",
        since_last_poll_ms=1, since_last_commit_ms=None, since_last_assignment_ms=5, member_id="m", generation_id=1,
        assignment=(), paused=(), lag=12, lag_by_partition={}, lag_trend=None, at_work=(), counts=HandlerCounts(),
    )  # fmt: skip
    part = PartHealth(part="outbox", status="degraded", reason="the database does not answer", details={"rows": 3})
    said = answer("live", Standing(phase="running", health=health("failed", handlers=(handler,), parts=(part,))))
    assert [(one.handler, one.group, one.status, one.lag) for one in said.handlers] == [
        ("bill", "billing", "wedged", 12)
    ]
    assert said.handlers[0].reason == handler.reason
    assert [(one.part, one.status, one.reason) for one in said.parts] == [("outbox", "degraded", part.reason)]

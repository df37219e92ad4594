"""Health and metrics of several workers, as those of one."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from eventbus.cli.running.aggregation import WorkersSource, aggregate
from eventbus.client.health import BusHealth, BusStatus
from eventbus.client.metrics import Sample
from eventbus.web.probes import Standing, answer


def standing(status: BusStatus) -> Standing:
    return Standing(phase="running", health=BusHealth(status=status, reason=f"all {status}"))


STARTING, CLOSING = Standing(phase="starting"), Standing(phase="closing")


@pytest.mark.parametrize(
    ("standings", "status", "passes"),
    [
        ([standing("ok"), standing("ok")], "ok", (True, True, True)),
        ([standing("ok"), standing("degraded")], "degraded", (True, True, True)),
        ([standing("ok"), STARTING], "starting", (True, False, False)),
        ([standing("failed"), STARTING], "failed", (False, False, True)),
        ([standing("ok"), CLOSING], "closing", (True, False, True)),
        ([], "starting", (True, False, False)),
    ],
)
def test_as_a_whole_they_are_as_the_worst_of_them(
    standings: list[Standing], status: str, passes: tuple[bool, bool, bool]
) -> None:
    whole = aggregate(dict(enumerate(standings)))
    statuses_of = [answer("live", whole), answer("ready", whole), answer("startup", whole)]
    assert {one.status for one in statuses_of} == {status}
    assert tuple(one.passed for one in statuses_of) == passes


def test_the_reason_names_the_worker() -> None:
    whole = aggregate({0: standing("ok"), 1: standing("failed")})
    assert whole.health is not None and whole.health.reason == "worker 1: all failed"


async def test_samples_are_told_apart_by_worker() -> None:
    samples = [Sample("eventbus_handler_at_work", {"handler": "h"}, 1.0, "gauge")]
    futures = {number: Future[list[Sample]]() for number in (0, 1)}
    for future in futures.values():
        future.set_result(samples)
    found = await WorkersSource(dict, lambda: futures).samples()
    assert [(one.labels, one.value) for one in found] == [
        ({"handler": "h", "worker": "0"}, 1.0),
        ({"handler": "h", "worker": "1"}, 1.0),
    ]


@pytest.mark.system
async def test_a_worker_that_says_nothing_is_silent_not_fine() -> None:
    silent: Future[Standing] = Future()
    whole = await WorkersSource(lambda: {0: silent}, dict).standing()
    assert whole.health is not None and "has not answered for" in whole.health.reason
    assert not answer("ready", whole).passed

"""No broker answers for a while: it is said once when it begins and once when it ends; nothing is lost or doubled."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from tests.kafka.targets import Node, bus_url
from tests.support import values_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

OUTAGES = [
    pytest.param("served", 1.5, id="served"),
    pytest.param("real", 3.0, id="real", marks=pytest.mark.slow),
    pytest.param("real", 60.0, id="a-minute", marks=pytest.mark.slow),
]
TRANSFERS = 200


@asynccontextmanager
async def service(url: str, name: str) -> AsyncGenerator[EventBus]:
    """Copies ``name`` to ``name-out``, exactly once."""
    bus = EventBus(url)

    @bus.consumer(name, group=name, exactly_once=True, transaction_records=10)
    @bus.producer(f"{name}-out")
    async def copy(value: bytes) -> bytes:
        return value

    async with EventBus(url) as admin:
        for topic in (name, f"{name}-out"):
            await admin.admin.create_topic(topic)
    async with bus:
        yield bus


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("server", "seconds"), OUTAGES)
async def test_an_outage_is_outlasted_in_silence(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, server: str, seconds: float
) -> None:
    node: Node = request.getfixturevalue(server)
    name = f"outage-{server}-{seconds:.0f}"
    values = [b"%d" % number for number in range(TRANSFERS)]
    caplog.set_level(logging.INFO, "eventbus")
    async with service(bus_url(node.bootstrap), name) as bus:
        sent = [bus.send_nowait(name, value) for value in values[: TRANSFERS // 2]]
        await anyio.to_thread.run_sync(node.kill)
        sent += [bus.send_nowait(name, value) for value in values[TRANSFERS // 2 :]]
        await anyio.sleep(seconds)  # the outage itself
        await anyio.to_thread.run_sync(node.start)
        with anyio.fail_after(120):
            assert [(await delivery).offset for delivery in sent] == list(range(TRANSFERS))
            while len(copied := await values_of(bus, f"{name}-out")) < TRANSFERS:  # noqa: ASYNC110 - only the log can say
                await anyio.sleep(0.2)
        assert copied == values
        said = [one.getMessage() for one in caplog.records if one.name == "eventbus.kafka"]
        with anyio.fail_after(30):
            while "again after" not in "".join(said):  # it looks once a second
                await anyio.sleep(0.1)
                said = [one.getMessage() for one in caplog.records if one.name == "eventbus.kafka"]
    outage, back = said
    assert outage.startswith("no broker answers")
    assert node.bootstrap in outage
    assert f"broker {node.bootstrap} answers again after" in back
    others = [one.getMessage() for one in caplog.records if one.name != "eventbus.kafka" and one.levelno >= 30]
    assert len(others) <= 2, others  # the service says once that it waits

"""The doctor asks a cluster: topics, members of groups; and settings from outside reach its clients."""

from __future__ import annotations

from uuid import uuid4

import pytest

from eventbus import EventBus
from eventbus.doctor import examine, facts_of
from eventbus.doctor.connected import with_log
from eventbus.testing.real_kafka import RealKafka

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]


async def test_what_a_cluster_says(real: RealKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"doctored-{uuid4()}"
    url = f"kafka://{real.bootstrap}"
    monkeypatch.setenv("EVENTBUS_URL", url)
    monkeypatch.setenv("EVENTBUS_SOCKET_TIMEOUT_MS", "20000")
    bus = EventBus()
    bus.topic(name, partitions=1)

    @bus.consumer(name, group=name)
    async def handle(value: bytes) -> None: ...

    before = examine(await with_log(bus, facts_of(bus)))
    assert before.url == url and [one.severity for one in before.findings] == ["info"]  # nobody here publishes to it
    async with bus:
        await bus.drain()
        looking = EventBus()
        looking.topic(name, partitions=3)
        looking.consumer([name, "not-there-at-all"], group=name, concurrency=5)(handle.undecorated)
        found = {one.code for one in examine(await with_log(looking, facts_of(looking))).findings}
    assert {"other-partitions", "missing-topic", "idle-concurrency", "idle-members"} <= found


@pytest.mark.slow  # waits ten seconds for a broker that is not there, as a start would
async def test_a_cluster_that_is_away_is_a_finding() -> None:
    bus = EventBus("kafka://127.0.0.1:1", socket_timeout_ms=1_000)
    (error,) = (one for one in examine(await with_log(bus, facts_of(bus))).findings if one.severity == "error")
    assert error.code == "log" and "127.0.0.1:1" in error.text

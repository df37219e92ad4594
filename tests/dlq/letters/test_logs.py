"""The same story on every log: in memory, on disk, over the wire, on Kafka."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio
import pytest

from dlq import redrive
from dlq.dead_letters import DeadLetters, Redriven, Selection
from eventbus import EventBus
from eventbus.testing import KafkaServer, RealKafka
from tests.dlq.letters.making import TOPIC, letter, linked, put, topics
from tests.dlq.letters.test_redrive import links


@pytest.fixture(params=["memory", "file", "wire", pytest.param("kafka", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "file":
            return f"file://{tmp_path}/log"
        case "wire":
            server: KafkaServer = request.getfixturevalue("kafka_server")
            return f"kafka://{server.bootstrap}"
        case _:
            kafka: RealKafka = request.getfixturevalue("real")
            return f"kafka://{kafka.bootstrap}"


@pytest.mark.system
async def test_letters_are_seen_and_sent_back_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "_BATCH", 20)
    async with EventBus(url) as bus:
        await story(bus)


async def story(bus: EventBus) -> None:
    await topics(bus, TOPIC, "retry.billing")
    await put(bus, *[letter(n, key=b"k%d" % n) for n in range(60)])
    letters = DeadLetters(bus)
    (case,) = await letters.groups()
    assert (case.count, case.statuses) == (60, {"open": 60})
    async with letters.start_redrive(Selection(), on_progress=lambda _: run.cancel()) as run:
        pass
    assert (run.done.redriven, run.done.cancelled) == (20, True)
    done: list[Redriven] = []

    async def send(which: DeadLetters) -> None:
        done.append(await which.redrive(Selection(until_ms=case.last_ms)))  # all but the last one

    async with anyio.create_task_group() as tasks:
        for which in (letters, DeadLetters(bus)):
            tasks.start_soon(send, which)
    assert sum(one.redriven for one in done) == 39
    sent = await letters.edit(f"{TOPIC}/0/59", value=b"edited", by="ann")
    assert sent.topic == "retry.billing"
    assert Counter(await linked(bus, "retry.billing")) == links(60)
    assert (await letters.topics())[0].statuses == {"redriven": 59, "edited": 1}
    assert await letters.reopen(Selection(status={"edited"})) == 1
    (again,) = await DeadLetters(bus).groups()
    assert again.statuses == {"redriven": 59, "open": 1}
    assert [step.status for step in await letters.history(f"{TOPIC}/0/59")] == ["edited", "open"]

"""A process is killed while it schedules and delivers: what it reported is delivered once, and nothing twice."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from eventbus import EventBus
from tests.killed import told_by_killed

pytestmark = pytest.mark.system


def work(url: str, first: int, pipe: int) -> None:
    async def main() -> None:
        bus = EventBus(url, service="shop")
        bus.topic("t")
        async with bus:
            for number in range(first, first + 100_000):
                await bus.send("t", b"%d" % number, delay=(number % 7) / 1000)
                os.write(pipe, b"%d\n" % number)

    anyio.run(main)


@pytest.mark.parametrize("lives", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_again_and_again(tmp_path: Path, lives: int) -> None:
    url = f"file://{tmp_path}/log"
    told: list[int] = []
    for life in range(lives):
        lines = told_by_killed(lambda pipe, life=life: work(url, life * 1_000_000, pipe), 0.2, after_bytes=20)
        told += map(int, lines.rsplit(b"\n", 1)[0].split())

    async def delivered() -> list[int]:
        async with EventBus(url, service="shop") as bus:
            await bus.drain()
            await anyio.sleep(0.05)  # the last ones are due within 7 ms: real time, as the process that was killed had
            await bus.drain()
            async with bus.new_consumer("t") as consumer:
                return [int(record.value or b"") async for record in consumer.until_end()]

    came = anyio.run(delivered)
    assert told and len(set(came)) == len(came), "nothing comes twice"
    assert set(told) <= set(came), "nothing is lost"
    assert len(came) - len(told) <= lives, "but for the one whose answer the kill cut off"

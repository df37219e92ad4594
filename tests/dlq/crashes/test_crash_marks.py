"""Records that kill their process are identified, and become dead letters after a number of deaths."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import anyio
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, EventBus

pytestmark = pytest.mark.system

LETHAL = 9
"""The exit code of a child that was killed by a record."""
COUNT, KILLS_AT, KILLS_LATER = 40, 7, 20
MOST_DEATHS = 15
WAYS: list[dict[str, Any]] = [{}, {"order": "key", "concurrency": 8}, {"exactly_once": True}, {"ack": "manual"}]


def service(url: str, options: dict[str, Any], done: Path) -> EventBus:
    bus = EventBus(url)

    @bus.consumer("orders", group="billing", retry=Retry(immediate=0, delays=["10ms"], crashes=2), **options)
    async def bill(number: int, record: ConsumerRecord) -> None:
        is_tried_again = record.header("eb-retry-attempt") is not None
        if number == KILLS_AT or (number == KILLS_LATER and is_tried_again):
            os._exit(LETHAL)
        if number == KILLS_LATER:
            raise ValueError("the next try is the one that kills")
        with done.open("a") as file:
            file.write(f"{number}\n")
        if "ack" in options:
            record.ack()

    return bus


async def fill(url: str) -> None:
    async with EventBus(url) as bus:
        await bus.admin.create_topic("orders", partitions=1)
        for number in range(COUNT):
            bus.send_nowait("orders", number, key=f"k{number}")


async def work(url: str, options: dict[str, Any], done: Path) -> None:
    """Until everything is handled, or a dead letter."""
    async with service(url, options, done) as bus, bus.new_consumer("dlq.billing", value=int) as letters:
        left = 2
        while left:
            left -= len(await letters.poll(100))
        await bus.drain()


async def letters_of(url: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    async with EventBus(url) as bus, bus.new_consumer("dlq.billing", value=int) as consumer:
        return {
            record.value: (record.header("eb-dlq-reason"), record.header("eb-dlq-error-class"))
            async for record in consumer.until_end()
        }


def in_child(url: str, options: dict[str, Any], done: Path) -> int:
    """Run the service in a child until it dies or has handled everything. Return the exit code."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            anyio.run(work, url, options, done)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("options", WAYS, ids=lambda options: ",".join(options) or "plain")
def test_those_that_kill_are_found_and_the_others_are_handled(tmp_path: Path, options: dict[str, Any]) -> None:
    url, done = f"file://{tmp_path}/log", tmp_path / "done"
    anyio.run(fill, url)
    ends: list[int] = []
    while not ends or (ends[-1] == LETHAL and len(ends) < MOST_DEATHS):
        ends.append(in_child(url, options, done))
    assert ends[-1] == 0, ends
    crashed = (b"crashed", b"eventbus.errors.ProcessCrashed")
    assert anyio.run(letters_of, url) == {KILLS_AT: crashed, KILLS_LATER: crashed}
    handled = {int(line) for line in done.read_text().split()}
    assert handled == set(range(COUNT)) - {KILLS_AT, KILLS_LATER}

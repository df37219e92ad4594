"""A mirror that dies at any step, again and again: each record arrives once, in order, each offset is translated."""

from __future__ import annotations

from random import Random

import pytest

from eventbus import EventBus
from eventbus.backends.base import Backend
from eventbus.backends.urls import open_backend
from eventbus.mirror import Mirror
from eventbus.types import TopicPartition
from tests.mirror.dying import Killed, Life, dying
from tests.mirror.logs import assert_copied, create, fill, opened, visible
from tests.tiers import quick

pytestmark = pytest.mark.system

NAME = "crashes"
QUICK_SETTINGS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}


async def live(source: str, destination: str, last_step: int | None = None) -> int:
    """One life of a mirror; how many steps it took."""
    life = Life(last_step)
    sides = [dying(open_backend(url, QUICK_SETTINGS), life) for url in (source, destination)]
    try:
        async with Mirror(sides[0], sides[1], name=NAME) as mirror:
            await mirror.copy()
    except Killed:
        assert last_step is not None
    return life.steps


async def lives(seed: int) -> None:
    """Some lives that end early, one that does not; what they leave is checked."""
    random = Random(seed)
    partitions = random.randint(1, 3)
    here, there = f"memory://crashes-from-{seed}", f"memory://crashes-to-{seed}"
    async with opened(here, **QUICK_SETTINGS) as source, opened(there, **QUICK_SETTINGS) as destination:
        await create(source, "orders", partitions)
        async with EventBus(here, **QUICK_SETTINGS) as bus:
            await fill(bus, "orders", partitions, random, random.randint(0, 25))
            where = TopicPartition("orders", random.randrange(partitions))
            for _ in range(random.randint(1, 4)):
                await bus.admin.alter_group_offsets("billing", {where: random.randrange(20)})
                await live(here, there, random.randint(1, 150))
                await fill(bus, "orders", partitions, random, random.randint(0, 8))
        await live(here, there)
        await assert_copied(source, destination, "orders", NAME)
        await assert_same_are_read(source, destination, "billing", where)


async def assert_same_are_read(source: Backend, destination: Backend, group: str, where: TopicPartition) -> None:
    """The group has as many records behind it on both sides: it skips none and reads none again."""
    counts: list[int] = []
    for backend in (source, destination):
        committed = (await backend.group_offsets(group))[where].offset
        counts.append(sum(record.offset < committed for record in await visible(backend, where)))
    assert counts[0] == counts[1], (where, counts)


@pytest.mark.parametrize("first", quick(range(0, 200, 25), 2))
async def test_a_mirror_killed_at_any_step_loses_and_doubles_nothing(first: int) -> None:
    for seed in range(first, first + 25):
        await lives(seed)

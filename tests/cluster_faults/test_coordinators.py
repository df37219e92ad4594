"""A coordinator dies while a commit is on its way to it, or its answer on its way back."""

from __future__ import annotations

import threading
from typing import Literal

import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.errors import EventBusError, RequestTimedOut, TransactionAborted
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.cluster_faults.cluster import Cluster
from tests.cluster_faults.load import load, until
from tests.kafka.frames import ADD_PARTITIONS_TO_TXN, END_TXN, OFFSET_COMMIT, TXN_OFFSET_COMMIT
from tests.support import values_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(500)]

When = Literal["asked", "answered"]
CASES = [
    pytest.param(END_TXN, "asked", marks=pytest.mark.slow),
    pytest.param(TXN_OFFSET_COMMIT, "answered", marks=pytest.mark.slow),
    pytest.param(END_TXN, "answered", marks=pytest.mark.slow),
    pytest.param(TXN_OFFSET_COMMIT, "asked", marks=pytest.mark.slow),
    pytest.param(ADD_PARTITIONS_TO_TXN, "asked", marks=pytest.mark.slow),
]
MOST_GIVEN_UP = 2
"""Transactions: one that was open when its coordinator died, and one that met it while it was gone."""


class Trap:
    """Kills the broker that is next asked something of a kind: before it hears of it, or when it has answered."""

    def __init__(self, cluster: Cluster, api_key: int, when: When) -> None:
        self.victim = 0
        self.sprung = threading.Event()
        self._cluster = cluster
        self._api_key = api_key
        self._when = when

    def set(self) -> None:
        if self._when == "asked":
            self._cluster.network.on_request = self._spring
        else:
            self._cluster.network.on_answer = self._spring

    def _spring(self, node: int, api_key: int) -> None:
        if api_key == self._api_key and not self.sprung.is_set():
            self.victim = node
            self._cluster.kafka.node(node).kill()
            self.sprung.set()


@pytest.mark.parametrize(("api_key", "when"), CASES)
async def test_a_service_goes_on(parted: Cluster, api_key: int, when: When) -> None:
    """Exactly-once: what it had in hand is done once."""
    async with load(parted.url, f"coordinator-{api_key}-{when}") as work:
        trap = Trap(parted, api_key, when)
        trap.set()
        await until(trap.sprung.is_set)
        await work.goes_on()
        await anyio.to_thread.run_sync(parted.kafka.node(trap.victim).start)
        await work.goes_on()


@pytest.mark.slow  # librdkafka waits for a coordinator that is gone for as long as it likes
@pytest.mark.parametrize("when", ["asked", "answered"])
async def test_what_commit_says_is_so(parted: Cluster, when: When) -> None:
    """Transactions one after the other, whose coordinator dies in the fourth; it comes back in the eighth.

    One that is given up is begun again, as its error says: RequestTimedOut, when librdkafka does not come back from
    `send_offsets` to a coordinator that is gone.
    """
    async with EventBus(parted.url) as bus:
        topic = f"whole-{when}"
        await bus.admin.create_topic(topic)
        where = TopicPartition(topic, 0)
        trap = Trap(parted, END_TXN, when)
        given_up: list[EventBusError] = []
        async with bus.new_producer(transactional_id=topic, max_block_ms=60_000) as producer:

            async def write(number: int) -> None:
                """Return when commit has said so."""
                async with producer.transaction() as tx:
                    for part in range(3):
                        tx.send_nowait(topic, b"%d/%d" % (number, part))
                    await tx.send_offsets({where: OffsetAndMetadata(number)}, GroupMetadata(topic))

            for number in range(1, 12):
                if number == 4:
                    trap.set()
                if number == 8:
                    await anyio.to_thread.run_sync(parted.kafka.node(trap.victim).start)
                while True:
                    try:
                        await write(number)
                        break
                    except (TransactionAborted, RequestTimedOut) as error:
                        given_up.append(error)
                        assert trap.victim and len(given_up) <= MOST_GIVEN_UP, given_up
        assert trap.victim
        found = await values_of(bus, topic)
        assert found == [b"%d/%d" % (number, part) for number in range(1, 12) for part in range(3)]
        assert (await bus.admin.group_offsets(topic))[where].offset == 11


@pytest.mark.slow  # a broker is killed under consumers and commits in test_partitioned.py too
async def test_the_coordinator_of_a_group_dies_during_its_commit(parted: Cluster) -> None:
    """The commit waits for the next coordinator; what was committed stays so."""
    async with EventBus(parted.url) as bus:
        topic = "group-commit"
        await bus.admin.create_topic(topic)
        await bus.send_many(topic, [b"%d" % number for number in range(100)])
        trap = Trap(parted, OFFSET_COMMIT, "asked")
        seen: list[bytes] = []
        async with bus.new_consumer(topic, group=topic) as consumer:
            while len(seen) < 100:
                records = await consumer.poll(max_records=10)
                if not records:
                    continue
                seen += [record.value for record in records]
                if len(seen) == 50:
                    trap.set()
                await consumer.commit()
                committed = (await bus.admin.group_offsets(topic))[TopicPartition(topic, 0)].offset
                assert committed == len(seen)
        assert trap.victim
        assert seen == [b"%d" % number for number in range(100)]

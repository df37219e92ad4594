"""Leaders are killed while records are sent and handled: none is lost, none is there twice, keys keep their order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.errors import InvalidReplicationFactor
from eventbus.testing import RealKafka
from tests.cluster_faults.cluster import Cluster
from tests.failover.exercise import Exercise, until
from tests.named import find_page
from tests.test_readme import blocks_of, commands_of, missing

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE, PAGE = ROOT / "examples" / "21_failover.py", find_page("failover.md")
UNAVAILABLE_S = 15
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]


async def kill_and_check(cluster: RealKafka, kills: int, *, every_s: float = 0, rest_s: float = 0.02) -> list[float]:
    """How long each partition that a killed broker led took nothing, shortest first."""
    exercise = Exercise(cluster, rest_s=rest_s)
    await exercise.run(kills, every_s=every_s)
    await exercise.check()
    return sorted(one for kill in exercise.kills for one in kill.unavailable_s)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_sixty_leaders_are_killed_and_nothing_is_lost_or_done_twice(cluster: RealKafka) -> None:
    times = await kill_and_check(cluster, 60, every_s=10)
    assert len(times) >= 60
    assert times[-1] < 2 * UNAVAILABLE_S
    assert times[int(0.99 * len(times))] <= UNAVAILABLE_S


@pytest.mark.slow
async def test_a_dead_leader_is_seen_and_sends_wait_for_its_replica(cluster: RealKafka) -> None:
    """Asked the moment its leader has died, the cluster is still described, though nobody answers for a while."""
    async with EventBus(cluster.url) as bus:
        await bus.admin.create_topic("described", partitions=3, configs={"min.insync.replicas": 3})
        await bus.send("described", "before", partition=0)
        [topic] = await bus.admin.describe_topics(["described"])
        node = cluster.node(topic.partitions[0].leader)
        node.kill()
        [topic] = await bus.admin.describe_topics(["described"])
        assert [part.partition for part in topic.partitions] == [0, 1, 2]
        waiting = bus.send_nowait("described", "after", partition=0)
        await until(lambda: is_lacking(bus, node.id), "the broker is missed")
        for option in ("--under-replicated-partitions", "--under-min-isr-partitions"):
            assert described(cluster.url, option).count("Partition: ") == 3
        assert described(cluster.url, "--unavailable-partitions") == ""
        assert not waiting.done()
        await anyio.to_thread.run_sync(node.start)
        await waiting
        await until(lambda: is_whole(bus), "all replicas are in step")
        assert described(cluster.url, "--under-replicated-partitions") == ""
        async with bus.new_consumer("described", value=str) as consumer:
            assert [record.value async for record in consumer.until_end()] == ["before", "after"]


async def test_more_replicas_than_brokers_are_refused(parted: Cluster) -> None:
    async with EventBus(parted.url) as bus:
        with pytest.raises(InvalidReplicationFactor, match=r"(?s)'too-many'.*4.*3 broker"):
            await bus.admin.create_topic("too-many", replication_factor=4)
        assert "too-many" not in await bus.admin.list_topics()


async def test_what_replicas_are_left_to_the_cluster(parted: Cluster) -> None:
    async with EventBus(parted.url) as bus:
        await bus.admin.create_topic("as-it-likes", partitions=2)
        [topic] = await bus.admin.describe_topics(["as-it-likes"])
        assert [sorted(part.replicas) for part in topic.partitions] == [[1, 2, 3]] * 2
        assert topic.configs["min.insync.replicas"].value == "2"


@pytest.mark.slow
def test_the_example_tells_the_story_of_its_page(cluster: RealKafka, tmp_path: Path) -> None:
    """``cluster`` says whether Kafka can be had; the example starts its own."""
    [block] = [one for one in blocks_of(PAGE.read_text("utf-8")) if "21_failover.py" in one.body]
    [command] = commands_of(block)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert missing(command.shown, done.stdout) == [], done.stdout
    assert list(tmp_path.iterdir()) == []


def described(url: str, *options: str) -> str:
    command = [sys.executable, "-m", "eventbus", "topics", "describe", "--topic", "described", *options, "--url", url]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


async def is_lacking(bus: EventBus, node: int) -> bool:
    [topic] = await bus.admin.describe_topics(["described"])
    return all(node not in part.isr for part in topic.partitions)


async def is_whole(bus: EventBus) -> bool:
    [topic] = await bus.admin.describe_topics(["described"])
    return all(len(part.isr) == 3 for part in topic.partitions)

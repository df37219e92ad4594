"""Which partition: Kafka's own choice for keys, sticky without, and one's own."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from eventbus import EventBus
from eventbus.client.partitioner import make_partitioner
from eventbus.errors import ConfigError

pytestmark = pytest.mark.system


@given(st.binary(max_size=60), st.integers(1, 500))
def test_keys_go_where_other_kafka_clients_send_them(key: bytes, count: int) -> None:
    theirs = DefaultPartitioner()(key, list(range(count)), list(range(count)))
    ours = make_partitioner("murmur2", "t", 65536)
    assert ours.partition(key, None, b"", count) == theirs
    assert ours.partition(key, None, b"", count) == theirs  # now from the cache


def test_growing_a_topic_forgets_the_cache() -> None:
    partitioner = make_partitioner("murmur2", "t", 65536)
    keys = [b"%d" % n for n in range(100)]
    small = [partitioner.partition(key, None, b"", 3) for key in keys]
    large = [partitioner.partition(key, None, b"", 64) for key in keys]
    fresh = make_partitioner("murmur2", "t", 65536)
    assert large == [fresh.partition(key, None, b"", 64) for key in keys] and small != large


def test_without_a_key_a_partition_is_kept_for_a_batch() -> None:
    partitioner = make_partitioner("murmur2", "t", 1000)
    chosen = [partitioner.partition(None, None, b"x" * 99, 3) for _ in range(40)]
    assert chosen == [0] * 10 + [1] * 10 + [2] * 10 + [0] * 10


def test_round_robin() -> None:
    partitioner = make_partitioner("round_robin", "t", 1000)
    assert [partitioner.partition(None, None, b"", 3) for _ in range(5)] == [1, 2, 0, 1, 2]


async def test_a_function_decides_alone() -> None:
    def by_level(topic: str, key: bytes | None, value: Any, count: int) -> int:
        return 0 if value["level"] == "critical" else 1 + hash(value["level"]) % (count - 1)

    async with EventBus("memory://", partitioner=by_level) as bus:
        await bus.admin.create_topic("alerts", partitions=4)
        assert (await bus.send("alerts", {"level": "critical"}, key="a")).partition == 0
        assert (await bus.send("alerts", {"level": "minor"}, key="a")).partition != 0
    async with EventBus("memory://", partitioner=lambda *_: 9) as bus:
        await bus.admin.create_topic("alerts", partitions=4)
        with pytest.raises(ConfigError, match=r"answered 9 for topic 'alerts': 0 to 3"):
            await bus.send("alerts", b"x")


class RoundTrip:
    """A partitioner with state. Each topic has its own instance."""

    def __init__(self) -> None:
        self.count = -1

    def __call__(self, topic: str, key: bytes | None, value: Any, count: int) -> int:
        self.count += 1
        return self.count % count


async def test_a_class_by_itself_or_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("chosen_by_name")
    module.RoundTrip, module.first, module.number = RoundTrip, lambda *_: 0, 7
    monkeypatch.setitem(sys.modules, "chosen_by_name", module)
    for choice in (RoundTrip, "chosen_by_name:RoundTrip"):
        async with EventBus("memory://", partitioner=choice) as bus:
            for topic in ("a", "b"):
                await bus.admin.create_topic(topic, partitions=3)
                assert [(await bus.send(topic, b"x", key="k")).partition for _ in range(4)] == [0, 1, 2, 0]
    assert make_partitioner("chosen_by_name:first", "t", 1).partition(b"k", None, b"", 3) == 0
    for wrong in ("chosen_by_name:number", "chosen_by_name:nothing", "no_such_module:f", ":f", "murmur"):
        with pytest.raises(ConfigError, match="partitioner"):
            EventBus("memory://", partitioner=wrong)


async def test_partition_key_is_not_the_key() -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t", partitions=16)
        by_key = await bus.send("t", b"x", key="a")
        by_other = await bus.send("t", b"x", key="b", partition_key="a")
        assert by_other.partition == by_key.partition
        async with bus.new_consumer("t") as reader:
            assert [r.key for r in await reader.poll()] == [b"a", b"b"]

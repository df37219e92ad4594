"""Define a custom format with two methods and register it by type: a sensor reading in 13 bytes, and a key class."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import anyio

from eventbus import ConsumerRecord, EventBus, TopicPartition, log_url


@dataclass(frozen=True)
class StageId:
    """A stage of the factory line, used as the key."""

    line: str
    number: int


@dataclass(frozen=True)
class Reading:
    sensor: int
    celsius: float
    valid: bool


class StageSerde:
    def serialize(self, topic: str, value: Any) -> bytes:
        return f"{value.line}/{value.number}".encode()

    def deserialize(self, topic: str, data: bytes) -> StageId:
        line, _, number = data.decode().partition("/")
        return StageId(line, int(number))


class ReadingSerde:
    FORMAT = struct.Struct(">id?")

    def serialize(self, topic: str, value: Any) -> bytes:
        return self.FORMAT.pack(value.sensor, value.celsius, value.valid)

    def deserialize(self, topic: str, data: bytes) -> Reading:
        return Reading(*self.FORMAT.unpack(data))


bus = EventBus(log_url("memory://"), serdes={StageId: StageSerde(), Reading: ReadingSerde()})
bus.topic("readings", partitions=2, temporary=True)
handled: list[tuple[bytes, Reading]] = []


@bus.consumer("readings", group="thermometer")
async def remember(reading: Reading, record: ConsumerRecord) -> None:
    handled.append((record.key, reading))


async def main() -> None:
    async with bus:
        stage, reading = StageId("frame", 7), Reading(3, 21.5, True)
        metadata = await bus.send("readings", reading, key=stage)
        await bus.drain()

        async with bus.new_consumer(key=StageId, value=Reading) as consumer:
            await consumer.assign([TopicPartition("readings", metadata.partition)])
            [record] = await consumer.poll()
        print(f"{record.key} -> {record.value}")
        assert (record.key, record.value) == (stage, reading)
        assert handled == [(b"frame/7", reading)]


if __name__ == "__main__":
    anyio.run(main)

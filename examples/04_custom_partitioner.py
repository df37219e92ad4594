"""Critical alerts go to partition 0, which is read first; a hash of the key chooses among the other partitions.

The e-bike factory appears in many Kafka courses: the level of an alert decides, not its key.
"""

from __future__ import annotations

from typing import Any

import anyio
import msgspec

from eventbus import EventBus, TopicPartition, log_url

PARTITIONS = 3


class Alert(msgspec.Struct):
    stage: str
    level: str
    message: str


def by_level(topic: str, key: bytes | None, alert: Any, partitions: int) -> int:
    """Choose the partition from the topic, the serialized key, the value as sent, and the number of partitions."""
    if alert.level == "CRITICAL":
        return 0
    return 1 + sum(key or b"") % (partitions - 1)


bus = EventBus(log_url("memory://"))
bus.topic("alerts", partitions=PARTITIONS, temporary=True)


@bus.producer("alerts", key=lambda alert: alert.stage, partitioner=by_level)
async def raise_alert(stage: str, level: str, message: str) -> Alert:
    return Alert(stage, level, message)


async def main() -> list[str]:
    async with bus:
        for number in range(6):
            await raise_alert(f"stage-{number}", "WARNING", "chain is loose")
            if number % 3 == 0:
                await raise_alert(f"stage-{number}", "CRITICAL", "brake missing")

        read: list[str] = []
        for partitions in ([0], range(1, PARTITIONS)):  # read partition 0 until it is empty, then the other partitions
            async with bus.new_consumer(value=Alert) as consumer:
                await consumer.assign([TopicPartition("alerts", number) for number in partitions])
                found = [record.value async for record in consumer.until_end() if record.value]
            for alert in sorted(found, key=lambda alert: alert.stage):
                print(f"{'first' if partitions == [0] else 'then'}: {alert.level:<8} {alert.stage}")
                read.append(alert.level)
        return read


if __name__ == "__main__":
    levels = anyio.run(main)
    assert levels == ["CRITICAL"] * 2 + ["WARNING"] * 6, levels

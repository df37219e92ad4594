"""An e-bike factory with three streams, each with the guarantees it needs.

| topic   | requirement            | solution                                                               |
|---------|------------------------|------------------------------------------------------------------------|
| audit   | lose no record         | every send is awaited: the record is on disk before the work continues |
| trends  | keep order per stage   | keyed by stage; sent without waiting                                   |
| alerts  | critical alerts first  | compacted: the latest alert of a stage counts; CRITICAL: partition 0   |
"""

from __future__ import annotations

from typing import Any

import anyio
import msgspec

from eventbus import EventBus, EventBusError, RecordMetadata, TopicPartition, log_url


class StageId(msgspec.Struct, frozen=True):
    line: str
    number: int


class Alert(msgspec.Struct):
    stage: StageId
    level: str


class StageSerde:
    def serialize(self, topic: str, value: Any) -> bytes:
        return f"{value.line}/{value.number}".encode()

    def deserialize(self, topic: str, data: bytes) -> StageId:
        line, number = data.decode().split("/")
        return StageId(line, int(number))


def by_level(topic: str, key: bytes | None, alert: Any, partitions: int) -> int:
    return 0 if alert.level == "CRITICAL" else 1 + sum(key or b"") % (partitions - 1)


bus = EventBus(log_url("memory://"), serdes={StageId: StageSerde()})
bus.topic("audit", temporary=True)
bus.topic("trends", partitions=3, temporary=True)
bus.topic("alerts", partitions=3, configs={"cleanup.policy": "compact"}, temporary=True)
failed: list[EventBusError] = []


def on_delivery(metadata: RecordMetadata | None, error: EventBusError | None) -> None:
    failed.extend([error] if error else [])  # a trend may miss a point, but the failure is still logged


@bus.producer("alerts", key=lambda alert: alert.stage, partitioner=by_level)
async def raise_alert(stage: StageId, level: str) -> Alert:
    return Alert(stage, level)


async def main() -> list[str]:
    async with bus:
        for number in range(6):
            stage = StageId("frame", number)
            await bus.send("audit", f"stage {number} checked")  # 1. no loss: wait for the disk
            bus.send_nowait("trends", {"celsius": 20 + number}, key=stage, on_delivery=on_delivery)  # 2. no waiting
            await raise_alert(stage, ("CRITICAL", "MAJOR", "MINOR")[number % 3])  # 3. by level

        shown: list[str] = []
        for numbers in ([0], [1, 2]):  # the display shows critical alerts first
            async with bus.new_consumer(key=StageId, value=Alert) as board:
                await board.assign([TopicPartition("alerts", number) for number in numbers])
                seen = sorted([(k.number, v.level) async for r in board.until_end() if (k := r.key) and (v := r.value)])
            print(*(f"{level:<8} stage {number}" for number, level in seen), sep="\n")
            shown += [level for _, level in seen]
        return shown


if __name__ == "__main__":
    levels = anyio.run(main)
    assert levels[:2] == ["CRITICAL"] * 2 and "CRITICAL" not in levels[2:] and len(levels) == 6 and not failed

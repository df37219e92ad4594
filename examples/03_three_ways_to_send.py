"""Send a record in three ways, each with its report of failures: fire and forget, wait for the ack, or a callback."""

from __future__ import annotations

import anyio

from eventbus import EventBus, EventBusError, RecordMetadata, log_url

bus = EventBus(log_url("memory://"))
bus.topic("metrics", partitions=2, configs={"max.message.bytes": "1000"}, temporary=True)
called: list[str] = []


def on_delivery(metadata: RecordMetadata | None, error: EventBusError | None) -> None:
    if metadata is not None:
        called.append(f"stored at {metadata.topic}-{metadata.partition}, offset {metadata.offset}")
    else:
        called.append(f"lost: {type(error).__name__}")


async def main() -> None:
    async with bus:
        # 1. Fire and forget: returns at once; a failure is only logged.
        bus.send_nowait("metrics", "cpu=17", key="host-1")

        # 2. Synchronous: waits until the record is stored; a failure is raised here.
        metadata = await bus.send("metrics", "cpu=18", key="host-1")
        print(f"awaited: partition {metadata.partition}, offset {metadata.offset}")
        assert metadata.offset == 1  # the record of step 1 is in the same partition: it was not lost

        # 3. Asynchronous with a callback: returns at once, the callback receives the outcome of this record.
        for value in ("cpu=19", "cpu=20"):
            bus.send_nowait("metrics", value, key="host-1", on_delivery=on_delivery)
        await bus.flush()

        # A record that cannot be stored is an error for its sender, in each of the three ways.
        try:
            await bus.send("metrics", "x" * 5_000, key="host-1")
        except EventBusError as error:
            print(f"awaited: {type(error).__name__}")  # the message has the size of the record and the limit
            called.append(type(error).__name__)


if __name__ == "__main__":
    anyio.run(main)
    for line in called:
        print(f"called:  {line}")
    assert [line.partition(",")[2] for line in called[:2]] == [" offset 2", " offset 3"]
    assert called[2:] == ["RecordTooLarge"]

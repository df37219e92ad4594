"""Manual acknowledgement: a record is finished when `ack` is called, at any time and in any order.

Measurements are collected and written ten at a time; only written measurements are acknowledged. The next service reads
the unacknowledged ones again: none is lost, although they are not written one by one.
"""

from __future__ import annotations

import anyio

from eventbus import ConsumerRecord, EventBus, log_url

URL, MEASUREMENTS = log_url("memory://lab"), 30
written: list[list[int]] = []


def service(last: int, arrived: anyio.Event) -> EventBus:
    """A service that sets ``arrived`` when it has received measurement ``last``."""
    bus = EventBus(URL, drain_timeout_ms=500)  # closing waits this long for outstanding acks
    in_hand: list[ConsumerRecord] = []

    @bus.consumer("measurements", group="archive", ack="manual")
    async def gather(record: ConsumerRecord) -> None:
        in_hand.append(record)
        if len(in_hand) == 10:
            written.append([int(one.value or b"") for one in in_hand])  # one write for ten
            for one in reversed(in_hand):  # any order will do
                one.ack()
            in_hand.clear()
        if int(record.value or b"") == last:
            arrived.set()

    return bus


async def main() -> None:
    async with EventBus(URL) as log:
        await log.admin.create_topic("measurements", temporary=True)
        for life, numbers in (("first", range(25)), ("second", range(25, MEASUREMENTS))):
            await log.send_many("measurements", [b"%d" % number for number in numbers])
            arrived = anyio.Event()
            async with service(numbers[-1], arrived):
                await arrived.wait()  # a drain would wait for acks that never arrive
            [offset] = (await log.admin.group_offsets("archive")).values()
            print(f"{life} life: written {sum(map(len, written))}, the group goes on at {offset.offset}")
            assert offset.offset == 10 * len(written)


if __name__ == "__main__":
    anyio.run(main)
    assert written == [list(range(0, 10)), list(range(10, 20)), list(range(20, 30))]

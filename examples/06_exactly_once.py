"""Exactly once: a transfer is one entry in each of two topics, and the handler is cut off in the middle of some.

What the handler sends and the fact that it has handled the record are one transaction: it is there as a whole, or not
at all. So however often the service fails and starts again, nothing is lost, doubled, or half done.
"""

from __future__ import annotations

import logging

import anyio
import msgspec

from eventbus import EventBus, Transaction, log_url
from eventbus.errors import HandlerError

URL, TRANSFERS = log_url("memory://bank"), 100
failures = {13, 42, 77}


class Transfer(msgspec.Struct):
    number: int
    amount: int


def service() -> EventBus:
    bus = EventBus(URL)

    @bus.consumer("transfers", group="bank", exactly_once=True)
    async def move(transfer: Transfer, tx: Transaction) -> None:
        tx.send_nowait("checking", -transfer.amount)
        if transfer.number in failures:
            failures.remove(transfer.number)
            raise ConnectionError("half way")  # the money has left one account, and not arrived on the other
        tx.send_nowait("savings", transfer.amount)

    return bus


async def read(bus: EventBus, topic: str) -> list[int]:
    async with bus.new_consumer(topic, value=int) as consumer:
        return [record.value async for record in consumer.until_end()]


async def main() -> None:
    async with EventBus(URL) as log:
        for topic in ("transfers", "checking", "savings"):
            await log.admin.create_topic(topic, temporary=True)
        await log.send_many("transfers", [Transfer(number, 1 + number) for number in range(TRANSFERS)])

        starts = 0
        while True:
            starts += 1
            try:
                async with service() as bus:
                    await bus.drain()
                break
            except HandlerError as error:
                checking, savings = await read(log, "checking"), await read(log, "savings")
                print(f"{error}\n  so far {len(savings)} transfers, together {sum(checking) + sum(savings)}")
                assert sum(checking) + sum(savings) == 0, "never half a transfer"

        checking, savings = await read(log, "checking"), await read(log, "savings")
        print(f"after {starts} starts: {len(checking)} debits, {len(savings)} credits")
        assert savings == [1 + number for number in range(TRANSFERS)] == [-amount for amount in checking]


if __name__ == "__main__":
    logging.disable()  # the bus logs each failure; here they are the point, and printed
    anyio.run(main)

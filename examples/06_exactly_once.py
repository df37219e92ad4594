"""Exactly once: a transfer is one entry in each of two topics, although the handler is interrupted several times.

The records that the handler sends and its offset are one transaction: all of it is stored, or nothing. However often
the service fails and starts again, no entry is lost, duplicated or half done.
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
            raise ConnectionError("half way")  # the first account is debited, the second is not credited yet
        tx.send_nowait("savings", transfer.amount)

    return bus


async def read(bus: EventBus, topic: str) -> list[int]:
    async with bus.new_consumer(topic, value=int) as consumer:
        return [record.value async for record in consumer.until_end() if record.value is not None]


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
    logging.disable()  # the bus logs each failure; this example prints them instead
    anyio.run(main)

"""Automatic commits lose work: they cover the records that were *polled*, not those that were *processed*.

The program crashes at the sixth of ten orders. With ``enable_auto_commit`` the next run starts after all ten. No error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from eventbus import EventBus, log_url
from eventbus.errors import HandlerError

URL = log_url("memory://billing")
ORDERS, CRASH_AT = [f"order-{number}" for number in range(10)], "order-5"


class Crash(Exception):
    """Simulate a crash of the process."""


async def auto_commit(done: list[str], crash: bool) -> None:
    async with EventBus(URL) as bus:
        own = bus.new_consumer("orders", group="billing", value=str, enable_auto_commit=True, auto_commit_interval_ms=0)
        async with own as consumer:
            async for record in consumer.until_end():
                if crash and record.value == CRASH_AT:
                    await consumer.poll(timeout_ms=0)  # commits the records of the previous poll
                    raise Crash
                done.append(record.value or "")


async def finished_prefix(done: list[str], crash: bool) -> None:
    bus = EventBus(URL)

    @bus.consumer("orders", group="billing")
    async def bill(order: str) -> None:
        if crash and order == CRASH_AT:
            raise Crash
        done.append(order)

    async with bus:
        await bus.drain()


async def two_lives(life: Callable[[list[str], bool], Awaitable[None]]) -> list[str]:
    async with EventBus(URL) as log:
        await log.admin.create_topic("orders", temporary=True)
        await log.send_many("orders", ORDERS)
        done: list[str] = []
        for crash in (True, False):
            print(f"  {'first' if crash else 'second'} life:", end=" ")
            before = len(done)
            try:
                await life(done, crash)
                print(f"{len(done) - before} handled")
            except (Crash, HandlerError):
                print(f"{len(done) - before} handled, then it died at {CRASH_AT}")
        return done


async def main() -> None:
    print("enable_auto_commit=True")
    done = await two_lives(auto_commit)
    print(f"  lost: {[order for order in ORDERS if order not in done]}")
    assert done == ORDERS[:5], "five handled, five silently lost"

    print("a handler of a bus: commits follow what is finished")
    done = await two_lives(finished_prefix)
    print(f"  lost: {[order for order in ORDERS if order not in done]}")
    assert done == ORDERS, "each of them, and none twice"


if __name__ == "__main__":
    logging.disable()  # the bus logs the failure of its handler; this example prints it instead
    anyio.run(main)

"""Mistakes that show when a handler runs: what is logged, and what ends."""

from __future__ import annotations

import sys

from eventbus import EventBus, Transaction
from eventbus.errors import HandlerError
from tests.mistakes.kit import At, Section, heard

HANDLING = Section("When handlers run")


@HANDLING.mistake(
    "a database that a handler uses does not answer", "start it: the handler goes on by itself",
    "orders-0 offset 0 waits in its place", "ConnectionRefusedError", "until the outage is over",
)  # fmt: skip
async def database_is_away(at: At) -> str:
    bus = EventBus("memory://", drain_timeout_ms=100)
    bus.topic("orders")

    @bus.consumer("orders", group="billing")
    async def bill(order: str) -> None:
        if len(lines):
            bus.stop()
        raise ConnectionRefusedError("127.0.0.1 port 5432")

    at.patch.setattr("eventbus.client.handling.waiting_out.back_off_ms", lambda calls: 1)
    with heard("eventbus.runner") as lines:
        async with bus:
            await bus.send("orders", "o-1")
            await bus.run()
    return lines[0]


@HANDLING.mistake(
    "`sys.exit()` in a handler", "raise an error, or call `bus.stop()`",
    "handler 'bill'", "orders-0 offset 0", "SystemExit: 3", "The bus stops and raises it again",
)  # fmt: skip
async def exit_in_a_handler(at: At) -> str:
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="billing")
    async def bill(order: str) -> None:
        sys.exit(3)

    with heard() as lines:
        try:
            async with bus:
                await bus.send("orders", "o-1")
                await bus.drain()
        except SystemExit:
            return lines[0]
    raise AssertionError("the bus went on")


@HANDLING.mistake(
    "an exactly-once handler that takes longer than `transaction_timeout_ms`", "a longer one, or a faster handler",
    "orders-0 offset 0: the record takes longer than its transaction may be open", "Raise transaction_timeout_ms",
)  # fmt: skip
async def slow_in_a_transaction(at: At) -> str:
    import anyio

    bus = EventBus("memory://", transaction_abort_timed_out_transaction_cleanup_interval_ms=1)
    bus.topic("orders")
    bus.topic("bills")

    @bus.consumer("orders", group="billing", exactly_once=True, transaction_timeout_ms=100)
    async def bill(order: str, transaction: Transaction) -> None:
        await transaction.send("bills", order)
        await anyio.sleep(0.15)

    async with bus:
        await bus.send("orders", "o-1")
        try:
            await bus.drain()
        except HandlerError as error:
            return str(error)
    raise AssertionError("the record was handled")


SECTIONS = (HANDLING,)

"""The options of a handler: many keys at once, a timeout, middleware, a filter, a commit interval.

Twenty customers make five payments each, and the bank takes 10 ms per payment: sequentially that is a second. With
``order="key"``, customers are handled concurrently, and the payments of each customer in order.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import anyio
import msgspec

from eventbus import ConsumerRecord, EventBus, log_url

CUSTOMERS, PAYMENTS, BANK_SECONDS = 20, 5, 0.01


class Payment(msgspec.Struct):
    customer: str
    number: int


booked: dict[str, list[int]] = defaultdict(list)
seen = 0


def is_real(record: ConsumerRecord[bytes | None, bytes | None]) -> bool:
    return record.key != b"test"


async def count(record: ConsumerRecord, call_next: Any) -> Any:
    """Middleware: runs before and after the handler, with the record as it was read."""
    global seen
    seen += 1
    return await call_next(record)


bus = EventBus(log_url("memory://"))
bus.topic("payments", partitions=1, temporary=True)  # even within one partition


@bus.consumer(
    "payments",
    group="bank",
    concurrency=CUSTOMERS,  # at most this many calls at once
    order="key",  # "partition" (default), "key", "none", "global"
    timeout=5,  # seconds a call may take; longer is a failure, and on_error decides
    filter=is_real,  # False: the record is finished without a call
    middleware=[count],  # outermost first, inside the middleware of the bus
    commit_every=50,  # in addition to the commit ten times a second
)
async def book(payment: Payment) -> None:
    await anyio.sleep(BANK_SECONDS)
    booked[payment.customer].append(payment.number)


async def main() -> float:
    async with bus:
        payments = [
            Payment(f"customer-{customer}", number) for number in range(PAYMENTS) for customer in range(CUSTOMERS)
        ]
        began = time.perf_counter()
        await bus.send_many("payments", [*payments, Payment("test", 0)], key=lambda payment: payment.customer)
        await bus.drain()
        return time.perf_counter() - began


if __name__ == "__main__":
    seconds = anyio.run(main)
    alone = CUSTOMERS * PAYMENTS * BANK_SECONDS
    print(f"{CUSTOMERS * PAYMENTS} payments in {seconds:.2f} s; one after the other {alone:.2f} s and more")
    print(f"customer-0: {booked['customer-0']}")
    assert len(booked) == CUSTOMERS and all(numbers == list(range(PAYMENTS)) for numbers in booked.values())
    assert seen == CUSTOMERS * PAYMENTS + 1, "what the filter leaves out went through the middleware"

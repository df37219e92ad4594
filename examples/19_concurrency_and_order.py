"""What a handler may be given: many keys at once, a time limit, middleware, a filter, a commit every so often.

Twenty customers, five payments each, a bank that takes 10 ms: one after the other that is a second. With
``order="key"`` customers go side by side, and each one's payments stay in order.
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


def is_real(record: ConsumerRecord) -> bool:
    return record.key != b"test"


async def count(record: ConsumerRecord, call_next: Any) -> Any:
    """A middleware: sees the record as it was read, before and after the handler."""
    global seen
    seen += 1
    return await call_next(record)


bus = EventBus(log_url("memory://"))
bus.topic("payments", partitions=1, temporary=True)  # even of one partition


@bus.consumer(
    "payments",
    group="bank",
    concurrency=CUSTOMERS,  # at most so many calls at once
    order="key",  # "partition" (default), "key", "none", "global"
    timeout=5,  # seconds a call may take; longer is a failure, and on_error decides
    filter=is_real,  # False: not handled, but finished
    middleware=[count],  # outermost first, inside those of the bus
    commit_every=50,  # beside the commit ten times a second
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

"""Send a request over the log and wait for the reply, which only the requesting process receives.

Requests and replies are ordinary records: durable, keyed, shared among the members of the group. Expected errors are
part of the reply type. A caller without a reply gets a timeout, and cannot know whether the work was done.
"""

from __future__ import annotations

import anyio
import msgspec

from eventbus import EventBus, log_url
from eventbus.errors import RequestTimedOut


class Ask(msgspec.Struct):
    item: str
    count: int


class Quote(msgspec.Struct, tag=True):
    cents: int


class Refusal(msgspec.Struct, tag=True):
    reason: str


PRICES = {"bike": 60_000, "bell": 900}
bus = EventBus(log_url("memory://"), service="shop")  # replies go to "shop.replies"
bus.topic("quotes", partitions=3, temporary=True)
bus.topic("nobody-reads", temporary=True)
bus.topic("shop.replies", partitions=1, temporary=True)  # created by the first request, unless it is declared


@bus.consumer("quotes", group="pricing", replies=True, concurrency=8)
async def price(ask: Ask) -> Quote | Refusal:
    if ask.item not in PRICES:
        return Refusal(f"we have no {ask.item}")
    return Quote(PRICES[ask.item] * ask.count)


async def quote(item: str, count: int = 1) -> Quote | Refusal:
    reply: Quote | Refusal = await bus.request(
        "quotes", Ask(item, count), key=item, returns=Quote | Refusal, timeout=30
    )
    return reply


async def main() -> None:
    async with bus:
        print(await quote("bike"), await quote("bell", 3), await quote("boat"))

        got: dict[int, Quote | Refusal] = {}

        async def customer(number: int) -> None:
            got[number] = await quote("bell", number)

        async with anyio.create_task_group() as customers:  # concurrent requests; each receives its own reply
            for number in range(200):
                customers.start_soon(customer, number)
        assert got == {number: Quote(900 * number) for number in range(200)}
        print(f"{len(got)} customers have their own quotes")

        try:
            await bus.request("nobody-reads", Ask("bike", 1), timeout=0.2)
        except RequestTimedOut as error:
            print(error)
        else:
            raise AssertionError("who answered that?")


if __name__ == "__main__":
    anyio.run(main)

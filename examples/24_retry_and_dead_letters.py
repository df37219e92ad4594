"""Retry a failed record later; a record that can never succeed becomes a dead letter, to be redriven after the fix.

Two accounts share a partition. The bank is unavailable for Ada's first payment: it waits, and so does Ada's second
payment, while Grace's continues. An amount that is not a number becomes a dead letter.
"""

from __future__ import annotations

import logging

import anyio
import msgspec

from dlq import DeadLetters, Retry, Selection
from eventbus import EventBus, log_url


class Payment(msgspec.Struct):
    account: str
    amount: str


retry = Retry(immediate=1, delays=["100ms", "200ms"])  # 4 calls in all: at once, again, and after each delay
bus = EventBus(log_url("memory://"))
for topic in ("payouts", "retry.paying", "dlq.paying"):  # the handler would create the last two itself
    bus.topic(topic, partitions=1, temporary=True)
calls: list[str] = []
booked: list[str] = []
bank_is_away_for, understands_words = 3, False


@bus.consumer("payouts", group="paying", retry=retry)
async def book(payment: Payment) -> None:
    global bank_is_away_for
    calls.append(payment.amount)
    if payment.amount == "10" and bank_is_away_for:
        bank_is_away_for -= 1
        raise TimeoutError("the bank does not answer")
    if understands_words and payment.amount == "a hundred":
        payment.amount = "100"
    booked.append(f"{payment.account} {int(payment.amount)}")


async def main() -> None:
    global understands_words
    logging.disable(logging.ERROR)  # each dead letter is logged as an error; this example prints them instead
    async with bus:
        for account, amount in (("ada", "10"), ("ada", "11"), ("grace", "20"), ("alan", "a hundred")):
            await bus.send("payouts", Payment(account, amount), key=account)
        await bus.drain()  # handle everything that is due now
        while any(signals.waiting for signals in retry.signals()):
            await anyio.sleep(0.02)
            await bus.drain()
        await bus.drain()  # a record that no longer waits may not be a dead letter yet
        print("booked:", *booked, sep=" | ")
        print("calls:", *(f"{amount} x {calls.count(amount)}" for amount in sorted(set(calls))), sep=" | ")
        assert booked == ["grace 20", "ada 10", "ada 11"], "in the order of each key, and no other key waits"

        letters = DeadLetters(bus, "dlq.paying")
        for case in await letters.groups():
            print(f"{case.handler}: {case.count} x {case.error_class}, {case.statuses}")
        async for letter in letters.letters(Selection()):
            print(letter.key, letter.value, letter.message, f"after {letter.attempts} calls")

        understands_words = True  # the fix
        done = await letters.redrive(Selection(), by="ann", note="words are numbers")
        await bus.drain()
        again = await letters.redrive(Selection())  # never sends a letter twice
        [topic] = await letters.topics()
        print(f"redriven: {done.redriven}, then {again.redriven}; {topic.statuses}; booked: {booked[-1]}")
        assert (booked[-1], done.redriven, again.redriven) == ("alan 100", 1, 0)


if __name__ == "__main__":
    anyio.run(main)

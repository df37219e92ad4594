"""The accounts of a bank, computed from their events: the log is the source of truth (event sourcing).

A later event corrects a wrong booking. The next process builds the same table from the same events.
"""

from __future__ import annotations

import anyio
import msgspec

from eventbus import ConsumerRecord, EventBus, log_url


class Opened(msgspec.Struct, tag=True):
    owner: str


class Booked(msgspec.Struct, tag=True):
    cents: int
    reason: str


class Account(msgspec.Struct, frozen=True):
    owner: str
    cents: int = 0
    events: int = 1


def apply(account: Account | None, event: Event) -> Account:
    match event:
        case Opened(owner):
            return Account(owner)
        case Booked(cents):
            assert account is not None, "booked before it was opened"
            return Account(account.owner, account.cents + cents, account.events + 1)


Event = Opened | Booked
EVENTS: list[tuple[str, Event]] = [
    ("a-1", Opened("Ada")), ("a-2", Opened("Ben")), ("a-1", Booked(10_000, "salary")), ("a-1", Booked(1_000, "salary")),
    ("a-1", Booked(-1_000, "correction: was meant for Ben")), ("a-2", Booked(1_000, "salary")),
]  # fmt: skip
bus = EventBus(log_url("memory://"))
bus.topic("bank-events", partitions=3, temporary=True)
bus.topic("withdrawals", temporary=True)
accounts = bus.table("accounts", of="bank-events", key=str, value=Event, fold=apply)


@bus.consumer("withdrawals", group="cashier")
async def withdraw(cents: int, record: ConsumerRecord) -> None:
    number = record.key.decode()
    if accounts[number].cents < cents:
        print(f"{number}: no {cents} cents for {accounts[number].owner}")
        return
    # One at a time: the next withdrawal is decided after the table contains this one.
    await accounts.until(await bus.send("bank-events", Booked(-cents, "withdrawal"), key=number))


async def main() -> None:
    async with bus:
        for number, event in EVENTS:
            await bus.send("bank-events", event, key=number)
        await bus.drain()
        for _ in range(2):
            await bus.send("withdrawals", 6_000, key="a-1")
        await bus.drain()
        for number, account in sorted(accounts.items()):
            print(f"{number}: {account.owner} has {account.cents} cents after {account.events} events")
        made_again: dict[str, Account] = {}  # a table in five lines
        async with bus.new_consumer("bank-events", key=str, value=Event) as consumer:
            async for record in consumer.until_end():
                made_again[record.key] = apply(made_again.get(record.key), record.value)
        assert made_again == accounts
        print("made again from the log: the same")


if __name__ == "__main__":
    anyio.run(main)

"""Account for every record by what is committed: each is done, waiting, or dead, and only one of these."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from typing import NamedTuple

from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.delays import retry_records as headers_of
from eventbus.delays.retry_records import read_mark
from tests.dlq.kill.service import NEVER, Call, Names, is_doomed, plan_of

At = tuple[int, int]
"""Partition and offset of a record in its source."""


class Account(NamedTuple):
    sent: dict[At, ConsumerRecord]
    done: Counter[At]
    dead: dict[At, list[ConsumerRecord]]
    entries: dict[At, list[ConsumerRecord]]
    """All entries ever written, in order."""
    waiting: Counter[At]
    """Entries that are not finished."""
    committed: dict[int, int]
    """Committed offsets by partition of the source."""

    @property
    def is_settled(self) -> bool:
        return self.sent.keys() == self.done.keys() | self.dead.keys() and not self.waiting


async def account(bus: EventBus, names: Names) -> Account:
    found = await bus.admin.group_offsets(names.group)
    committed = {where: offset.offset for where, offset in found.items()}
    entries: defaultdict[At, list[ConsumerRecord]] = defaultdict(list)
    by_partition: defaultdict[int, list[ConsumerRecord]] = defaultdict(list)
    for record in await read(bus, names.retry):
        by_partition[record.partition].append(record)
        if (source := source_of(record)) is not None:
            entries[source].append(record)
    dead: defaultdict[At, list[ConsumerRecord]] = defaultdict(list)
    for record in await read(bus, names.dead_letters):
        headers = dict(record.headers)
        dead[number(headers, "__dlq.errors.partition"), number(headers, "__dlq.errors.offset")].append(record)
    waiting: Counter[At] = Counter()
    for partition, records in by_partition.items():
        waiting.update(open_entries(records, committed.get(TopicPartition(names.retry, partition), 0)))
    return Account(
        {(record.partition, record.offset): record for record in await read(bus, names.orders)},
        Counter(at(*record.value.decode().split("/")) for record in await read(bus, names.done)),
        dict(dead),
        dict(entries),
        waiting,
        {where.partition: offset for where, offset in committed.items() if where.topic == names.orders},
    )


async def read(bus: EventBus, topic: str) -> list[ConsumerRecord]:
    """Return all committed records of a topic."""
    if topic not in await bus.admin.list_topics():
        return []
    async with bus.new_consumer(topic, isolation_level="read_committed") as consumer:
        return [record async for record in consumer.until_end()]


def source_of(entry: ConsumerRecord) -> At | None:
    """Return the source of a retry entry, or None for a mark."""
    headers = dict(entry.headers)
    if headers_of.DONE in headers:
        return None
    _, partition, offset, *_ = json.loads(headers[headers_of.ROOT] or b"")
    return partition, offset


def open_entries(records: Sequence[ConsumerRecord], committed: int) -> Generator[At]:
    """Yield the unfinished entries of a retry partition, as a new owner would find them."""
    finished: set[int] = set()
    for record in records:
        if record.offset >= committed and headers_of.DONE in dict(record.headers):
            ranges = read_mark(record.value)
            assert ranges is not None, record
            finished.update(offset for each in ranges for offset in each)
    for record in records:
        if record.offset >= committed and record.offset not in finished and (source := source_of(record)) is not None:
            yield source


def at(partition: str, offset: str) -> At:
    return int(partition), int(offset)


def number(headers: dict[str, bytes | None], name: str) -> int:
    return int(headers[name] or b"")


# what is wrong --------------------------------------------------------------------------------------------------------


def wrong(account: Account, *, exactly_once: bool) -> Generator[str]:
    """Yield violations that must not occur at any time, even while records are in flight."""
    strangers = (account.done.keys() | account.dead.keys() | account.entries.keys()) - account.sent.keys()
    yield from (f"{one} was never sent" for one in strangers)
    for one, record in account.sent.items():
        ends = {"done": account.done[one], "waiting": account.waiting[one], "dead": len(account.dead.get(one, ()))}
        named = f"{one} of plan {plan_of(record.value.decode())}: {ends}"
        is_behind = one[1] < account.committed.get(one[0], 0)
        if ends["dead"] > 1 or ends["waiting"] > 1 or (exactly_once and ends["done"] > 1):
            yield f"{named}: more than once"
        if is_behind and not any(ends.values()):
            yield f"{named}: lost"
        if not is_behind and (ends["waiting"] or ends["dead"] or (exactly_once and ends["done"])):
            yield f"{named}, and its offset is not committed"
        if ends["dead"] and (ends["waiting"] or ends["done"]):
            yield f"{named}: dead, and not"
        if exactly_once and ends["waiting"] and ends["done"]:
            yield f"{named}: done, and waiting"
        if is_doomed(plan_of(record.value.decode())) and ends["done"]:
            yield f"{named}: it cannot be done"
        yield from falling(one, account)


def falling(one: At, account: Account) -> Generator[str]:
    """Check that the attempts in headers increase, from entry to entry and up to the dead letter."""
    attempts = [number(dict(record.headers), headers_of.ATTEMPT) for record in account.entries.get(one, ())]
    attempts += [number(dict(letter.headers), "__dlq.errors.delivery.count") for letter in account.dead.get(one, ())]
    if attempts != sorted(attempts) or any(attempts.count(each) > 1 for each in attempts if each):
        yield f"{one}: attempts of its entries are {attempts}"


def unsettled(account: Account, most_calls: int) -> Generator[str]:
    """Check after everything is settled that each record ended as planned, and not before its last call."""
    yield from (f"{one} still waits" for one in account.waiting)
    for one, record in account.sent.items():
        plan = plan_of(record.value.decode())
        if is_doomed(plan) != (one in account.dead) or is_doomed(plan) == (one in account.done):
            yield f"{one} of plan {plan}: done {account.done[one]} times, dead {len(account.dead.get(one, ()))} times"
        elif plan == NEVER:
            [letter] = account.dead[one]
            if number(dict(letter.headers), "__dlq.errors.delivery.count") < most_calls:
                yield f"{one} is dead before its last try"


def disordered(account: Account, lives: Sequence[Sequence[Call]]) -> Generator[str]:
    """Check that records of a key are called in order: each only after the previous one is settled, never backwards."""
    ahead: dict[At, At] = {}
    last: dict[tuple[int, bytes], At] = {}
    for one, record in sorted(account.sent.items()):
        if record.key is not None:
            if (before := last.get((record.partition, record.key))) is not None:
                ahead[one] = before
            last[record.partition, record.key] = one
    called: set[At] = set()
    over: set[At] = set()
    told: Counter[At] = Counter()
    for number, life in enumerate(lives):
        furthest: dict[tuple[int, bytes | None], At] = {}
        for call in life:
            one = call.partition, call.offset
            record = account.sent[one]
            before = ahead.get(one)
            if before is not None and before not in over:
                yield f"life {number}: {one} is called before {before} is over"
            if record.key is not None and furthest.setdefault((record.partition, record.key), one) > one:
                yield f"life {number}: {one} is called after {furthest[record.partition, record.key]}"
            furthest[record.partition, record.key] = one
            if call.attempt < told[one]:
                yield f"life {number}: {one} is told of {call.attempt} calls, and was told of {told[one]}"
            told[one] = call.attempt
            called.add(one)
            if call.succeeded or is_doomed(plan_of(record.value.decode())):
                over.add(one)

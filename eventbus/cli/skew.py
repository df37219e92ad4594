"""``eventbus topics skew TOPIC``: how evenly records are spread over partitions, and which keys weigh most."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.cli.output import Output
from eventbus.cli.parser import add_topic, positive, required_topic
from eventbus.cli.shell import open_bus, until_signal
from eventbus.types import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventbus import EventBus

HOT = 1.5
"""A partition with so many times its fair share is called hot."""


def add_skew(actions: Any) -> None:
    """The action of ``eventbus topics``."""
    parser = actions.add_parser(
        "skew",
        help="how evenly keys and partitions are used",
        description="Reads a topic and tells each partition's share, and the keys with most records. One key lives in\n"
        "one partition, so a key that is used too much makes its partition hot, however many there are.",
    )
    add_topic(parser)
    parser.add_argument("--top", type=positive, default=5, metavar="N", help="keys to name; default: 5")
    parser.set_defaults(run=show_skew)


class Share(NamedTuple):
    """What one partition holds."""

    partition: int
    records: int
    bytes: int
    keys: int
    """Different ones."""
    share: float
    """Of all records, in per cent."""


class Tally:
    """Counts records by partition and key."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self.records = dict.fromkeys(partitions, 0)
        self.bytes = dict.fromkeys(self.records, 0)
        self.keys: dict[int, Counter[bytes]] = {number: Counter() for number in self.records}
        self.keyless = 0

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            number = record.partition
            self.records[number] += 1
            self.bytes[number] += len(record.key or b"") + len(record.value or b"")
            if record.key is None:
                self.keyless += 1
            else:
                self.keys[number][record.key] += 1

    @property
    def total(self) -> int:
        return sum(self.records.values())

    def shares(self) -> list[Share]:
        total = max(self.total, 1)
        return [
            Share(number, count, self.bytes[number], len(self.keys[number]), 100 * count / total)
            for number, count in self.records.items()
        ]

    def heaviest(self, top: int) -> list[tuple[bytes, int, int]]:
        """(key, partition, records), the heaviest first."""
        keys = [(key, number, count) for number, counter in self.keys.items() for key, count in counter.items()]
        return sorted(keys, key=lambda one: (-one[2], one[0]))[:top]

    def verdict(self) -> str:
        """Return one or two lines: is it even, and if not, what to do."""
        if not self.total:
            return "there is nothing in it"
        number, most = max(self.records.items(), key=lambda one: one[1])
        times = most * len(self.records) / self.total
        if times < HOT:
            return f"even enough: the fullest partition has {times:.1f} times its fair share"
        heavy = self.heaviest(1)
        text = f"partition {number} is hot: {times:.1f} times its fair share."
        if not heavy or heavy[0][1] != number or heavy[0][2] < most / 2:
            return f"{text} No single key is to blame: too few keys, or a partitioner of your own"
        return (
            f"{text} Key {heavy[0][0].decode(errors='replace')!r} is {100 * heavy[0][2] / most:.0f} % of it: add to "
            "the key what may be handled apart (customer|region), or a number when nothing needs its order (key|0..9)"
        )


async def show_skew(args: argparse.Namespace) -> int:
    topic, out = required_topic(args), Output.of(args)

    async with open_bus(args) as bus, until_signal() as scope:
        tally = await _count(bus, topic)
    if scope.cancel_called:
        return 130
    heaviest = [(key.decode(errors="replace"), number, count) for key, number, count in tally.heaviest(args.top)]
    if out.json:
        out.data(
            {
                "topic": topic,
                "records": tally.total,
                "without_key": tally.keyless,
                "partitions": [share._asdict() for share in tally.shares()],
                "keys": [{"key": key, "partition": number, "records": count} for key, number, count in heaviest],
                "verdict": tally.verdict(),
            }
        )
        return 0
    _show(out, tally, heaviest)
    return 0


def _show(out: Output, tally: Tally, heaviest: Sequence[tuple[str, int, int]]) -> None:
    out.table(["partition", "records", "bytes", "keys", "share %"], tally.shares())
    if heaviest:
        out.line()
        total = max(tally.total, 1)
        rows = [(key, number, count, 100 * count / total) for key, number, count in heaviest]
        out.table(["heaviest keys", "partition", "records", "share %"], rows)
    if tally.keyless:
        out.line()
        out.line(f"{tally.keyless:,} record(s) without a key: the partitioner spreads those")
    out.line()
    out.line(tally.verdict())


async def _count(bus: EventBus, topic: str) -> Tally:
    [description] = await bus.admin.describe_topics([topic])
    tally = Tally(part.partition for part in description.partitions)
    ends = {TopicPartition(topic, part.partition): part.last_stable_offset for part in description.partitions}
    async with bus.new_consumer(start="earliest") as consumer:
        await consumer.assign(ends)
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            tally.add(await consumer.poll(timeout_ms=100, max_records=10_000))
    return tally

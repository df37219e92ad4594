"""Shared by cancel trials and storms: who handled which record when, and the invariants."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import anyio
import trio

from eventbus import TopicPartition
from eventbus.backends import urls

LOGS = itertools.count()


class Item(NamedTuple):
    """A record as described by its value: its position in the partition, and its key."""

    partition: int
    index: int
    key: bytes

    @staticmethod
    def of(value: bytes) -> Item:
        partition, index, key = value.split(b":")
        return Item(int(partition), int(index), key)

    @property
    def value(self) -> bytes:
        return b"%d:%d:%b" % self


class Ledger:
    """All calls of a handler: begun, finished (returned, or acknowledged) or interrupted."""

    def __init__(self, order: str = "partition") -> None:
        self.order = order
        self.begun: Counter[Item] = Counter()
        self.finished: Counter[Item] = Counter()
        self.interrupted: Counter[Item] = Counter()
        self.firsts: dict[Any, list[int]] = defaultdict(list)
        """The first ends in each unit of order, as they occurred."""
        self.at_work: dict[Any, str] = {}
        self.errors: list[str] = []
        self.overlaps_allowed = False
        """A member that lost its partition finishes the record in flight, concurrently with the next owner."""

    def unit(self, item: Item) -> Any:
        """Return the unit in which records are handled in order."""
        match self.order:
            case "partition":
                return item.partition
            case "key":
                return (item.partition, item.key)
            case _:
                return item

    @contextmanager
    def work(self, who: str, *items: Item, acknowledged: bool = True) -> Iterator[None]:
        """Record a call of a handler. With ``acknowledged=False`` its end is not the end of the record, see `end`."""
        units = {self.unit(item) for item in items}
        for unit in units:
            other = self.at_work.get(unit)
            if other is not None and not self.overlaps_allowed:
                self.errors.append(f"{who} works on {unit} beside {other}")
            self.at_work[unit] = who
        self.begun.update(items)
        try:
            yield
        except BaseException:
            self.interrupted.update(items)
            raise
        else:
            if acknowledged:
                self.end(*items)
        finally:
            for unit in units:
                self.at_work.pop(unit, None)

    def end(self, *items: Item) -> None:
        for item in items:
            self.finished[item] += 1
            if self.finished[item] == 1:
                self.firsts[self.unit(item)].append(item.index)

    def prefix(self, partition: int) -> int:
        """Return the index of the first record of a partition that was never finished."""
        done = {item.index for item in list(self.finished) if item.partition == partition}  # threads go on meanwhile
        return next(index for index in itertools.count() if index not in done)

    def check_order(self) -> None:
        for unit, indexes in self.firsts.items():
            assert indexes == sorted(indexes), f"{unit} was handled out of order: {indexes}"
        assert not self.errors, self.errors

    def check_nothing_lost(self, sent: Mapping[int, int]) -> None:
        for partition, count in sent.items():
            first = self.prefix(partition)
            told = {item: self.begun[item] for item in self.begun if item[:2] == (partition, first)}
            assert first == count, f"partition {partition}: {first} was lost; begun: {told}"

    def check_nothing_repeated(self) -> None:
        again = [item for item, times in self.finished.items() if times > 1]
        assert not again, f"finished and handled again: {again}"


class CommitWatch:
    """Checks each commit of plain offsets when the log receives it."""

    def __init__(self, groups: Any) -> None:
        self._commit = groups.commit_offsets
        groups.commit_offsets = self._look
        self.checks: dict[str, Any] = {}
        """Checks by group. A check is called with (partition, offset) and raises an error for a violation."""
        self.errors: list[str] = []
        self.commits = 0

    def _look(self, group: Any, offsets: Mapping[TopicPartition, Any], now_ms: int) -> Any:
        name = group if isinstance(group, str) else group.group
        check = self.checks.get(name)
        for topic_partition, offset in offsets.items() if check is not None else ():
            self.commits += 1
            error = check(topic_partition.partition, offset.offset)
            if error:
                self.errors.append(error)
        return self._commit(group, offsets, now_ms)


@contextmanager
def same_ids(seed: int) -> Iterator[None]:
    """Make ids of members and topics reproducible, because assignors sort by them."""
    random = Random(seed)
    known = urls.new_id
    urls.new_id = lambda: random.randbytes(16)
    try:
        yield
    finally:
        urls.new_id = known


def run_the_same(backend: str, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Run `anyio.run` with all random choices fixed."""
    if backend == "trio":  # its scheduler is random
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
        trio._core._run._r = Random(1)
    with same_ids(1):
        return anyio.run(functools.partial(function, *arguments), backend=backend)


async def turns(count: int) -> None:
    """Let every task take ``count`` steps."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()

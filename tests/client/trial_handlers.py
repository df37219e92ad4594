"""The kinds of handlers that trials interrupt. Each records in a ledger what it does, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from eventbus import ConsumerRecord, EventBus, Transaction
from tests.client.trials import Item, Ledger

Pause = Callable[[Item], Awaitable[None]]
"""Awaited by a handler during its work."""


class Scene(NamedTuple):
    """The place of a handler, and how it records its work."""

    bus: EventBus
    topic: str
    out: str
    group: str
    ledger: Ledger
    who: str
    pause: Pause
    last: Callable[[Item], bool]
    """True for the last record of its partition."""


class Kind(NamedTuple):
    declare: Callable[..., None]
    options: Mapping[str, Any] = MappingProxyType({})
    copies: int = 0
    """The number of outputs per record."""
    threads: bool = False
    """True if calls run in threads, whose duration the event loop cannot control."""

    @property
    def order(self) -> str:
        """The order in which records are finished."""
        return "none" if self.is_manual else self.options.get("order", "partition")

    @property
    def is_manual(self) -> bool:
        return self.declare is acknowledging

    @property
    def is_sparse(self) -> bool:
        """Records are finished after unfinished ones. If the latter are interrupted, the former are handled again too.

        (Or, at most once, committed before they are handled: then they are lost.)
        """
        return self.order != "partition" or self.at_most_once

    @property
    def exactly_once(self) -> bool:
        return bool(self.options.get("exactly_once"))

    @property
    def at_most_once(self) -> bool:
        return self.options.get("delivery") == "at-most-once"


def payload(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, **options)
    async def handle(value: bytes) -> None:
        item = Item.of(value)
        with scene.ledger.work(scene.who, item):
            await scene.pause(item)


def record(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, **options)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        item = Item.of(value)
        assert (record.partition, record.offset) == (item.partition, item.index)
        with scene.ledger.work(scene.who, item):
            await scene.pause(item)


def plain(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, **options)
    def handle(value: bytes) -> None:
        with scene.ledger.work(scene.who, Item.of(value)):
            pass


def batch(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, batch=2, **options)
    async def handle(values: list[bytes]) -> None:
        items = [Item.of(value) for value in values]
        with scene.ledger.work(scene.who, *items):
            await scene.pause(items[0])


def plain_batch(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, batch=2, **options)
    def handle(values: list[bytes]) -> None:
        with scene.ledger.work(scene.who, *[Item.of(value) for value in values]):
            pass


def producer(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, **options)
    @scene.bus.producer(scene.out)
    async def handle(value: bytes) -> bytes:
        item = Item.of(value)
        with scene.ledger.work(scene.who, item):
            await scene.pause(item)
        return value


def generator(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, **options)
    @scene.bus.producer(scene.out)
    async def handle(value: bytes) -> AsyncIterator[bytes]:
        item = Item.of(value)
        with scene.ledger.work(scene.who, item):
            yield value
            await scene.pause(item)
            yield value


def plain_producer(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, **options)
    @scene.bus.producer(scene.out)
    def handle(value: bytes) -> Iterator[bytes]:
        with scene.ledger.work(scene.who, Item.of(value)):
            yield value


def batch_producer(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, batch=3, **options)
    @scene.bus.producer(scene.out)
    async def handle(values: list[bytes]) -> AsyncIterator[bytes]:
        items = [Item.of(value) for value in values]
        with scene.ledger.work(scene.who, *items):
            for value in values:
                await scene.pause(items[0])
                yield value


def through_transaction(scene: Scene, **options: Any) -> None:
    @scene.bus.consumer(scene.topic, group=scene.group, **options)
    async def handle(value: bytes, tx: Transaction) -> None:
        item = Item.of(value)
        with scene.ledger.work(scene.who, item):
            tx.send_nowait(scene.out, value)
            await scene.pause(item)


def acknowledging(scene: Scene, **options: Any) -> None:
    """Acknowledge the record before the last, so that at the end of a life some are handled but not finished."""
    waiting: dict[int, list[ConsumerRecord]] = {}

    @scene.bus.consumer(scene.topic, group=scene.group, ack="manual", **options)
    async def handle(record: ConsumerRecord) -> None:
        item = Item.of(record.value)
        with scene.ledger.work(scene.who, item, acknowledged=False):
            await scene.pause(item)
        held = waiting.setdefault(record.partition, [])
        held.append(record)
        last = scene.last(item)
        while held and (last or len(held) > 2):
            one = held.pop(0 if len(held) % 2 else -1)
            scene.ledger.end(Item.of(one.value))
            one.ack()


BY_KEY: dict[str, Any] = {"order": "key", "concurrency": 3}
BY_NONE: dict[str, Any] = {"order": "none", "concurrency": 4, "max_unfinished": 3}
AT_MOST_ONCE: dict[str, Any] = {"delivery": "at-most-once"}
EXACTLY_ONCE: dict[str, Any] = {"exactly_once": True, "transaction_records": 4}
KINDS = {
    "payload": Kind(payload),
    "record": Kind(record),
    "plain": Kind(plain, threads=True),
    "batch": Kind(batch),
    "plain_batch": Kind(plain_batch, threads=True),
    "producer": Kind(producer, copies=1),
    "generator": Kind(generator, copies=2),
    "plain_producer": Kind(plain_producer, copies=1, threads=True),
    "batch_producer": Kind(batch_producer, copies=1),
    "commit_every": Kind(payload, {"commit_every": 1}),
    "one_at_a_time": Kind(record, {"concurrency": 1}),
    "by_key": Kind(payload, BY_KEY),
    "by_key_record": Kind(record, BY_KEY),
    "by_key_producer": Kind(producer, BY_KEY, copies=1),
    "by_key_plain": Kind(plain, BY_KEY, threads=True),
    "by_none": Kind(record, BY_NONE),
    "by_none_plain": Kind(plain_producer, BY_NONE, copies=1, threads=True),
    "acknowledging": Kind(acknowledging),
    "at_most_once": Kind(record, AT_MOST_ONCE),
    "at_most_once_plain": Kind(plain, AT_MOST_ONCE, threads=True),
    "exactly_once": Kind(producer, EXACTLY_ONCE, copies=1),
    "exactly_once_plain": Kind(plain_producer, EXACTLY_ONCE, copies=1, threads=True),
    "exactly_once_batch": Kind(batch_producer, {**EXACTLY_ONCE, "transaction_records": 6}, copies=1),
    "transaction": Kind(through_transaction, EXACTLY_ONCE, copies=1),
}

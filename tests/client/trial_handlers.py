"""The kinds of handlers that trials interrupt: each tells a ledger what it does, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from eventbus import ConsumerRecord, EventBus, Transaction
from tests.client.trials import Item, Ledger

Pause = Callable[[Item], Awaitable[None]]
"""What a handler awaits in the middle of its work."""


class Scene(NamedTuple):
    """Where a handler is declared, and what it tells."""

    bus: EventBus
    topic: str
    out: str
    group: str
    ledger: Ledger
    who: str
    pause: Pause


class Kind(NamedTuple):
    declare: Callable[..., None]
    options: Mapping[str, Any] = MappingProxyType({})
    copies: int = 0
    """Outputs per record."""
    threads: bool = False
    """How long it takes is not the event loop's to say."""

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
    "exactly_once": Kind(producer, EXACTLY_ONCE, copies=1),
    "exactly_once_plain": Kind(plain_producer, EXACTLY_ONCE, copies=1, threads=True),
    "exactly_once_batch": Kind(batch_producer, {**EXACTLY_ONCE, "transaction_records": 6}, copies=1),
    "transaction": Kind(through_transaction, EXACTLY_ONCE, copies=1),
}

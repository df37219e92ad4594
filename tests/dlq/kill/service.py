"""The service that is killed. Its handler fails by a plan in each record, and reports each call."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from dlq import Reject, Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.delays.retry_records import attempts_of
from eventbus.recovery import RetryOrder

PARTITIONS = 3
KEYS = 12
DELAYS_S = (0.004, 0.008, 0.02)

ONCE, REJECTED, NEVER = "once", "rejected", "9"
PLANS = ("0",) * 12 + ("1", "2", "3", "4", ONCE, NEVER, REJECTED)
"""A number: the handler fails while the headers show fewer calls. "once": it fails at the first call of each life."""


class Names(NamedTuple):
    """Names of the topics and the group."""

    orders: str = "orders"
    done: str = "done"
    group: str = "billing"

    @classmethod
    def of(cls, run: str) -> Names:
        """Return names for a log that is shared with other runs."""
        return cls(f"orders-{run}", f"done-{run}", f"billing-{run}")

    @property
    def retry(self) -> str:
        return f"retry.{self.group}"

    @property
    def dead_letters(self) -> str:
        return f"dlq.{self.group}"


class Call(NamedTuple):
    """A call of the handler for a record; its headers showed ``attempt`` earlier calls."""

    partition: int
    offset: int
    attempt: int
    succeeded: bool


Tell = Callable[[Call], object]


def is_doomed(plan: str) -> bool:
    """True if records of this plan become dead letters."""
    return plan in (NEVER, REJECTED)


def service(
    bus: EventBus,
    names: Names,
    tell: Tell,
    *,
    exactly_once: bool,
    order: RetryOrder = "key",
    delays: tuple[float, ...] = DELAYS_S,
    instance: str | None = None,
) -> None:
    """Declare the topics and the handler. ``instance`` identifies it to the group in each of its lives."""
    form: dict[str, Any] = {"exactly_once": True} if exactly_once else {"commit_interval_ms": 20}
    if order != "partition" and not exactly_once:
        form |= {"order": order, "concurrency": 4}
    for topic in (names.orders, names.done):
        bus.topic(topic, partitions=PARTITIONS)
    met: set[tuple[int, int]] = set()

    def fails(record: ConsumerRecord, plan: str, attempt: int) -> bool:
        if plan != ONCE:
            return is_doomed(plan) or attempt < int(plan)
        at = record.partition, record.offset
        is_first = at not in met
        met.add(at)
        return is_first

    @bus.consumer(
        names.orders,
        group=names.group,
        group_instance_id=instance,
        retry=Retry(immediate=1, delays=delays, jitter=False, order=order),
        **form,
    )
    @bus.producer(names.done)
    async def bill(order: str, record: ConsumerRecord) -> str:
        plan = plan_of(order)
        attempt = attempts_of(record).attempt
        failed = fails(record, plan, attempt)
        tell(Call(record.partition, record.offset, attempt, not failed))
        if plan == REJECTED:
            raise Reject("no such customer")
        if failed:
            raise ValueError(f"{order} fails at attempt {attempt}")
        return f"{record.partition}/{record.offset}"


def plan_of(value: str) -> str:
    return value.partition("/")[0]


def send_some(bus: EventBus, topic: str, chance: Random, count: int) -> None:
    for _ in range(count):
        key = None if chance.random() < 0.1 else f"k{chance.randrange(KEYS)}"
        bus.send_nowait(topic, f"{chance.choice(PLANS)}/{chance.randrange(1_000_000)}", key=key)

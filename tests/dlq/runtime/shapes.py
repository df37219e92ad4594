"""The forms of handlers, each with an equal body. A promise holds for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from eventbus import ConsumerRecord, EventBus, consumer
from eventbus.delays.retry_records import attempts_of
from tests.dlq.runtime.logs import Log


class Shape(NamedTuple):
    name: str
    options: dict[str, Any]
    kind: str = "async"
    """Also "plain", "batch", "generator"."""

    def __repr__(self) -> str:
        return self.name

    @property
    def publishes(self) -> bool:
        return self.name != "by hand" and self.kind != "batch"


IN_ORDER = Shape("in order", {})
PLAIN = Shape("plain", {}, "plain")
BY_KEY = Shape("by key", {"order": "key", "concurrency": 8})
PLAIN_BY_KEY = Shape("plain, by key", {"order": "key", "concurrency": 8}, "plain")
UNORDERED = Shape("unordered", {"order": "none", "concurrency": 8})
BATCH = Shape("batch", {"batch": 10}, "batch")
BY_HAND = Shape("by hand", {"ack": "manual"})
PLAIN_BY_HAND = Shape("plain, by hand", {"ack": "manual"}, "plain")
BY_HAND_BY_KEY = Shape("by hand, by key", {"ack": "manual", "order": "key", "concurrency": 8})
ONCE = Shape("exactly once", {"exactly_once": True})
PLAIN_ONCE = Shape("plain, exactly once", {"exactly_once": True}, "plain")
BATCH_ONCE = Shape("batch, exactly once", {"exactly_once": True, "batch": 10}, "batch")

SHAPES = (
    IN_ORDER, PLAIN, BY_KEY, PLAIN_BY_KEY, UNORDERED, BATCH, BY_HAND, PLAIN_BY_HAND, BY_HAND_BY_KEY, ONCE, PLAIN_ONCE,
    BATCH_ONCE,
)  # fmt: skip
KEEP_ORDER = tuple(shape for shape in SHAPES if shape is not UNORDERED)
FEW = (IN_ORDER, BY_KEY, ONCE)
"""Forms for promises that do not depend on how a handler is called."""


def handle(bus: EventBus, log: Log, shape: Shape, body: Calls, *, publish_to: str = "", **options: Any) -> None:
    """Declare a handler of the log's topic. The results of ``body`` are published to ``publish_to``, if given."""
    function = _function(shape, body)
    log.has_threads |= shape.kind == "plain"
    listens = consumer(log.topic, **{"group": log.group, **shape.options, **options})(function)
    bus.include(bus.producer(publish_to)(listens) if publish_to else listens)


def _function(shape: Shape, body: Calls) -> Any:
    by_hand = shape.options.get("ack") == "manual"

    def call(record: ConsumerRecord) -> str | None:
        result = body(record)
        if by_hand:
            record.ack()
        return result

    async def bill(record: ConsumerRecord) -> str | None:
        return call(record)

    def bill_plainly(record: ConsumerRecord) -> str | None:
        return call(record)

    async def bill_many(records: list[ConsumerRecord]) -> list[str] | None:
        if len(records) > 1 and any(body.would_fail(record) for record in records):
            raise ValueError("one of them")  # the batch does not show which, so each is called separately
        for record in records:
            call(record)

    return {"async": bill, "plain": bill_plainly, "batch": bill_many}[shape.kind]


class Call(NamedTuple):
    value: str
    at_ms: int
    attempt: int
    """Earlier calls, as the headers show."""


class Calls:
    """The body of a handler. It records its calls, and raises the errors of ``fails``."""

    def __init__(self, log: Log, fails: Callable[[str, int], BaseException | None] = lambda value, call: None) -> None:
        """``fails`` gets the value and the number of the call, from 1 on."""
        self._log = log
        self._fails = fails
        self.made: list[Call] = []
        self.done: list[str] = []

    def __call__(self, record: ConsumerRecord) -> str:
        assert record.value is not None
        value = record.value.decode()
        self.made.append(Call(value, self._log.now_ms(), attempts_of(record).attempt))
        error = self._fails(value, len(self.of(value)))
        if error is not None:
            raise error
        self.done.append(value)
        return f"bill of {value}"

    def would_fail(self, record: ConsumerRecord) -> bool:
        value = (record.value or b"").decode()
        return self._fails(value, self.count(value) + 1) is not None

    def of(self, value: str) -> list[Call]:
        return [call for call in self.made if call.value == value]

    def count(self, value: str) -> int:
        return len(self.of(value))

    @property
    def values(self) -> list[str]:
        return [call.value for call in self.made]


def bad(value: str, call: int) -> BaseException | None:
    """Records whose names begin with "b" always fail."""
    return ValueError(f"{value} is bad") if value.startswith("b") else None


def failing(**times: int) -> Callable[[str, int], BaseException | None]:
    """Let these values fail so often, then succeed."""

    def fails(value: str, call: int) -> BaseException | None:
        return ValueError(f"{value}, call {call}") if call <= times.get(value, 0) else None

    return fails

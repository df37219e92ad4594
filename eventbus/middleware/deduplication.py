"""Detect duplicate records by a key: the duplicates are not handled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import anyio

from eventbus.client.handling.current_record import current_record
from eventbus.client.handling.functions import is_async, takes
from eventbus.client.handling.middleware import CallNext
from eventbus.client.metrics import Sample
from eventbus.client.replies import REPLY_TO
from eventbus.durations import Duration, seconds
from eventbus.errors import ConfigError
from eventbus.middleware.base import Timed, records_of, whole
from eventbus.types import ConsumerRecord, TopicPartition

Place = tuple[TopicPartition, int]


class _Memory:
    """The state of one handler: finished keys, and keys in progress."""

    def __init__(self) -> None:
        self.seen: OrderedDict[Any, tuple[Place, float, Any]] = OrderedDict()
        """The position of the first record of each key, when it was finished, and the reply to it; the oldest first."""
        self.under_way: set[Any] = set()
        self.ended = anyio.Event()


class Deduplication(Timed):
    """Skips a record whose key was seen in another record that the same handler has finished.

    In the ``middleware=`` of a handler with replies, a request whose key was seen in another request gets the same
    reply. In the bus's middleware, which is outside of the replies, it gets none.

    ``key``: the name of a header, or a function of the record; a record for which it is None is handled. The last
    ``count`` keys are remembered, for ``window``. A record that itself comes again (after a rebalance, a restart or an
    aborted transaction) is handled again: whether its effect exists is not known here.

    The memory is local to the process: a restart loses it, and other processes do not share it. For exactly-once
    handling use ``tx=`` with a database (an inbox), or ``exactly_once=True``.
    """

    def __init__(
        self,
        key: str | Callable[[ConsumerRecord], Any],
        *,
        window: Duration = "1h",
        count: int = 100_000,
    ) -> None:
        """Check the arguments. Raises ConfigError."""
        super().__init__()
        if isinstance(key, str) and key:
            self._key: Callable[[ConsumerRecord], Any] = lambda record: record.header(key)
        elif callable(key) and not is_async(key) and takes(key, 1):
            self._key = key
        else:
            raise ConfigError(
                f"Deduplication(key={key!r}): the name of a header, or a plain function of the record: "
                "key=lambda record: record.key"
            )
        self._window_seconds = seconds(window, f"Deduplication(window={window!r}")
        self._count = whole("Deduplication(count", count)
        self._memories: dict[tuple[str, str, str], _Memory] = {}
        """The state by handler, group and topic: two handlers of a topic get the same records."""
        self.passed_over = 0
        """The number of skipped duplicates."""

    async def __call__(self, record: Any, call_next: CallNext) -> Any:
        records = records_of(record)
        current = current_record()
        if current is None:  # not in a handler's call: the handler is not known
            return await call_next(record)
        memory = self._memories.setdefault((current.handler, current.group, records[0].topic), _Memory())
        keyed = [(self._key(one), one) for one in records]
        keys = {key for key, _ in keyed if key is not None}
        while not keys.isdisjoint(memory.under_way):  # all or none are taken: two batches never wait for each other
            await memory.ended.wait()
        fresh = self._fresh(memory, keyed)
        if not fresh:
            return memory.seen[keyed[0][0]][2]
        memory.under_way |= keys
        try:
            result = await call_next([one for _, one in fresh] if isinstance(record, list) else record)
            is_request = not isinstance(record, list) and record.header(REPLY_TO) is not None
            self._remember(memory, fresh, result if is_request else None)
            return result
        finally:
            memory.under_way -= keys
            ended, memory.ended = memory.ended, anyio.Event()
            ended.set()

    def _fresh(self, memory: _Memory, keyed: list[tuple[Any, ConsumerRecord]]) -> list[tuple[Any, ConsumerRecord]]:
        oldest = self._timers.current_time() - self._window_seconds
        while memory.seen and next(iter(memory.seen.values()))[1] < oldest:
            memory.seen.popitem(last=False)
        fresh: list[tuple[Any, ConsumerRecord]] = []
        firsts: dict[Any, Place] = {}
        for key, one in keyed:
            place = (one.topic_partition, one.offset)
            seen = memory.seen.get(key)
            first = place if key is None else firsts.setdefault(key, place if seen is None else seen[0])
            if first == place:
                fresh.append((key, one))
            else:
                self.passed_over += 1
        return fresh

    def _remember(self, memory: _Memory, finished: list[tuple[Any, ConsumerRecord]], reply: Any) -> None:
        now = self._timers.current_time()
        for key, one in finished:
            if key is not None:
                memory.seen[key] = ((one.topic_partition, one.offset), now, reply)
                memory.seen.move_to_end(key)
        while len(memory.seen) > self._count:
            memory.seen.popitem(last=False)

    def samples(self) -> Iterator[Sample]:
        yield Sample("eventbus_deduplication_passed_over_records_total", {}, self.passed_over, "counter")

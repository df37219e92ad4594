"""Records of one partition, sent slice by slice: each slice is settled before the next one begins.

librdkafka puts everything in its queue into a batch, up to ``batch.size``, which is the same for all topics. A broker
refuses a batch as a whole if any of its records is at fault, or if the topic accepts only smaller batches. So

- a slice is never larger than the topic's ``max.message.bytes``;
- a record that the broker may refuse (its timestamp, its missing key) is a separate slice;
- the records of a batch that was refused anyway are sent again, each as a slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.kafka.failures import client_error
from eventbus.backends.kafka.limits import record_bytes, room_bytes
from eventbus.backends.kafka.reports import Given, is_of_batch

if TYPE_CHECKING:
    from eventbus.backends.kafka.lane import Lane
    from eventbus.backends.kafka.threads import Loop

_UNSEALED = 1 << 62
Outcome = tuple[Given, ClientError | None, Any]


class Slice:
    """Records that are in flight together. Their reports come in any thread."""

    def __init__(self, loop: Loop, then: Callable[[Slice], object]) -> None:
        self._loop = loop
        self._then = then
        self._count = _UNSEALED
        self.outcomes: list[Outcome] = []

    def reporter(self, given: Given) -> Callable[[ClientError | None, Any], None]:
        """Return the function that librdkafka calls with the outcome of a record."""

        def report(error: ClientError | None, message: Any) -> None:
            self.outcomes.append((given, error, message))
            self._look()

        return report

    def seal(self, count: int) -> None:
        """End the slice after ``count`` records were passed on."""
        self._count = count
        self._look()

    def _look(self) -> None:
        # The last report may come while the event loop seals the slice. Then both of them call, and `then` ignores the
        # second call.
        if len(self.outcomes) == self._count:
            self._loop.tell(lambda: self._then(self))


class Slices:
    """The waiting records of one partition, and the slice that is in flight."""

    def __init__(self, lane: Lane, loop: Loop) -> None:
        self._lane = lane
        self._loop = loop
        self.queue: deque[Given] = deque()
        self._again: deque[Given] = deque()
        """Records of batches that were refused; they precede the queue."""
        self._in_flight: Slice | None = None

    @property
    def is_busy(self) -> bool:
        return self._in_flight is not None

    @property
    def is_holding(self) -> bool:
        return bool(self.queue or self._again)

    @property
    def is_active(self) -> bool:
        return self.is_busy or self.is_holding

    def repeat(self, refused: list[Given]) -> None:
        """Send the records of a refused batch again, each separately: the report is then about the record itself."""
        self._again.extend(refused)

    def send(self, produce: Callable[..., None]) -> bool:
        """Pass on the next slice, unless one is in flight. Return False if the buffer cannot hold even one record."""
        if self.is_busy or not self.is_holding:
            return True
        current = self._in_flight = Slice(self._loop, self._settle)
        count = self._send_one(current, produce) if self._again else self._send_many(current, produce)
        if not count:
            self._in_flight = None
            return False
        current.seal(count)
        return True

    def _send_one(self, current: Slice, produce: Callable[..., None]) -> int:
        if not _hand_over(current, self._again[0], produce):
            return 0
        self._again.popleft()
        return 1

    def _send_many(self, current: Slice, produce: Callable[..., None]) -> int:
        left_bytes = room_bytes(self._lane.limits.max_batch_bytes)
        count = 0
        while self.queue:
            given = self.queue[0]
            size_bytes = record_bytes(given[2], given[1], given[7])
            is_alone = self._lane.is_alone(given)
            if count and (is_alone or size_bytes > left_bytes):
                break
            if not _hand_over(current, given, produce):
                break
            self.queue.popleft()
            self._lane.left(given)
            count += 1
            left_bytes -= size_bytes
            if is_alone:
                break
        return count

    def _settle(self, settled: Slice) -> None:
        """Settle a slice in the event loop, after all its reports."""
        if self._in_flight is not settled:
            return
        self._in_flight = None
        is_repeated = len(settled.outcomes) > 1 and self._lane.may_repeat
        refused: list[Given] = []
        for given, error, message in settled.outcomes:
            if is_repeated and error is not None and is_of_batch(error):
                refused.append(given)
            else:
                given[4](error, message)
        self._again.extendleft(reversed(refused))
        self._lane.go_on()

    def fail(self, error: ClientError) -> bool:
        """Fail the waiting records; return True if there were any."""
        if not self.is_holding:
            return False
        while self._again:
            self._again.popleft()[4](error, None)
        while self.queue:
            given = self.queue.popleft()
            self._lane.left(given)
            given[4](error, None)
        return True


def _hand_over(current: Slice, given: Given, produce: Callable[..., None]) -> bool:
    report = current.reporter(given)
    try:
        produce(*given[:4], report, *given[5:])
    except BufferError:
        return False
    except KafkaException as failure:
        report(client_error(failure), None)
    return True

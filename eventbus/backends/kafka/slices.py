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

from eventbus.backends.kafka.delivery_reports import ProduceArguments, is_of_batch
from eventbus.backends.kafka.failures import client_error
from eventbus.backends.kafka.limits import record_bytes, room_bytes

if TYPE_CHECKING:
    from eventbus.backends.kafka.partition_queue import PartitionQueue
    from eventbus.backends.kafka.threads import Loop

_UNSEALED = 1 << 62
Outcome = tuple[ProduceArguments, ClientError | None, Any]


class Slice:
    """Records that are in flight together. Their reports come in any thread."""

    def __init__(self, loop: Loop, then: Callable[[Slice], object]) -> None:
        self._loop = loop
        self._then = then
        self._count = _UNSEALED
        self.outcomes: list[Outcome] = []

    def reporter(self, arguments: ProduceArguments) -> Callable[[ClientError | None, Any], None]:
        """Return the function that librdkafka calls with the outcome of a record."""

        def report(error: ClientError | None, message: Any) -> None:
            self.outcomes.append((arguments, error, message))
            self._check_complete()

        return report

    def seal(self, count: int) -> None:
        """End the slice after ``count`` records were passed on."""
        self._count = count
        self._check_complete()

    def _check_complete(self) -> None:
        # The last report may come while the event loop seals the slice. Then both of them call, and `then` ignores the
        # second call.
        if len(self.outcomes) == self._count:
            self._loop.tell(lambda: self._then(self))


class Slices:
    """The waiting records of one partition, and the slice that is in flight."""

    def __init__(self, partition_queue: PartitionQueue, loop: Loop) -> None:
        self._partition_queue = partition_queue
        self._loop = loop
        self.queue: deque[ProduceArguments] = deque()
        self._again: deque[ProduceArguments] = deque()
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

    def repeat(self, refused: list[ProduceArguments]) -> None:
        """Send the records of a refused batch again, each separately: the report is then about the record itself."""
        self._again.extend(refused)

    def send(self, produce: Callable[..., None]) -> bool:
        """Pass on the next slice, unless one is in flight. Return False if the buffer cannot hold even one record."""
        # One slice at a time. If two were in flight and the first was refused, the second would overtake its records.
        if self.is_busy or not self.is_holding:
            return True
        current = self._in_flight = Slice(self._loop, self._settle)
        # Records of a refused batch first and singly, because one of them is at fault.
        count = self._send_one(current, produce) if self._again else self._send_many(current, produce)
        if not count:
            self._in_flight = None
            return False
        current.seal(count)
        return True

    def _send_one(self, current: Slice, produce: Callable[..., None]) -> int:
        if not _produce(current, self._again[0], produce):
            return 0
        self._again.popleft()
        return 1

    def _send_many(self, current: Slice, produce: Callable[..., None]) -> int:
        left_bytes = room_bytes(self._partition_queue.limits.max_batch_bytes)
        count = 0
        while self.queue:
            arguments = self.queue[0]
            size_bytes = record_bytes(arguments[2], arguments[1], arguments[7])
            is_alone = self._partition_queue.is_alone(arguments)
            if count and (is_alone or size_bytes > left_bytes):
                break
            if not _produce(current, arguments, produce):
                break
            self.queue.popleft()
            self._partition_queue.release_bytes(arguments)
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
        # A slice of one record that was refused has the fault itself, so repeating it is useless.
        is_repeated = len(settled.outcomes) > 1 and self._partition_queue.may_repeat
        refused: list[ProduceArguments] = []
        for arguments, error, message in settled.outcomes:
            if is_repeated and error is not None and is_of_batch(error):
                refused.append(arguments)
            else:
                arguments[4](error, message)
        # In front, because they were sent before everything else that waits.
        self._again.extendleft(reversed(refused))
        self._partition_queue.slice_settled()

    def fail(self, error: ClientError) -> bool:
        """Fail the waiting records; return True if there were any."""
        if not self.is_holding:
            return False
        while self._again:
            self._again.popleft()[4](error, None)
        while self.queue:
            arguments = self.queue.popleft()
            self._partition_queue.release_bytes(arguments)
            arguments[4](error, None)
        return True


def _produce(current: Slice, arguments: ProduceArguments, produce: Callable[..., None]) -> bool:
    report = current.reporter(arguments)
    try:
        produce(*arguments[:4], report, *arguments[5:])
    except BufferError:
        return False
    except KafkaException as failure:
        report(client_error(failure), None)
    return True

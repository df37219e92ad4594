"""Delivery reports: librdkafka reports each record separately, in whichever thread polls it.

The reports of a producer may come in two threads at once, so each changes only the end of a list, or a field that is
written nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message
from confluent_kafka import KafkaError as ClientError

from eventbus.backends.delivery import BatchDelivery, Delivery, OnDelivery, check_ran
from eventbus.backends.kafka.failures import error_of
from eventbus.errors import EventBusError, RequestTimedOut
from eventbus.types import Headers, RecordMetadata

logger = logging.getLogger("eventbus.producer")

Report = Callable[[ClientError | None, Any], None]
"""Called with (error, message): without a message if librdkafka never had the record."""
ProduceArguments = tuple[str, bytes | None, bytes | None, int, Report, None, int, "list[Any] | None"]
"""The arguments of librdkafka's ``produce``, in its order; positional, because names cost a third of the call."""

_PENDING = -1
"""Used as an offset before the outcome is known."""
NOT_ALLOWED = frozenset(
    (
        ClientError.CLUSTER_AUTHORIZATION_FAILED,
        ClientError.GROUP_AUTHORIZATION_FAILED,
        ClientError.TOPIC_AUTHORIZATION_FAILED,
        ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
"""Errors that a retry would get again."""
GIVEN_UP = frozenset((ClientError._PURGE_QUEUE, ClientError._PURGE_INFLIGHT, ClientError._FATAL))
"""librdkafka dropped the record because its transaction or its client had failed; the code does not show the reason."""
FENCED = frozenset(
    (
        ClientError._FENCED,
        ClientError.PRODUCER_FENCED,
        ClientError.INVALID_PRODUCER_EPOCH,
        ClientError.INVALID_PRODUCER_ID_MAPPING,
    )
)
"""Another producer has taken over the transactional id, or the brokers aborted a transaction for its age."""


_OF_BATCH = frozenset(
    (
        ClientError.MSG_SIZE_TOO_LARGE,
        ClientError.INVALID_TIMESTAMP,
        ClientError.INVALID_RECORD,
        ClientError._INVALID_DIFFERENT_RECORD,
    )
)
"""Brokers refuse a whole batch with these, and librdkafka reports them for each of its records, even valid ones."""


def is_of_batch(error: ClientError) -> bool:
    """True if the record may be valid, and only a neighbour in its batch at fault."""
    return error.code() in _OF_BATCH


class RecordBatch(BatchDelivery):
    """The records sent in one turn of the event loop to a partition. They are reported separately, in any order.

    ``count`` grows in the event loop until the batch is sealed.
    """

    __slots__ = (
        "cause",
        "finished",
        "first_failure",
        "is_direct",
        "is_sealed",
        "lost_with",
        "may_repeat",
        "refused",
        "reported",
        "some_offset",
        "timestamp_ms",
        "transaction",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, home: object, finished: Callable[[RecordBatch], object]) -> None:
        super().__init__(topic, partition, home)
        self.finished = finished
        """Called with the last report, in its thread."""
        self.is_sealed = False
        self.reported: list[None] = []
        """Its length is the number of reports: appending to a list is the only way to count in two threads."""
        self.some_offset = -1
        """The offset at which one of its records was stored; -1: none."""
        self.first_failure: ClientError | None = None
        self.lost_with: ClientError | None = None
        """The error of the client that had the rest of the batch."""
        self.transaction = 0
        """The number of its transaction. Late reports of an abandoned client, whose records were purged or which its
        own successor has fenced, are recognized by it and ignored."""
        self.cause: EventBusError | None = None
        """The failure of its transaction, because of which librdkafka dropped its records."""
        self.is_direct = True
        """True if librdkafka has its records in a sequence with others; False: they are sent slice by slice."""
        self.may_repeat: Callable[[RecordBatch], object] | None = None
        """Called, in any thread, when some of its records may be valid and must be sent again. None: not possible."""
        self.refused: list[ProduceArguments] = []
        """The records to send again, in order."""
        self.timestamp_ms = 0
        """The timestamp of all records without a handle."""

    def report(self, error: ClientError | None, message: Message) -> None:
        """Record the outcome of a record without a handle."""
        if error is not None:
            if not self.is_refused(error, message, self.report, self.timestamp_ms, ()):
                self.first_failure = self.first_failure or error
        elif self.some_offset < 0:
            offset = message.offset()
            self.some_offset = -1 if offset is None else offset
        reported = self.reported
        reported.append(None)
        if self.is_sealed and len(reported) == self.count:
            self.finished(self)

    def is_refused(
        self, error: ClientError, message: Message | None, report: Report, timestamp_ms: int, headers: Headers
    ) -> bool:
        """True if the record is sent again, because the error may be that of another record in its batch.

        A failed message has neither its timestamp nor its headers any more.
        """
        if message is None or not self.is_direct or self.may_repeat is None or not is_of_batch(error):
            return False
        self.refused.append(
            (
                self.topic,
                message.value(),
                message.key(),
                self.partition,
                report,
                None,
                timestamp_ms,
                list(headers) or None,
            )
        )
        # The first refused record of the batch: from now on later records wait, so that none overtakes it.
        if len(self.refused) == 1:
            self.may_repeat(self)
        return True

    def take_refused(self) -> list[ProduceArguments]:
        """Return the records to send again, whose outcome is open. Called in the event loop after the last report."""
        refused, self.refused = self.refused, []
        self.is_direct = False
        # They will be reported again, after they are sent again.
        del self.reported[len(self.reported) - len(refused) :]
        return refused

    def seal(self) -> None:
        """Mark the batch as complete."""
        self.is_sealed = True
        # All reports came before the batch was complete, so none of them has called this.
        if not self.open_count:
            self.finished(self)

    @property
    def open_count(self) -> int:
        """The number of records without an outcome."""
        return self.count - len(self.reported)

    def finish(self) -> None:
        """Set the outcome and wake waiting tasks; in the event loop."""
        if self.done:
            return
        if self.first_failure is not None:
            self.error = self.error_of(self.first_failure)
            # Otherwise the error is reported once, for all records of the client or of the transaction.
            if self.lost_with is None and self.cause is None:
                logger.error("records for %s-%d were not stored: %s", self.topic, self.partition, self.error)
        self._finish()

    def error_of(self, failure: ClientError) -> EventBusError:
        """Return the error of a failed record."""
        what = f"a record for {self.topic}-{self.partition} was not stored"
        if self.cause is not None and failure.code() in GIVEN_UP | FENCED:
            error = type(self.cause)(f"{what}: {self.cause}")
            error.__cause__ = self.cause
            return error
        if self.lost_with is None or self.lost_with.code() in NOT_ALLOWED:
            return error_of(self.lost_with or failure, what)
        why = self.lost_with.str() if failure.code() in GIVEN_UP else failure.str()
        return RequestTimedOut(
            f"a record for {self.topic}-{self.partition} was not acknowledged before its producer failed ({why}): it "
            "may be stored, or not. Another producer has taken over: send it again, if repeating it does no harm"
        )


class RecordDelivery(Delivery):
    """The handle of a record. Some records of a batch may fail, and their offsets need not be consecutive."""

    offset: int | None = _PENDING
    """None if the offset is unknown, with acks=0."""
    failure: ClientError | None = None
    headers: Headers = ()

    def report(self, error: ClientError | None, message: Message) -> None:
        """Record the outcome. The hot path of `send_nowait`, once the record is stored."""
        batch: Any = self.batch
        if error is None:
            self.offset = offset = message.offset()
            kind, time_ms = message.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:
                self.timestamp_ms = time_ms
            if batch.some_offset < 0 and offset is not None:
                batch.some_offset = offset
        elif not batch.is_refused(error, message, self.report, self.timestamp_ms, self.headers):
            self.failure = error
            batch.first_failure = batch.first_failure or error
        reported = batch.reported
        reported.append(None)
        if batch.is_sealed and len(reported) == batch.count:
            batch.finished(batch)

    def exception(self) -> EventBusError | None:
        batch = cast("RecordBatch", self.batch)
        if not batch.done:
            return None
        if self.failure is not None:
            return batch.error_of(self.failure)
        return batch.error if self.offset == _PENDING else None  # dropped, or still open

    def result(self) -> RecordMetadata:
        batch = self.batch
        if not batch.done:
            raise RuntimeError("the record is still in flight: await the delivery, or flush the producer first")
        offset = self.offset
        if offset is None:
            offset = -1
        elif offset < 0:
            error = self.exception()
            assert error is not None, "a record that was not stored has an error"
            raise error
        return RecordMetadata(batch.topic, batch.partition, offset, self.timestamp_ms)

    def add_callback(self, on_delivery: OnDelivery) -> None:
        context = copy_context()

        def call() -> None:
            error = self.exception()
            check_ran(context.run(on_delivery, None if error is not None else self.result(), error), on_delivery)

        self.batch.when_done(call)

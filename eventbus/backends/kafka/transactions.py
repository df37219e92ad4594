"""The transactions of the Kafka producer: the states of a transactional id, and the meaning of errors in each.

librdkafka ends a transaction without a separate epoch (EndTxn before version 5), so an unanswered end may still arrive
later, and apply to the next transaction. After such an end the client is closed and its id taken over again, which
fences requests in flight; then the log itself shows the outcome of the transaction.

When librdkafka's transaction fails, librdkafka drops its records, and their reports (``_PURGE_QUEUE``) may arrive
before any call returns the reason. `KafkaTransactions.explain` requests the reason before such a report is passed on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.kafka.delivery_reports import FENCED, GIVEN_UP
from eventbus.backends.kafka.failures import client_error, raised
from eventbus.backends.kafka.group_metadata import pack_group_metadata
from eventbus.backends.kafka.offset_text import to_commit
from eventbus.backends.kafka.threads import Worker
from eventbus.backends.transactional import State, Transactions
from eventbus.errors import (
    EventBusError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.kafka.producer import KafkaProducer, RecordBatch

logger = logging.getLogger("eventbus.producer")
T = TypeVar("T")

_ATTEMPT_SECONDS = 5.0
"""How long a call into librdkafka may wait; it is repeated until ``max_block_ms`` have passed."""
_OVERDUE_SECONDS = 10.0
"""How much longer a call may take. librdkafka 2.16 can stay in ``send_offsets_to_transaction`` forever if the
group's coordinator moves meanwhile, whatever timeout it was given."""
_PAUSE_SECONDS = 0.05
_SHORTEST_WAIT = 0.75
"""The shortest wait of librdkafka before a retry, as a fraction of the configured one (it varies by 20 %)."""


_ENDED = (State.READY, State.FRESH)


class KafkaTransactions(Transactions):
    """The consecutive transactions of one producer."""

    def __init__(self, producer: KafkaProducer, transactional_id: str) -> None:
        super().__init__(transactional_id)
        self._producer = producer
        client_settings = producer.backend.settings.producer(producer.config)
        self._shortest_wait_seconds = _SHORTEST_WAIT * float(client_settings["retry.backoff.ms"]) / 1000
        self._attempt_seconds = min(_ATTEMPT_SECONDS, producer.config.max_block_ms / 1000)
        self._number = 1
        """The number of the open or next transaction: reports that belong to an earlier one are ignored."""
        self._has_gap = False
        """True after a refused record: librdkafka skips its sequence number, and the next transaction fails because
        of that."""
        self._worker: Worker | None = None
        self._stuck_client: object = None
        """The client in which a call did not return: it cannot be used any more."""
        self._ending = anyio.Lock()
        self._seeing_through: anyio.CancelScope | None = None
        """The scope of an end that is running: only `give_up` cancels it."""
        self._witness: RecordBatch | None = None
        """The first batch of the open transaction: its visibility to readers shows the outcome of the transaction."""
        self._offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        """Offsets of the open transaction, by group."""
        self._begun_at = 0.0
        """When the open transaction began. Reports come outside of any task, where the timers cannot be read."""
        self._topics: set[str] = set()
        """Topics that the open transaction writes to."""
        self._is_calling = False
        """True during a call into librdkafka, which refuses all other calls until it has returned."""
        self._unexplained: list[RecordBatch] = []
        """Batches that librdkafka dropped during such a call."""
        producer.refuse(self._check_accepts)

    # beginning -------------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Take over the transactional id, and finish what was interrupted. Does nothing if neither is necessary."""
        if self._state is State.COMMITTING:
            await self.commit()
        elif self._state is State.ABORTING:
            await self.abort()
        self._check_not_lost()
        if self._state is not State.FRESH:
            return
        async with self._initialising:
            if self._state is State.FRESH:
                await self._init_client()
                self._become_ready()

    async def _init_client(self) -> None:
        what = f"the transactional id {self._id!r} was not taken over"
        client = self._producer.client  # now: a job that runs after a stuck one must not use the successor
        try:
            await self._until_answered(lambda: client.handle.init_transactions(self._attempt_seconds))
        except KafkaException as failure:
            error = raised(failure, what)
            self._lose(error)
            raise error from None
        except RequestTimedOut:
            # The next attempt uses a new client: this client may be admitted later, and would refuse to try again.
            self._producer.reopen()
            raise

    def begin(self) -> None:
        self._require(State.READY, "begin a transaction")
        try:
            self._producer.client.handle.begin_transaction()
        except KafkaException as failure:
            error = self._fatal(client_error(failure), raised(failure, f"no transaction of {self._id!r} was begun"))
            raise error from None
        self._state = State.OPEN
        self._begun_at = time.monotonic()
        self._producer.refuse(None)

    # what belongs to it ----------------------------------------------------------------------------------------------

    def _check_accepts(self) -> None:
        """Raise unless a record may be sent now."""
        self._require(State.OPEN, "send")

    def note(self, batch: RecordBatch) -> None:
        """Add a batch to the open transaction."""
        batch.transaction = self._number
        self._topics.add(batch.topic)
        if self._witness is None:
            self._witness = batch

    def refused(self, failure: ClientError, error: EventBusError) -> EventBusError:
        """Handle a record of the transaction that librdkafka refused."""
        if failure.fatal():
            return self._fatal(failure, error)
        if failure.code() == ClientError._STATE:
            self._find_cause()  # the transaction can only be aborted, and no report contained the reason yet
            if self._state is not State.OPEN:
                return self._refusal("send")
        self.spoil(error)
        return error

    def failed(self, batch: RecordBatch, failure: ClientError, error: EventBusError) -> None:
        """Handle a record of a transaction that was not stored."""
        # The report of a record of an earlier transaction, which was aborted.
        if batch.transaction != self._number or self._state is State.LOST:
            return
        if failure.fatal() or failure.code() == ClientError._FENCED:
            self._fatal(failure, error)
        else:
            # The record took a sequence number that no broker will ever see. The next transaction of this client would
            # fail with it, so the transactional id is initialized again.
            self._has_gap = True
            self.spoil(error)

    def explain(self, batch: RecordBatch) -> bool:
        """Set the cause of a batch that librdkafka dropped. Return False if it is set later, when the batch is
        settled again."""
        failure = batch.first_failure
        if failure is None or failure.code() not in GIVEN_UP | FENCED:
            return True
        if batch.transaction != self._number:
            batch.cause = self._aborted()
            return True
        # The record is lost with the producer. The error reports that instead of a refused record.
        if failure.code() in FENCED:
            self._fatal(failure, self._reason(failure))
        elif self._error is None:
            self._find_cause()
        # The call that runs in the thread knows the cause, and its result has not arrived yet.
        if self._error is None and self._is_calling:
            self._unexplained.append(batch)
            return False
        batch.cause = self._error
        return True

    def _find_cause(self) -> None:
        """Spoil the transaction with the reason for which librdkafka can only abort it, if there is one.

        Since a transaction is open, librdkafka does not begin another: it only returns its state, without waiting.
        """
        try:
            self._producer.client.handle.begin_transaction()
        except KafkaException as failure:
            error = client_error(failure)
            if error.fatal():
                self._fatal(error, self._reason(error))
            elif error.txn_requires_abort():
                self.spoil(self._reason(error))

    def _reason(self, error: ClientError) -> EventBusError:
        """Return why the open transaction has failed. librdkafka's message does not name the resource."""
        code, what = error.code(), f"the transaction of {self._id!r} has failed"
        if code == ClientError.TOPIC_AUTHORIZATION_FAILED:
            read = {where.topic for offsets in self._offsets.values() for where in offsets}
            what += f"; it writes to {_listed(self._topics)}"
            what += f" and commits offsets of {_listed(read)}" if read else ""
        elif code == ClientError.GROUP_AUTHORIZATION_FAILED:
            what += f"; it commits offsets of group {_listed(self._offsets)}"
        return raised(KafkaException(error), what)

    def _aborted(self) -> TransactionAborted:
        return TransactionAborted(f"the transaction of {self._id!r} was aborted")

    def spoil(self, error: EventBusError) -> None:
        """Record that something of the open transaction was not stored: it can only be aborted."""
        if self._state in (State.OPEN, State.COMMITTING):
            self._error = self._error or error
            if self._state is State.OPEN:
                self._state = State.SPOILED
                self._producer.refuse(self._check_accepts)

    async def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        self._require(State.OPEN, "send offsets")
        if not offsets:
            return
        wanted = to_commit(offsets)
        # With the generation and member id (KIP-447), so that a zombie that lost its partitions cannot commit their
        # offsets.
        packed = pack_group_metadata(group)
        client = self._producer.client
        self._offsets.setdefault(group.group, {}).update(offsets)
        try:
            await self._until_answered(
                lambda: client.handle.send_offsets_to_transaction(wanted, packed, self._attempt_seconds)
            )
        except KafkaException as failure:
            self._find_cause()  # of the transaction: librdkafka may have refused this call because of an earlier record
            what = f"offsets of group {group.group!r} were not added to the transaction of {self._id!r}"
            error = self._error or self.refused(client_error(failure), raised(failure, what))
            raise error from error.__cause__
        except EventBusError as error:
            self.spoil(error)
            raise

    # ending ----------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit. Raises TransactionAborted, ProducerFenced, TransactionOutcomeUnknown."""
        if self._state not in (State.SPOILED, State.COMMITTING):
            self._require(State.OPEN, "commit")
        async with self._ending:
            if self._state in _ENDED:
                return  # another call has completed it
            if self._state is not State.SPOILED:
                self._state = State.COMMITTING
                self._producer.refuse(self._check_accepts)
                with self._seen_through():
                    if await self._commit():
                        return
        error = self._error
        assert error is not None, "a transaction is spoiled by something"
        self._check_not_lost(error)
        await self.abort()
        raise TransactionAborted(f"the transaction of {self._id!r} was aborted: {error}") from error

    async def _commit(self) -> bool:
        """Try to commit: afterwards it is committed (READY), or has failed (SPOILED). Raises if it is LOST."""
        await self._until_sent()
        # They were never given to librdkafka, so the transaction would be committed without them.
        if self._producer.drop_held():
            self._error = self._error or RequestTimedOut(
                f"records were not sent within max_block_ms={self._producer.config.max_block_ms:,}: the brokers are "
                "away, or have not heard of a partition that was added"
            )
            self._state = State.SPOILED
            return False
        client = self._producer.client
        try:
            took_seconds = await self._until_answered(lambda: client.handle.commit_transaction(self._attempt_seconds))
        except KafkaException as failure:
            error = client_error(failure)
            reason = self._reason(error)
            if error.fatal():
                raise self._fatal(error, reason) from None
            self._error = self._error or reason
            self._state = State.SPOILED
            return False
        except RequestTimedOut as error:
            # Neither an error nor a success may be reported now: a retry could store everything twice, and going on
            # could lose it.
            await self._find_out(error)
        else:
            await self._ended(took_seconds)
        return True

    async def _until_sent(self) -> None:
        """Wait for the records, as librdkafka would do first: only then the duration of the end itself can be
        measured."""
        with self._producer.backend.timers.move_on_after(self._producer.config.max_block_ms / 1000):
            await self._producer.flush()

    async def _ended(self, took_seconds: float) -> None:
        """Handle an answer of the coordinator. A repeated end that may be in flight must not apply to the next
        transaction."""
        # librdkafka may have sent the end twice. Until the coordinator has completed it, the repeated end could end the
        # next transaction.
        await self._producer.backend.until_marked(self._id)
        needs_new_client = self._has_gap or took_seconds >= self._shortest_wait_seconds
        self._become_ready()
        if needs_new_client:
            logger.debug("after a transaction that took %.3f s to end, %r is taken over again", took_seconds, self._id)
            self._producer.reopen()
            self._state = State.FRESH

    async def _find_out(self, error: RequestTimedOut) -> None:
        """Determine the outcome of an unanswered commit: take the id over, so that nothing changes any more, and
        check."""
        witness = self._witness
        try:
            # Taking the id over completes or aborts the transaction. After that, what readers see is final.
            self._producer.reopen()
            await self._init_client()
            committed = await self._is_committed(witness)
        except EventBusError as problem:
            unknown = TransactionOutcomeUnknown(
                f"the commit of a transaction of {self._id!r} was asked for and not answered ({error}), and what "
                f"became of it could not be found out: {problem}. Read what it wrote before running it again"
            )
            self._lose(unknown)
            raise unknown from problem
        self._become_ready()
        if not committed:
            raise TransactionAborted(
                f"the commit of a transaction of {self._id!r} was not answered, and the transaction was aborted: "
                "run it again from its beginning"
            ) from error

    async def _is_committed(self, witness: RecordBatch | None) -> bool:
        """Return True if readers see the records of the transaction. Nothing may change any more."""
        if witness is not None:
            offset = witness.some_offset
            return offset >= 0 and await self._producer.backend.is_visible(
                TopicPartition(witness.topic, witness.partition), offset
            )
        for group, offsets in self._offsets.items():
            found = await self._producer.backend.group_offsets(group, offsets)
            return all(found.get(partition) == at for partition, at in offsets.items())
        return False  # the transaction was empty

    async def abort(self) -> None:
        """Abort. Raises ProducerFenced, and RequestTimedOut: call again."""
        if self._state not in (State.SPOILED, State.ABORTING):
            self._require(State.OPEN, "abort")
        async with self._ending:
            if self._state in _ENDED:
                return
            self._check_not_lost()
            self._error = self._error or self._aborted()
            self._state = State.ABORTING
            self._producer.refuse(self._check_accepts)
            with self._seen_through():
                await self._abort()
            self._check_not_lost()

    async def _abort(self) -> None:
        client = self._producer.client
        # librdkafka refuses every other call while one is inside, so an abort is impossible with this client.
        if self._stuck_client is client:
            await self._reopen()
            return
        self._producer.drop_held()
        try:
            took_seconds = await self._until_answered(lambda: client.handle.abort_transaction(self._attempt_seconds))
        except KafkaException as failure:
            error = client_error(failure)
            if error.code() == ClientError.INVALID_TXN_STATE:
                # The coordinator refused everything in the transaction, so none is open there. librdkafka takes its
                # answer for a fatal error.
                await self._reopen()
                return
            raise self._fatal(error, raised(failure, f"the transaction of {self._id!r} was not aborted")) from None
        except RequestTimedOut:
            await self._reopen()
        else:
            await self._ended(took_seconds)

    async def _reopen(self) -> None:
        """Continue with a new client. Taking the id over aborts an open transaction."""
        self._producer.reopen()
        await self._init_client()
        self._become_ready()

    async def aclose(self) -> None:
        """Abort an open transaction, or finish its end. Errors are logged: the next producer of the id aborts it."""
        try:
            if self._state is State.COMMITTING:
                await self.commit()
            elif self._state in (State.OPEN, State.SPOILED, State.ABORTING):
                await self.abort()
        except EventBusError as error:
            logger.warning("the transaction of %r could not be ended when its producer closed: %s", self._id, error)
        finally:
            self.stop()

    @contextmanager
    def _seen_through(self) -> Generator[None]:
        """Complete the block even if the task is cancelled, within a few ``max_block_ms``; unless it is given up."""
        try:
            with anyio.CancelScope(shield=True) as self._seeing_through:
                yield
        finally:
            self._seeing_through = None

    def give_up(self) -> None:
        """Cancel a running end, because the bus closes and has no time left: its caller gets an error, the outcome
        is unknown."""
        if self._seeing_through is not None:
            what = f"the brokers have not answered in time when the producer of {self._id!r} closed"
            if self._state is State.COMMITTING:
                what += ": whether its transaction is committed is not known; read what it wrote before running again"
                self._lose(TransactionOutcomeUnknown(what))
            else:
                self._lose(RequestTimedOut(f"{what}: its transaction is aborted by the next producer of the id"))
            self._seeing_through.cancel()

    def stop(self) -> None:
        """End the thread after its current call."""
        if self._worker is not None:
            self._worker.stop()

    async def _until_answered(self, call: Callable[[], object]) -> float:
        """Call into librdkafka, again after a temporary error; return the duration, infinity if it was called again.

        ``call`` names its client: a call that runs late, after one that was stuck, must not use another client. Raises
        its error, or RequestTimedOut; the latter also if librdkafka completed an earlier, slow call after all, and
        refuses the repeated call for that reason.
        """
        self._is_calling = True
        try:
            return await self._call_again(call)
        finally:
            self._is_calling = False
            unexplained, self._unexplained = self._unexplained, []
            self._producer.settle_again(unexplained)

    async def _call_again(self, call: Callable[[], object]) -> float:
        timers = self._producer.backend.timers
        deadline = timers.current_time() + self._producer.config.max_block_ms / 1000
        once = True
        while True:
            try:
                took_seconds = await self._in_thread(lambda: _timed(call))
                return took_seconds if once else math.inf
            except KafkaException as failure:
                error = client_error(failure)
                if error.code() == ClientError._STATE and not once:
                    raise RequestTimedOut(f"it was too slow to say what became of it: {error.str()}") from failure
                if not error.retriable() or error.fatal() or error.txn_requires_abort():
                    raise
                if timers.current_time() > deadline:
                    raise RequestTimedOut(
                        f"the brokers have not answered for max_block_ms={self._producer.config.max_block_ms:,}: "
                        f"{error.str()}"
                    ) from failure
            once = False
            await timers.sleep(_PAUSE_SECONDS)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Raise RequestTimedOut for a call that stays in librdkafka: it is abandoned there, with its thread."""
        if self._worker is None:
            self._worker = Worker("eventbus-kafka-transactions", self._producer.loop)
        # In a thread, because librdkafka's transaction calls block, and have no asynchronous form in confluent-kafka.
        job = self._worker.do(call)
        with self._producer.backend.timers.move_on_after(self._attempt_seconds + _OVERDUE_SECONDS):
            return await job.wait()
        self._worker.stop()
        self._worker = None
        self._stuck_client = self._producer.client
        logger.warning("librdkafka does not come back to the transaction of %r: its client is given up", self._id)
        raise RequestTimedOut(f"librdkafka does not come back to the transaction of {self._id!r}")

    def _become_ready(self) -> None:
        self._error = None
        self._witness = None
        self._has_gap = False
        self._number += 1
        self._offsets.clear()
        self._topics.clear()
        self._state = State.READY
        self._producer.refuse(self._check_accepts)

    # errors ----------------------------------------------------------------------------------------------------------

    def _fatal(self, failure: ClientError, reason: EventBusError) -> EventBusError:
        """Handle a librdkafka producer that is useless, or that refuses in a way that only a new producer fixes."""
        error = reason
        if failure.code() in FENCED:
            error = ProducerFenced(self._why_fenced(failure))
        self._lose(error)
        return error

    def _why_fenced(self, failure: ClientError) -> str:
        """Return why the producer was fenced. The brokers return the same code when they abort a transaction for its
        age."""
        open_seconds = time.monotonic() - self._begun_at
        timeout_ms = self._producer.config.transaction_timeout_ms
        is_open = self._state in (State.OPEN, State.SPOILED, State.COMMITTING, State.ABORTING)
        if is_open and open_seconds * 1000 >= timeout_ms:
            return (
                f"the transaction of {self._id!r} was aborted, and this producer may write no more. It was open for "
                f"{open_seconds:.1f} s, longer than transaction_timeout_ms={timeout_ms:,}, so the brokers aborted it, "
                "unless another producer has taken over its transactional id. Make the transaction shorter or raise "
                f"transaction_timeout_ms, and open a new producer ({failure.str()})"
            )
        return f"{self._taken_over()} ({failure.str()})"

    def _lose(self, error: EventBusError) -> None:
        self._error = error
        self._state = State.LOST
        self._producer.refuse(self._check_accepts)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _timed(call: Callable[[], object]) -> float:
    """Call, and return the duration in seconds, measured in the thread, because the event loop may be late."""
    begin = time.monotonic()
    call()
    return time.monotonic() - begin

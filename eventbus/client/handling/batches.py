"""The calls of a handler that takes lists of records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from eventbus.backends.delivery import Delivery
from eventbus.client.handling.call_loop import CallLoop, fresh_context
from eventbus.client.handling.dispatch import Dispatch, RunCalls
from eventbus.client.handling.failed_calls import Resolution, recall_of
from eventbus.client.handling.handler_errors import as_failure, check_exit_at
from eventbus.client.handling.invocation import manual_records
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Call
from eventbus.errors import SerializationError
from eventbus.types import ConsumerRecord, FetchedRecords
from eventbus.units_of_work import NotHandled


class BatchDispatch(Dispatch):
    """One call for all records of a `Call`, or for slices of ``batch`` records."""

    def _choose(self) -> RunCalls:
        return self._batches

    async def _batches(self, driver: PartitionDriver, call: Call, loop: CallLoop) -> None:
        """A handler of lists: one call for all records, or for slices of ``batch`` records."""
        while call.at < call.end:
            if not loop.look():
                await loop.turn()
            if call.at >= call.end or not await self._batch(driver, call, loop):
                return

    async def _batch(self, driver: PartitionDriver, call: Call, loop: CallLoop) -> bool:
        """One batch. False: the call ends here."""
        call.is_resting = False
        chunk, indexes = call.records, self.records_at(call)
        count, after, key = len(indexes), call.at + len(indexes), (driver, call.offset(call.at))
        given, outputs = set[int](), list[Delivery]()
        failed = partial(self._unreadable, driver, call, outputs)
        if self.calls.units is not None and self.failed_calls.has_policy and count > 1:
            # Its transaction would count those as done whose way to the dead letters is not stored yet.
            failed = None
        reading = _Reading(failed)
        passed = Resolution.HANDLED
        try:
            result = await self._call_batch(driver, chunk, indexes, given, reading)
            if not (reading.stopped or key in self.failed_calls.abandoned_calls):
                await self._send(result, outputs)
        except BaseException as error:
            check_exit_at(self._handler, chunk.record(indexes[0]), error, count)
            if reading.stopped:
                return False
            if key in self.failed_calls.abandoned_calls:
                pass  # what becomes of it was said when its time was over
            elif count > 1 and self._wants_singly(error, reading):
                if self.failed_calls.may_call_again(outputs):
                    return await self._singly(driver, call, loop, indexes, reading)
                return self.failed_calls.retry_singly(driver, call, count, await as_failure(error))
            else:
                again = partial(self._batch_again, driver, call, indexes, given, outputs, reading.left_out)
                recall = recall_of(call, again)
                passed = await self.failed_calls.failed(driver, call, call.at, error, recall, outputs, count)
                if not passed:
                    return False
        else:
            self.counts.handled += 0 if reading.stopped else count - len(reading.left_out)
        continues = self.failed_calls.abandoned_call_ended(driver, call, call.at)
        if reading.stopped or continues is False:
            return False
        self._passed(driver, call, after, outputs, set() if continues or passed is Resolution.DROPPED else given)
        return True

    def _wants_singly(self, error: BaseException, reading: _Reading) -> bool:
        """Return True to call a failed batch again record by record, which finds the record at fault.

        Without a policy, do so only if the handler was not called: a value that cannot be restored must not cost the
        other records, and an outage of the store may hide such a value.
        """
        if self.failed_calls.has_policy:
            return not isinstance(error, NotHandled)
        return isinstance(error, Exception) and not (reading.was_read or reading.left_out)

    async def _unreadable(
        self, driver: PartitionDriver, call: Call, outputs: list[Delivery], index: int, error: BaseException
    ) -> Resolution:
        at = call.indexes.index(index)
        return await self.failed_calls.failed(driver, call, at, error, None, outputs, is_last=False)

    async def _call_batch(
        self, driver: PartitionDriver, chunk: FetchedRecords, indexes: Sequence[int], given: set[int], reading: _Reading
    ) -> Any:
        return await self.times.ended(self._call_with(driver, chunk, indexes, given, reading), self.times.now())

    async def _call_with(
        self, driver: PartitionDriver, chunk: FetchedRecords, indexes: Sequence[int], given: set[int], reading: _Reading
    ) -> Any:
        calls = self.calls
        await fresh_context()
        if calls.joins is not None:
            calls.joins.begins()
        if calls.needs_record:
            make = manual_records(chunk, driver, given) if self._is_manual else chunk.record
            read = partial(reading.payloads, calls.payload, partial(_index_of, chunk))
            return await calls.with_batch(read, reading.was_read)([make(index) for index in indexes])
        payloads = await reading.payloads(partial(calls.payload_at, chunk), int, indexes)
        return await calls.call_batch(payloads) if payloads else None

    async def _singly(
        self, driver: PartitionDriver, call: Call, loop: CallLoop, indexes: Sequence[int], reading: _Reading
    ) -> bool:
        """Call the handler with each record of a failed batch separately, to find the record at fault."""
        call.is_alone = True
        for index in indexes:
            if not loop.look():
                await loop.turn()
            if driver.closing or call.at >= call.end:
                return False
            given, outputs = set[int](), list[Delivery]()
            passed = Resolution.DROPPED
            if index not in reading.left_out and not (self._is_manual and call.is_done(index)):
                recall = recall_of(call, partial(self._batch_again, driver, call, (index,), given, outputs))
                recall.begin()
                try:
                    await recall.call()
                    self.counts.handled += 1
                    passed = Resolution.HANDLED
                except BaseException as error:
                    passed = await self.failed_calls.failed(driver, call, call.at, error, recall, outputs)
                    if not passed:
                        return False
            self._passed(driver, call, call.at + 1, outputs, set() if passed is Resolution.DROPPED else given)
        call.is_alone = False
        return True

    async def _batch_again(
        self,
        driver: PartitionDriver,
        call: Call,
        indexes: Sequence[int],
        given: set[int],
        outputs: list[Delivery],
        left_out: Collection[int] = (),
    ) -> None:
        """One more call, without records that cannot be read and those that the handler has acknowledged."""
        left = [one for one in indexes if one not in left_out and not (self._is_manual and call.is_done(one))]
        if left:
            await self._send(await self._call_batch(driver, call.records, left, given, _Reading(None)), outputs)

    def records_at(self, call: Call) -> Sequence[int]:
        """Return the indexes of the records whose call begins at ``call.at``."""
        at, batch = call.at, self._handler.spec.batch
        if batch is True and not call.is_alone:
            return call.indexes[at:]
        return call.indexes[at : at + (1 if call.is_alone else max(int(batch), 1))]


class _Reading:
    """Makes the payloads of a batch. A record that cannot be read is left out, or stops the partition, or raises."""

    def __init__(self, failed: Callable[[int, BaseException], Awaitable[Resolution]] | None) -> None:
        self._failed = failed
        self.left_out: set[int] = set()
        self.was_read: list[Any] = []
        """The items that it made payloads of."""
        self.stopped = False

    async def payloads(
        self, payload: Callable[[Any], Any], index: Callable[[Any], int], items: Iterable[Any]
    ) -> list[Any]:
        """None at all when the partition has stopped."""
        payloads: list[Any] = []
        self.was_read.clear()  # a middleware may call again
        for item in items:
            try:
                payloads.append(payload(item))
                self.was_read.append(item)
            except SerializationError as error:
                if self._failed is None:
                    raise
                if not await self._failed(index(item), error):
                    self.stopped = True
                    return []
                self.left_out.add(index(item))
        return payloads


def _index_of(chunk: FetchedRecords, record: ConsumerRecord) -> int:
    return bisect_left(chunk.offsets, record.offset)

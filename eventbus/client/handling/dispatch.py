"""Step 5 of DESIGN.md: call a handler with the records of a fetch.

The code is written for the cost per record: the handler is awaited directly, values are decoded in the same loop, and
no object is created per record unless the handler takes it.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any

from eventbus.backends.clock import RealTimers, Timers
from eventbus.backends.delivery import Delivery
from eventbus.client.handling.call_loop import CallLoop, Slices, fresh_context
from eventbus.client.handling.call_times import CallTimes
from eventbus.client.handling.failed_calls import FailedCalls, Resolution, recall_of
from eventbus.client.handling.handler_errors import OnFailure, as_failure, check_exit_at
from eventbus.client.handling.handlers import Handler, for_each, no_producer
from eventbus.client.handling.invocation import FILTERED, GENERATORS, UNFINISHED, HandlerCounts, Invoker, Yielded
from eventbus.client.handling.middleware import Middleware
from eventbus.client.handling.partition_driver import PartitionDriver, combined_outcome
from eventbus.client.handling.work_actions import Call
from eventbus.client.producing.joining import CallTransaction
from eventbus.outages import is_outage
from eventbus.units_of_work import OpenUnits
from serdes import Serde

logger = logging.getLogger("eventbus.runner")

Publish = Callable[[Any], Awaitable[Delivery | None]]
"""Sends one output of a handler; None for an output that is None."""

_THREAD_SLICE_SECONDS = 0.05
"""How long a sync handler's thread works through records before it reports what is finished."""


RunCalls = Callable[[PartitionDriver, Call, CallLoop], Coroutine[Any, Any, None]]
"""The signature of `Dispatch.work`."""


class Dispatch:
    """Calls a handler for the records of a call, in order. For one that takes lists see `batches`."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        publish: Publish | None,
        serdes: Mapping[type, Serde],
        middleware: Sequence[Middleware] = (),
        timers: Timers | None = None,
    ) -> None:
        self.counts = HandlerCounts()
        self.times = CallTimes(timers or RealTimers(), by_batch=bool(handler.spec.batch))
        self.slices = Slices(self.times.now)
        self._handler = handler
        self._publish = publish
        self.calls = Invoker(handler, serdes, middleware, self.counts)
        """How the handler is called, and what its payloads are made with."""
        self.failed_calls = FailedCalls(handler, self.counts)
        """Decides about calls that fail."""
        self._is_manual = handler.spec.ack == "manual"
        self.work = self._choose()
        """Handles the records of a call in sequence, up to where it has to end, inside of a loop.

        ``call.at`` moves with each of them. What is not simply handled is reported to `PartitionWork` first.
        """

    def bound(self, publish: Publish | None, on_failure: OnFailure, joins: CallTransaction | None = None) -> Dispatch:
        """Return a copy for a partition with its own publishing and failure handling; threads and counts are shared.

        ``joins``: the transaction that records sent during calls join.
        """
        bound = copy.copy(self)
        bound._publish, bound.failed_calls = publish, self.failed_calls.bound(on_failure, joins)
        bound.calls = self.calls.copy()
        bound.calls.joins = joins
        bound.work = bound._choose()
        return bound

    def in_units(self, units: OpenUnits) -> None:
        """Each call is a database transaction, which ``units`` makes."""
        self.calls.in_units(units)
        self.work = self._choose()

    def of_retries(self) -> Dispatch:
        """Return the same for records that come from the retry topic; they share threads and counts."""
        if self.calls.units is None:
            return self
        other = copy.copy(self)
        other.calls = self.calls.copy()
        other.calls.is_retry = True
        other.work = other._choose()
        return other

    def _choose(self) -> RunCalls:
        signature, calls = self._handler.signature, self.calls
        if not calls.on_loop:
            return self._in_slices
        is_plain = self._publish is None and not calls.needs_record and calls.joins is None
        if signature.takes_payload_alone and signature.is_direct and is_plain:
            return self._payloads
        return self._each

    # the ways to make calls -----------------------------------------------------------------------------------------

    def run(self, driver: PartitionDriver, call: Call) -> Awaitable[None]:
        """Handle the records of a call that are in order, up to where it has to end. See `work`."""
        return driver.call_loop.run(self.slices, self.work(driver, call, driver.call_loop))

    async def _payloads(self, driver: PartitionDriver, call: Call, loop: CallLoop) -> None:
        """An async handler that wants the payload alone and publishes nothing: the fast path."""
        function, calls, counts = self.times.timed(self._handler.function), self.calls, self.counts
        chunk = call.records
        values: Sequence[Any] = calls.values(chunk)
        if len(call.indexes) < len(values):
            values = call.column(values)
        decode: Callable[[Any], Any] | None = calls.decoder(chunk.topic)
        if decode is bytes and (calls.takes_null or None not in values):
            decode = None
        elif None in values:
            decode = calls.reader(chunk.topic)
        clean, context = loop.clean, copy_context
        left = enumerate(values[call.at :] if call.at else values, call.at + 1)
        while (start := call.at) < call.end:
            calls_to_look = loop.look() or await loop.turn()
            call.is_resting = call.at >= call.end
            try:
                # The loops inside the try: entering one per record would cost as much as the await.
                # `call.at` is set before `call.end` is read, and `PartitionWork.cut` does both in reverse. So a stop on
                # the event loop and the begin of a record in a thread see each other.
                if decode is None:
                    for after, value in islice(left, calls_to_look):
                        if after > call.end:
                            break
                        if context() != clean:
                            await fresh_context()
                        await function(value)
                        call.at = after
                else:
                    for after, value in islice(left, calls_to_look):
                        if after > call.end:
                            break
                        if context() != clean:
                            await fresh_context()
                        await function(decode(value))
                        call.at = after
                counts.handled += call.at - start
            except BaseException as raised:
                counts.handled += call.at - start
                index = call.indexes[call.at]
                # It decodes and calls in one breath; whose error it was is found out only now, when it matters.
                error = calls.is_readable(chunk, index) or raised
                outputs: list[Delivery] = []
                again = partial(self._once, loop, partial(calls.of(chunk), index), outputs)
                if not await self.failed_calls.failed(driver, call, call.at, error, recall_of(call, again), outputs):
                    return
                call.at += 1

    async def _each(self, driver: PartitionDriver, call: Call, loop: CallLoop) -> None:
        """Any other handler that runs on the loop: it wants the record, or publishes, or has something around it."""
        publish, indexes = self._publish, call.indexes
        begin, given = self._prepared(driver, call)
        clean, context, is_manual, abandoned_calls = (
            loop.clean,
            copy_context,
            self._is_manual,
            self.failed_calls.abandoned_calls,
        )
        handled, look_at = 0, call.at
        try:
            for place, index in enumerate(indexes[call.at :], call.at):
                # The time limit may have ended the call in the very turn in which a record's call returned. Nothing may
                # suspend then: the cancellation would arrive here, and would be taken for that of the next record.
                if place >= look_at and place < call.end:
                    call.is_resting = True
                    look_at = place + (loop.look() or await loop.turn())
                    call.is_resting = False
                if place >= call.end:
                    return
                if context() != clean:
                    await fresh_context()
                outputs: list[Delivery] | None = None
                try:
                    result = begin(index)
                    if publish is not None:
                        await self._send(result, outputs := [])
                    else:
                        if hasattr(result, "__await__"):
                            result = await result
                        if result is not None:
                            await self._send(result, [])
                except BaseException as error:
                    outputs = [] if outputs is None else outputs
                    again = partial(self._once, loop, partial(begin, index), outputs)
                    if not await self._failed(driver, call, error, again, outputs, given):
                        return
                else:
                    if not abandoned_calls or (late := self._late(driver, call, given)) is None:
                        handled += 1
                    elif not late:
                        return
                if outputs or (is_manual and index not in given):
                    self._passed(driver, call, place + 1, outputs or [], given)
                else:
                    call.at = place + 1
        finally:
            self.counts.handled += handled

    def _prepared(self, driver: PartitionDriver, call: Call) -> tuple[Callable[[int], Any], set[int]]:
        """Return what begins the call of a record, and the records of the fetch that reached the handler.

        All calls of a fetch share both, because without order each record is a call.
        """
        fetch, joins = call.fetch, self.calls.joins
        if fetch.prepared is None:
            given = set[int]()
            fetch.prepared = self.calls.beginning(call.records, driver, given), given
        begin, given = fetch.prepared
        if joins is not None:
            begin = joins.beginning(begin)
        if given:
            given.difference_update(call.indexes)  # a record may be called again, and its filter may drop it then
        return self.times.timed(begin), given

    async def _in_slices(self, driver: PartitionDriver, call: Call, loop: CallLoop) -> None:
        """A plain function: records go to a worker thread by the slice, not one change of threads for each."""
        given, call.is_live = set[int](), False
        begin = self.times.timed(self.calls.of(call.records, driver, given))
        while (place := call.at) < call.end:
            call.is_resting = True
            done: list[tuple[Any, BaseException | None]] = []
            if copy_context() != loop.clean:
                await fresh_context()
            try:
                await self.calls.in_thread(self._slice, call, begin, loop, done)
            except BaseException:  # the thread was abandoned; the records that it had handled before are finished
                for one in done:
                    if not self._is_plain(*one):
                        break
                    self._count(driver, call, place, given)
                    place += 1
                driver.returned(call, place)
                raise
            call.called = place + len(done)
            for one in done:
                if place >= call.end:  # closed: what the thread has called since is called again
                    return
                call.at, call.is_resting = place, False
                place += 1
                if self._is_plain(*one):
                    self._count(driver, call, place - 1, given)
                    continue
                driver.returned(call, call.at)
                if copy_context() != loop.clean:  # what it leaves to await runs here, not in its thread
                    await fresh_context()
                if not await self._end(driver, call, loop, begin, given, *one):
                    return
            call.at = place
            driver.returned(call, place)

    def _slice(
        self, call: Call, begin: Callable[[int], Any], loop: CallLoop, done: list[tuple[Any, BaseException | None]]
    ) -> None:
        """Call the handler for a slice of records, in the worker thread, and add each result or error to ``done``."""
        give_back_at = time.monotonic() + _THREAD_SLICE_SECONDS
        base = copy_context()
        own, clean = base.copy(), base if len(loop.clean) else loop.clean
        for place in range(call.at, len(call)):
            call.at, call.is_resting = place, False  # first write, then look: who ends the call does the two in reverse
            if place >= call.end:
                break
            if own != clean:
                own = base.copy()
            try:
                result = own.run(self.calls.collected, begin, call.indexes[place])
            except BaseException as error:  # the user's code may raise anything
                done.append((None, error))
                break
            done.append((result, None))
            # What is left to await is awaited before the next record's turn.
            is_unfinished = result is not None and isinstance(result, UNFINISHED)
            if is_unfinished or time.monotonic() >= give_back_at:
                break

    def _is_plain(self, result: Any, error: BaseException | None) -> bool:
        """There is no more to a call in a thread than that it has returned."""
        return result is None and error is None and self._publish is None and not self.failed_calls.abandoned_calls

    def _count(self, driver: PartitionDriver, call: Call, position: int, given: set[int]) -> None:
        self.counts.handled += 1
        if self._is_manual and call.indexes[position] not in given:
            driver.work.acknowledged(call.offset(position))

    async def _end(
        self,
        driver: PartitionDriver,
        call: Call,
        loop: CallLoop,
        begin: Callable[[int], Any],
        given: set[int],
        result: Any,
        raised: BaseException | None,
    ) -> bool:
        """Await and publish the result of a call in a thread, or handle its error. False if the call ends here."""
        place, index = call.at, call.indexes[call.at]
        if raised is not None and not isinstance(raised, Exception):
            check_exit_at(self._handler, call.records.record(index), raised)
        offset, abandoned_calls = call.offset(place), self.failed_calls.abandoned_calls
        if driver.error is not None and not any(one is driver and offset <= late for one, late in abandoned_calls):
            return False  # nothing more is published once the partition has failed
        outputs: list[Delivery] = []
        continues = self._late(driver, call, given)
        if continues is None:
            try:
                if raised is not None:
                    raise raised
                await self._send(result, outputs)
                self.counts.handled += 1
            except BaseException as error:
                recall = partial(self.calls.in_thread, self.calls.collected, begin, index)
                again = partial(self._once, loop, recall, outputs)
                continues = bool(await self._failed(driver, call, error, again, outputs, given))
        if continues is False:
            return False
        self._passed(driver, call, place + 1, outputs, given)
        return True

    async def _failed(
        self,
        driver: PartitionDriver,
        call: Call,
        raised: BaseException,
        again: Callable[[], Awaitable[None]],
        outputs: list[Delivery],
        given: set[int],
    ) -> Resolution:
        """The call of a record failed. If the handler has acknowledged it, that counts, and no further call follows."""
        index, late = call.indexes[call.at], self._late(driver, call, given)
        if late is not None:
            return Resolution.DROPPED if late else Resolution.STOPPED
        if self._is_acknowledged(call, raised):
            self.failed_calls.log_acknowledged(call.records.record(index), raised)
            return Resolution.HANDLED
        recall = recall_of(call, partial(self._again, call, again) if self._is_manual else again)
        passed = await self.failed_calls.failed(driver, call, call.at, raised, recall, outputs)
        if passed is Resolution.DROPPED:
            given.discard(index)
        return passed

    def _late(self, driver: PartitionDriver, call: Call, given: set[int]) -> bool | None:
        """A record's call has ended. If it had been given up: whether one gets past it."""
        late = self.failed_calls.abandoned_call_ended(driver, call, call.at)
        if late:
            given.discard(call.indexes[call.at])
        return late

    def _is_acknowledged(self, call: Call, raised: BaseException) -> bool:
        return (
            self._is_manual
            and call.is_done(call.indexes[call.at])
            and (self.failed_calls.has_policy or is_outage(raised))
        )

    async def _again(self, call: Call, again: Callable[[], Awaitable[None]]) -> None:
        """Call a record again. If the handler acknowledges it in this call, no further call follows."""
        try:
            await again()
        except Exception as raised:
            if not self._is_acknowledged(call, raised):
                raise
            await as_failure(raised)
            self.failed_calls.log_acknowledged(call.records.record(call.indexes[call.at]), raised)

    def _passed(
        self, driver: PartitionDriver, call: Call, after: int, outputs: list[Delivery], given: Collection[int]
    ) -> None:
        """Report the records in flight. With manual acks, those ``given`` to the handler are finished later."""
        if self._is_manual:
            for position in range(call.at, after):
                if call.indexes[position] not in given:
                    driver.work.acknowledged(call.offset(position))
        elif outputs:
            driver.published(call, after, combined_outcome(outputs))
        call.at = after

    def records_at(self, call: Call) -> Sequence[int]:
        """Return the indexes of the records whose call begins at ``call.at``."""
        return call.indexes[call.at : call.at + 1]

    # calls that took too long ----------------------------------------------------------------------------------------

    def timed_out(self, driver: PartitionDriver, call: Call, seconds: float) -> bool:
        """Fail the records in flight, whose call took longer than ``seconds``. A coroutine was cancelled before.

        Return True to continue after them; `take_outputs_of_cancelled` then returns what they had published.
        """
        return self.failed_calls.timed_out(driver, call, len(self.records_at(call)), seconds)

    def continue_after(self, driver: PartitionDriver, call: Call) -> None:
        """The records in flight are finished, for better or worse."""
        output, after = (
            self.failed_calls.take_outputs_of_cancelled(call.records, call.indexes[call.at]),
            call.at + len(self.records_at(call)),
        )
        if output is not None and not self._is_manual:
            driver.published(call, after, output)
        self._passed(driver, call, after, [], ())
        call.is_alone = False

    # results ---------------------------------------------------------------------------------------------------------

    async def _send(self, result: Any, outputs: list[Delivery]) -> None:
        """Await the result of a call if it is awaitable, and send its outputs, which are added to ``outputs``."""
        if result is FILTERED:
            self.counts.filtered += 1
            return
        while hasattr(result, "__await__"):  # again, where a middleware returned what it should have awaited
            result = await result
        publish = self._publish
        if publish is None:
            if isinstance(result, GENERATORS):
                raise no_producer(self._handler.__name__)
        elif isinstance(result, Yielded):
            for value in result:
                await _publish_one(publish, value, outputs)
        elif hasattr(result, "__anext__") or hasattr(result, "__next__"):
            await for_each(result, lambda value: _publish_one(publish, value, outputs))
        else:
            await _publish_one(publish, result, outputs)

    async def _once(self, loop: CallLoop, call: Callable[[], Any], outputs: list[Delivery]) -> None:
        """One more call, to its end."""
        if not loop.look():
            await loop.turn()
        await fresh_context()
        await self._send(call(), outputs)


async def _publish_one(publish: Publish, value: Any, outputs: list[Delivery]) -> None:
    delivery = await publish(value)
    if delivery is not None:
        outputs.append(delivery)

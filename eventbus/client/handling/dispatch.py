"""Hop 5: the records of one fetch through one handler.

Written for the cost per record: the handler is awaited directly, values are decoded in the same loop, and nothing is
created per record that the handler did not ask for.
"""

from __future__ import annotations

import copy
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any

from eventbus.backends.clock import RealTimers, Timers
from eventbus.backends.delivery import Delivery
from eventbus.client.handling.call_loop import CallLoop, Slices, fresh_context
from eventbus.client.handling.call_times import CallTimes
from eventbus.client.handling.calls import FILTERED, GENERATORS, UNFINISHED, Calls, Counts, Yielded, manual_records
from eventbus.client.handling.failing import Failing, OnEnded, Passed, in_order
from eventbus.client.handling.failures import OnFailure, as_failure, check_exit_at
from eventbus.client.handling.handlers import Handler, for_each, no_producer
from eventbus.client.handling.lane import Lane, Outcome, Taken
from eventbus.client.handling.middleware import Middleware
from eventbus.client.handling.outcomes import joined
from eventbus.client.handling.places import InBundle, InLane, Item, Places, Worker
from eventbus.client.handling.retries import Recall, Retries
from eventbus.client.handling.work_actions import Cursor
from eventbus.client.producing.joining import CallTransaction
from eventbus.client.transaction import Transaction
from eventbus.errors import SerializationError
from eventbus.outages import is_outage
from eventbus.recovery import RetryOrder
from eventbus.types import ConsumerRecord, FetchedRecords
from eventbus.units_of_work import NotHandled, OpenUnits
from serdes import Serde

logger = logging.getLogger("eventbus.runner")

Publish = Callable[[Any], Awaitable[Delivery | None]]
"""Sends one output of a handler; None for an output that is None."""

_THREAD_SLICE_SECONDS = 0.05
"""How long a sync handler's thread works through records before it reports what is finished."""


RunCalls = Callable[[Lane, Cursor, Taken | None], Coroutine[Any, Any, None]]
"""The signature of `Dispatch.run`."""


class Dispatch:
    """Calls a handler for each record of a fetch, in order, and moves the lane on."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        publish: Publish | None,
        serdes: Mapping[type, Serde],
        middleware: Sequence[Middleware] = (),
        timers: Timers | None = None,
    ) -> None:
        self.counts = Counts()
        self.times = CallTimes(timers or RealTimers(), by_batch=bool(handler.spec.batch))
        self.slices = Slices(self.times.now)
        self._handler = handler
        self._publish = publish
        self._calls = Calls(handler, serdes, middleware, self.counts)
        self._failing = Failing(handler, self.counts)
        self._run = self._choose()

    def bound(self, publish: Publish | None, on_failure: OnFailure, joins: CallTransaction | None = None) -> Dispatch:
        """The same for one lane that publishes, and fails, in a way of its own; they share threads and counts.

        ``joins``: what its calls send is part of that.
        """
        bound = copy.copy(self)
        bound._publish, bound._failing = publish, self._failing.bound(on_failure, joins)
        bound._calls = self._calls.copy()
        bound._calls.joins = joins
        bound._run = bound._choose()
        return bound

    def in_units(self, units: OpenUnits) -> None:
        """Each call is a database transaction, which ``units`` makes."""
        self._calls.in_units(units)
        self._run = self._choose()

    def of_retries(self) -> Dispatch:
        """The same for records that come from the retry topic; they share threads and counts."""
        if self._calls.units is None:
            return self
        other = copy.copy(self)
        other._calls = self._calls.copy()
        other._calls.is_retry = True
        other._run = other._choose()
        return other

    def recover_by(self, retries: Retries, order: RetryOrder) -> None:
        """Ask a policy about each failure. ``order``: which records behind one that is tried later wait for it."""
        self._failing.recover_by(retries, order)

    def wait_out(self, retries: Retries) -> None:
        """Wait outages out as ``retries`` decides, without a policy."""
        self._failing.wait_out(retries)

    @property
    def retries(self) -> Retries | None:
        """How records are called again in their place; None where each is called once."""
        return self._failing.retries

    def on_ended(self, on_ended: OnEnded) -> None:
        """Have ``on_ended`` called with each record that ends in failure, and its error."""
        self._failing.on_ended = on_ended

    def leave_threads_behind(self) -> None:
        """Calls of a plain function end for whoever waits for them; their tasks are to be cancelled."""
        self._calls.threads.leave_behind()

    @property
    def calls(self) -> Calls:
        """How the handler is called, and what its payloads are made with."""
        return self._calls

    @property
    def transaction(self) -> Transaction | None:
        """What a handler gets that asks for one."""
        return self._calls.transaction

    @transaction.setter
    def transaction(self, transaction: Transaction | None) -> None:
        self._calls.transaction = transaction

    def _choose(self) -> RunCalls:
        signature, calls = self._handler.signature, self._calls
        if self._handler.spec.batch:
            return self._batches
        if not calls.on_loop:
            return self._in_thread
        if self._handler.spec.ack == "manual":
            return self._by_hand
        is_plain = self._publish is None and not calls.needs_record and calls.joins is None
        if signature.takes_payload_alone and signature.is_direct and is_plain:
            return self._payloads
        return self._one_by_one

    # the ways to run a fetch -----------------------------------------------------------------------------------------

    async def run(self, lane: Lane, cursor: Cursor, taken: Taken | None = None) -> None:
        """Handle the records from the cursor on, in order; return early when the lane stops.

        ``taken``: they are acknowledged by hand. Else the lane's ``finished`` moves.
        """
        await lane.call_loop.run(self.slices, self._run(lane, cursor, taken))

    async def _payloads(self, lane: Lane, cursor: Cursor, taken: Taken | None) -> None:
        """An async handler that wants the payload alone and publishes nothing: the fast path."""
        function, calls, counts = self.times.timed(self._handler.function), self._calls, self.counts
        chunk = cursor.records
        values: Sequence[Any] = cursor.column(calls.values(chunk))
        decode: Callable[[Any], Any] | None = calls.decoder(chunk.topic)
        if decode is bytes and (calls.takes_null or None not in values):
            decode = None
        elif None in values:
            decode = calls.reader(chunk.topic)
        loop, clean, context = lane.call_loop, lane.call_loop.clean, copy_context
        left = enumerate(values[cursor.at :] if cursor.at else values, cursor.at + 1)
        cursor.is_plain = True
        while (start := cursor.at) < len(values) and not lane.stopping:
            calls_to_look = loop.look() or await loop.turn()
            try:
                # The loops inside the try: entering one per record would cost as much as the await.
                if decode is None:
                    for after, value in islice(left, calls_to_look):
                        if lane.stopping:
                            break
                        if context() != clean:
                            await fresh_context()
                        await function(value)
                        cursor.at = after
                else:
                    for after, value in islice(left, calls_to_look):
                        if lane.stopping:
                            break
                        if context() != clean:
                            await fresh_context()
                        await function(decode(value))
                        cursor.at = after
                counts.handled += cursor.at - start
            except BaseException as raised:
                counts.handled += cursor.at - start
                index = cursor.indexes[cursor.at]
                # It decodes and calls in one breath; whose error it was is found out only now, when it matters.
                error = calls.is_readable(chunk, index) or raised
                outputs: list[Delivery] = []
                again = partial(self._once, loop, partial(calls.of(chunk), index), outputs)
                if not await self._failing.failed(lane, chunk, index, error, in_order(cursor, again), outputs):
                    return
                cursor.at += 1

    async def _one_by_one(self, lane: Lane, cursor: Cursor, taken: Taken | None) -> None:
        """Any other handler that runs on the loop: it wants the record, or publishes, or has something around it."""
        chunk, publish = cursor.records, self._publish
        call, offsets = self.times.timed(self._calls.of(chunk)), chunk.offsets
        loop, clean, context = lane.call_loop, lane.call_loop.clean, copy_context
        handled, look_at, after = 0, cursor.at, cursor.at
        cursor.is_plain = publish is None
        try:
            for index in cursor.indexes[after:]:
                if after >= look_at and not lane.stopping:
                    look_at = after + (loop.look() or await loop.turn())
                if lane.stopping or lane.error is not None:
                    return
                if context() != clean:
                    await fresh_context()
                outputs: list[Delivery] | None = None
                try:
                    result = call(index)
                    if publish is not None:
                        await self._send(result, outputs := [])
                    else:
                        if hasattr(result, "__await__"):
                            result = await result
                        if result is not None:
                            await self._send(result, [])
                except BaseException as error:
                    outputs = [] if outputs is None else outputs
                    again = partial(self._once, loop, partial(call, index), outputs)
                    if not await self._failing.failed(lane, chunk, index, error, in_order(cursor, again), outputs):
                        return
                else:
                    handled += 1
                    if lane.error is not None:  # it was given up meanwhile, or an output before it was not stored
                        return
                after += 1
                cursor.at = after
                if publish is not None:
                    lane.handled(offsets[index] + 1, joined(outputs) if outputs else None)
        finally:
            self.counts.handled += handled

    async def _by_hand(self, lane: Lane, cursor: Cursor, taken: Taken | None) -> None:
        """Any handler on the loop whose records are acknowledged by hand."""
        await self._each(InLane(lane, cursor, taken, self._calls, self.times.timed))

    async def _in_thread(self, lane: Lane, cursor: Cursor, taken: Taken | None) -> None:
        """A plain function: records go to a worker thread by the slice, not one hop each."""
        await self._in_slices(InLane(lane, cursor, taken, self._calls, self.times.timed))

    async def work(self, worker: Worker, items: list[Item]) -> None:
        """Handle records of any lanes, one after the other; those of lanes in error, or given up, are left out.

        Only inside the worker's `CallLoop.run`: a bundle may be of one record, which a loop of its own makes dearer.
        ``worker.item`` is the one at work. Returns early when the worker is stopping: then it is the first not begun.
        """
        places = InBundle(worker, items, self._calls, self._handler.spec.ack == "manual")
        await (self._each(places) if self._calls.on_loop else self._in_slices(places))

    async def _each(self, places: Places) -> None:
        plainly = self._publish is None
        loop, clean, context = places.call_loop, places.call_loop.clean, copy_context
        look_at = places.first
        for place in range(places.first, places.end):
            # The time limit may have cancelled the scope in the very turn in which the call returned. Nothing may
            # suspend now: the cancellation would arrive here, and would be taken for that of the next call.
            if place >= look_at and not places.stops:
                look_at = place + (loop.look() or await loop.turn())
            places.begin(place)
            if places.stops:
                return
            if places.skips(place) or places.holds(place):
                continue
            if context() != clean:
                await fresh_context()
            result, error = None, None
            try:
                result = places.call(place)
                if plainly and hasattr(result, "__await__"):
                    result = await result
            except BaseException as raised:  # the user's code may raise anything
                error = raised
            if not self._finished(places, place, result, error) and not await self._end(places, place, result, error):
                return
        places.close()

    async def _in_slices(self, places: Places) -> None:
        place = places.first
        while place < places.end:
            places.begin(place)
            if places.stops:
                return
            places.wait()
            done: list[tuple[Any, BaseException | None]] = []
            if copy_context() != places.call_loop.clean:
                await fresh_context()
            try:
                await self._calls.in_thread(self._slice, places, place, done)
            except BaseException:  # the thread was left behind: what it was through with before is finished
                for one in done:
                    if not self._finished(places, place, *one):
                        break
                    place += 1
                raise
            places.ran(place + len(done))
            for result, error in done:
                places.begin(place)
                if result is _HELD:
                    if not places.holds(place):
                        break  # what it had to wait for ended meanwhile: it is begun after all
                elif not (self._finished(places, place, result, error) or result is _LEFT_OUT):
                    if copy_context() != places.call_loop.clean:  # what it leaves to await runs here, not in its thread
                        await fresh_context()
                    if not await self._end(places, place, result, error):
                        return
                place += 1
        places.close()

    def _finished(self, places: Places, place: int, result: Any, error: BaseException | None) -> bool:
        """What most calls come to, in short. False: there is more to it."""
        if result is not None or error is not None or self._publish is not None or self._failing.given_up:
            return False
        self.counts.handled += 1
        places.finish(place, None, failed=False)
        return True

    def _slice(self, places: Places, first: int, done: list[tuple[Any, BaseException | None]]) -> None:
        """In the worker thread: add what the handler returned or raised, record by record, as far as the slice goes."""
        give_back_at = time.monotonic() + _THREAD_SLICE_SECONDS
        base = copy_context()
        own, clean = base.copy(), base if len(places.call_loop.clean) else places.call_loop.clean
        for place in range(first, places.end):
            places.begin(place)
            if places.stops:
                break
            if places.skips(place):
                done.append((_LEFT_OUT, None))
                continue
            if places.is_held(place):  # what is to be done about that is the event loop's
                done.append((_HELD, None))
                break
            if own != clean:
                own = base.copy()
            try:
                result = own.run(self._calls.collected, places.call, place)
            except BaseException as error:  # the user's code may raise anything
                done.append((None, error))
                break
            done.append((result, None))
            # What is left to await is awaited before the next record's turn.
            is_unfinished = result is not None and isinstance(result, UNFINISHED)
            if is_unfinished or time.monotonic() >= give_back_at:
                break

    async def _end(self, places: Places, place: int, result: Any, raised: BaseException | None) -> bool:
        """What a call returned or raised: await and publish what is left of it. False: begin none behind it."""
        lane, chunk, index = places.record(place)
        if raised is not None and not isinstance(raised, Exception):
            check_exit_at(self._handler, chunk.record(index), raised)
        if lane.error is not None:
            # Of a call that was given up in its thread nothing counts, but what ended before it in the same slice does.
            offset = chunk.offsets[index]
            if (lane, offset) in self._failing.given_up or (places.in_order and offset >= lane.given_up_at):
                return not places.in_order
        is_passed_over = self._failing.ends_late(lane, chunk.offsets[index])
        if is_passed_over is not None:
            if is_passed_over:
                places.finish(place, None, failed=True)
            return is_passed_over or not places.in_order
        outputs: list[Delivery] = []
        passed = Passed.HANDLED
        if raised is None:
            try:
                await self._send(result, outputs)
            except BaseException as error:
                raised = error
        if raised is None:
            self.counts.handled += 1
        elif places.is_acknowledged(place) and (self._failing.is_asked or is_outage(raised)):
            self._failing.tell_acknowledged(chunk.record(index), raised)  # its handler's word is that it is finished
        else:
            call = partial(self._calls.in_thread, self._calls.collected, places.call, place)
            call = partial(places.call, place) if self._calls.on_loop else call
            again = partial(self._once, places.call_loop, call, outputs)
            recall = Recall(partial(places.again, place), places.wait, partial(self._again, places, place, again))
            passed = await self._failing.failed(lane, chunk, index, raised, recall, outputs)
            if not passed:
                return not places.in_order
        places.finish(place, joined(outputs) if outputs else None, passed is Passed.OVER)
        return True

    async def _again(self, places: Places, place: int, call: Callable[[], Awaitable[None]]) -> None:
        """Call a record again. If the handler acknowledges it in this call, no further call follows."""
        try:
            await call()
        except Exception as raised:
            if not (places.is_acknowledged(place) and (self._failing.is_asked or is_outage(raised))):
                raise
            await as_failure(raised)
            _, chunk, index = places.record(place)
            self._failing.tell_acknowledged(chunk.record(index), raised)

    # batches ---------------------------------------------------------------------------------------------------------

    async def _batches(self, lane: Lane, cursor: Cursor, taken: Taken | None) -> None:
        """A handler of lists: one call for the whole fetch, or for slices of ``batch`` records."""
        while not cursor.is_over:
            if not (lane.stopping or lane.call_loop.look()):
                await lane.call_loop.turn()
            cursor.is_resting = False
            if lane.stopping or lane.error is not None or not await self._batch(lane, cursor, taken):
                return

    async def _batch(self, lane: Lane, cursor: Cursor, taken: Taken | None) -> bool:
        """One call. False: the lane has stopped."""
        chunk, indexes = cursor.records, self.records_at(cursor)
        start, count, after = indexes[0], len(indexes), cursor.at + len(indexes)
        given, outputs = set[int](), list[Delivery]()
        failed = partial(self._unreadable, lane, chunk, outputs)
        if self._calls.units is not None and self._failing.is_asked and count > 1:
            # Its transaction would count those as done whose way to the dead letters is not stored yet.
            failed = None
        reading = _Reading(failed)
        passed = Passed.HANDLED
        try:
            result = await self._call_batch(chunk, indexes, taken, given, reading)
            if not (reading.stopped or (lane, chunk.offsets[start]) in self._failing.given_up):
                await self._send(result, outputs)
        except BaseException as error:
            check_exit_at(self._handler, chunk.record(start), error, count)
            if reading.stopped:
                return False
            if (lane, chunk.offsets[start]) in self._failing.given_up:
                pass  # what becomes of it was said when its time was over
            elif count > 1 and self._wants_singly(error, reading):
                if self._failing.may_go_on(outputs):
                    return await self._singly(lane, cursor, indexes, taken, reading)
                return self._failing.wants_each_alone(lane, chunk, start, count, await as_failure(error))
            else:
                again = partial(self._batch_again, chunk, indexes, taken, given, outputs, reading.left_out)
                passed = await self._failing.failed(lane, chunk, start, error, in_order(cursor, again), outputs, count)
                if not passed:
                    return False
        else:
            self.counts.handled += 0 if reading.stopped else count - len(reading.left_out)
        is_passed_over = self._failing.ends_late(lane, chunk.offsets[start])
        if reading.stopped or is_passed_over is False:
            return False
        passed = Passed.OVER if is_passed_over else passed
        cursor.at = after
        if taken is None:
            lane.handled(chunk.offsets[indexes[-1]] + 1, joined(outputs) if outputs else None)
        else:
            for index in indexes:
                if passed is Passed.OVER or index not in given:
                    taken.handled(index)
        return True

    def _wants_singly(self, error: BaseException, reading: _Reading) -> bool:
        """Return True if a batch that failed is to be called again record by record, to find the record at fault.

        Without a policy only if the handler was not called: a value that cannot be restored must not cost the other
        records, and an outage of the store may hide such a value.
        """
        if self._failing.is_asked:
            return not isinstance(error, NotHandled)
        return isinstance(error, Exception) and not (reading.was_read or reading.left_out)

    async def _unreadable(
        self, lane: Lane, chunk: FetchedRecords, outputs: list[Delivery], index: int, error: BaseException
    ) -> Passed:
        return await self._failing.failed(lane, chunk, index, error, None, outputs)

    async def _call_batch(
        self, chunk: FetchedRecords, indexes: Sequence[int], taken: Taken | None, given: set[int], reading: _Reading
    ) -> Any:
        return await self.times.ended(self._call_with(chunk, indexes, taken, given, reading), self.times.now())

    async def _call_with(
        self, chunk: FetchedRecords, indexes: Sequence[int], taken: Taken | None, given: set[int], reading: _Reading
    ) -> Any:
        calls = self._calls
        await fresh_context()
        if calls.joins is not None:
            calls.joins.begins()
        if calls.needs_record:
            make = chunk.record if taken is None else manual_records(chunk, taken, given)
            read = partial(reading.payloads, calls.payload, partial(_index_of, chunk))
            return await calls.with_batch(read, reading.was_read)([make(index) for index in indexes])
        payloads = await reading.payloads(partial(calls.payload_at, chunk), int, indexes)
        return await calls.call_batch(payloads) if payloads else None

    async def _singly(
        self, lane: Lane, cursor: Cursor, indexes: Sequence[int], taken: Taken | None, reading: _Reading
    ) -> bool:
        """Each record of a batch that failed in a batch of its own, so that the one at fault shows."""
        chunk = cursor.records
        for index in indexes:
            if not (lane.stopping or lane.call_loop.look()):
                await lane.call_loop.turn()
            if lane.stopping:
                return False
            cursor.is_alone = True
            given, outputs = set[int](), list[Delivery]()
            passed = Passed.OVER
            if index not in reading.left_out and not (taken is not None and taken.is_handled(index)):
                recall = in_order(cursor, partial(self._batch_again, chunk, (index,), taken, given, outputs))
                recall.begin()
                try:
                    await recall.call()
                    self.counts.handled += 1
                    passed = Passed.HANDLED
                except BaseException as error:
                    passed = await self._failing.failed(lane, chunk, index, error, recall, outputs)
                    if not passed:
                        return False
            cursor.at += 1
            cursor.is_alone = False
            if taken is None:
                lane.handled(chunk.offsets[index] + 1, joined(outputs) if outputs else None)
            elif passed is Passed.OVER or index not in given:
                taken.handled(index)
        return True

    async def _batch_again(
        self,
        chunk: FetchedRecords,
        indexes: Sequence[int],
        taken: Taken | None,
        given: set[int],
        outputs: list[Delivery],
        left_out: Collection[int] = (),
    ) -> None:
        """One more call, without records that cannot be read and those that the handler has acknowledged."""
        left = [one for one in indexes if one not in left_out and not (taken is not None and taken.is_handled(one))]
        if left:
            await self._send(await self._call_batch(chunk, left, taken, given, _Reading(None)), outputs)

    def records_at(self, cursor: Cursor) -> Sequence[int]:
        """Return the indexes of the records whose call begins at the cursor."""
        at, batch = cursor.at, self._handler.spec.batch
        if batch is True and not cursor.is_alone:
            return cursor.indexes[at:]
        return cursor.indexes[at : at + (1 if cursor.is_alone else max(int(batch), 1))]

    # calls that took too long ----------------------------------------------------------------------------------------

    def timed_out(self, lane: Lane, chunk: FetchedRecords, indexes: Sequence[int], seconds: float) -> bool:
        """The call of these records took longer than ``seconds``, and was cancelled where that can be.

        True: go on behind it; what it had published is `left_behind`.
        """
        return self._failing.timed_out(lane, chunk, indexes, seconds)

    def left_behind(self, chunk: FetchedRecords, index: int) -> Outcome | None:
        """What a call that was cancelled because of its ``timeout`` had published before, told once."""
        return self._failing.left_behind(chunk, index)

    # results ---------------------------------------------------------------------------------------------------------

    async def _send(self, result: Any, outputs: list[Delivery]) -> None:
        """Await what a call returned, where that is due, and send what it came to; ``outputs`` has what was sent."""
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


class _Reading:
    """Makes a batch's payloads. One that cannot be read is left out, or stops the lane; without ``failed``: raises."""

    def __init__(self, failed: Callable[[int, BaseException], Awaitable[Passed]] | None) -> None:
        self._failed = failed
        self.left_out: set[int] = set()
        self.was_read: list[Any] = []
        """The items that it made payloads of."""
        self.stopped = False

    async def payloads(
        self, payload: Callable[[Any], Any], index: Callable[[Any], int], items: Iterable[Any]
    ) -> list[Any]:
        """None at all when the lane has stopped."""
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


_LEFT_OUT, _HELD = object(), object()
"""The places of records that were not begun; the second waits for an earlier one of its key."""


def _index_of(chunk: FetchedRecords, record: ConsumerRecord) -> int:
    return bisect_left(chunk.offsets, record.offset)


async def _publish_one(publish: Publish, value: Any, outputs: list[Delivery]) -> None:
    delivery = await publish(value)
    if delivery is not None:
        outputs.append(delivery)

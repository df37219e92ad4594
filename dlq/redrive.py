"""Send dead letters back. Each is sent once, even with concurrent redrives, and across cancellations and restarts."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

import anyio
import anyio.abc
import msgspec

from dlq.changes import state_after
from dlq.following import Following
from dlq.group_reads import Groups
from dlq.index_queries import offsets_of, row_of
from dlq.payloads import source_records
from dlq.reading import selected
from dlq.redriven_record import Redriving
from dlq.selection import STATUSES, LetterId, Selection
from dlq.state import LetterState, new_step
from dlq.state_writer import StateWriter, Writes
from dlq.targets import Target, Targets, id_of
from eventbus import EventBus
from eventbus.client.ledger_writer import LedgerRecord
from eventbus.errors import ConfigError, EventBusError, UnknownTopicOrPartition
from eventbus.types import ConsumerRecord, RecordMetadata

if TYPE_CHECKING:
    from dlq.letters import DeadLetter

logger = logging.getLogger("dlq")

_BATCH = 2_000
"""Maximum number of letters in a transaction."""
_BATCH_BYTES = 8_000_000
_BATCHES_A_SECOND = 4
"""Batches are kept small enough for this many a second, so that a rate holds within each second."""
_HARD_SECONDS = 0.7
"""How long a batch in flight may take after `cancel` before it is interrupted."""
_SAMPLES = 5
MAX_HOPS = 3


class Redriven(msgspec.Struct, kw_only=True):
    """The progress of a redrive."""

    run_id: str
    total: int
    """Letters selected by the index at the start. With ``contains`` fewer may be sent."""
    seen: int = 0
    redriven: int = 0
    """Letters sent, or in a dry run those that would be sent."""
    topics: dict[str, int] = {}
    """Letters sent, by target topic."""
    groups: dict[str, int] = {}
    """Letters sent through the retry topics of groups, by group. Only that group gets them."""
    idle_groups: tuple[str, ...] = ()
    """Groups in ``groups`` without a running member. Their letters wait in their retry topics."""
    other_groups: dict[str, tuple[str, ...]] = {}
    """Other groups that get the letters with ``whole_topic`` or ``to``, by the topic that they read.

    Readers without a group, such as Spark, are not known.
    """
    left_out: dict[str, int] = {}
    """Letters left out, by reason; see `dlq.targets.REASONS`."""
    samples: dict[str, tuple[str, ...]] = {}
    """Ids of some letters left out, by reason."""
    errors: dict[str, str] = {}
    """Errors of letters that their topic refused."""
    dry_run: bool = False
    cancelled: bool = False
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.redriven / self.seconds if self.seconds else 0.0

    def leave_out(self, letter: LetterId, reason: str) -> None:
        self.seen += 1
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        samples = self.samples.get(reason, ())
        if len(samples) < _SAMPLES:
            self.samples[reason] = (*samples, str(letter))

    def sent(self, target: Target) -> None:
        self.seen += 1
        self.redriven += 1
        self.topics[target.topic] = self.topics.get(target.topic, 0) + 1
        if target.group is not None:
            self.groups[target.group] = self.groups.get(target.group, 0) + 1

    def reaches(self, target: Target, failed: str, groups: Groups) -> None:
        """Record which other groups get a letter, or that the letter's own group does not run."""
        if target.group is None:
            others = {*self.other_groups.get(target.topic, ()), *groups.readers(target.topic)} - {failed}
            if others:
                self.other_groups[target.topic] = tuple(sorted(others))
        elif not groups.known[target.group].members and target.group not in self.idle_groups:
            self.idle_groups = tuple(sorted((*self.idle_groups, target.group)))


class RedriveOptions(TypedDict, total=False):
    """Options of a redrive."""

    to: str | None
    """Send to this topic, and so to all groups that read it. None sends each letter to the group that failed."""
    whole_topic: bool
    """Send each letter to its source topic, where all groups that read it get it again."""
    rate: float | None
    """Records a second. None means unlimited."""
    dry_run: bool
    """Send nothing, only report what would be sent."""
    max_hops: int | None
    """Leave out letters that were redriven this often (by default 3) and failed again. None means no limit."""
    on_progress: Callable[[Redriven], object] | None
    """Called after every batch."""
    allow: Collection[str] | None
    """The only topics to send to. Topics that hold dead letters themselves must be named here."""
    run_id: str | None
    """Id of this redrive in the state topic. A random one is used by default."""
    by: str
    note: str


class Pace:
    """Decides when the next batch may be sent at a given rate. Pure."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise ConfigError(f"rate={rate}: records a second, more than 0; None: as fast as it goes")
        self._rate = rate
        self._next = 0.0
        self.batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate / _BATCHES_A_SECOND)))

    def wait(self, now: float) -> float:
        """Return the seconds until the next batch may be sent."""
        return max(self._next - now, 0.0)

    def went(self, count: int, now: float) -> None:
        if self._rate is not None:
            self._next = max(self._next, now) + count / self._rate


class Redrive:
    """A redrive, which runs while inside ``async with letters.start_redrive(...) as run:``.

    Leaving the block waits for its end. `pause`, `resume` and `cancel` may be called from any task, and `wait` returns
    the result. It can run only once.
    """

    def __init__(
        self,
        bus: EventBus,
        following: Following,
        writer: StateWriter,
        now_ms: Callable[[], int],
        selection: Selection,
        *,
        to: str | None = None,
        whole_topic: bool = False,
        rate: float | None = None,
        dry_run: bool = False,
        max_hops: int | None = MAX_HOPS,
        on_progress: Callable[[Redriven], object] | None = None,
        allow: Collection[str] | None = None,
        run_id: str | None = None,
        by: str = "",
        note: str = "",
    ) -> None:
        if max_hops is not None and max_hops < 1:
            raise ConfigError(f"max_hops={max_hops}: at least 1, or nothing is ever sent; None: however often")
        self._bus = bus
        self._following = following
        self._writer = writer
        self._selection = selection
        self._now_ms = now_ms
        self._to = to
        self._whole_topic = whole_topic
        self._allow = allow
        self._groups = Groups(bus)
        self._max_hops = max_hops
        self._pace = Pace(rate)
        self._on_progress = on_progress
        self._targets: Targets | None = None
        self._began = 0.0
        self._went_on = anyio.Event()
        self._went_on.set()
        self._cancelled = anyio.Event()
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope()
        self._error: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._step = new_step("redriven", 0, by=by, note=note, run=run_id or uuid.uuid4().hex)
        self.done = Redriven(run_id=self._step.run, total=0, dry_run=dry_run)
        """The progress so far."""

    # from outside ----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Send nothing after the current batch, until `resume`."""
        if self._went_on.is_set():
            self._went_on = anyio.Event()

    def resume(self) -> None:
        self._went_on.set()

    @property
    def is_paused(self) -> bool:
        return not self._went_on.is_set()

    def cancel(self) -> None:
        """Stop within a second. Another redrive of the same selection continues after the letters that were sent."""
        self._cancelled.set()

    async def wait(self) -> Redriven:
        """Wait until the redrive has ended and return its result. Raises the error that ended it."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self.done

    async def __aenter__(self) -> Redrive:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        if isinstance(error, Exception):  # raise the caller's own error, not an ExceptionGroup around it
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)
            return None
        swallowed = await self._tasks.__aexit__(kind, error, traceback)
        if error is None and self._error is not None:
            raise self._error
        return swallowed

    async def run(self) -> Redriven:
        """Run the redrive from beginning to end."""
        async with self:
            pass
        return self.done

    # the work --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._began = time.monotonic()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_when_cancelled)
                with self._scope:
                    await self._redrive()
                tasks.cancel_scope.cancel()
        finally:
            self.done.cancelled = self._cancelled.is_set() and self.done.seen < self.done.total
            self.done.seconds = time.monotonic() - self._began
            self._ended.set()

    async def _end_when_cancelled(self) -> None:
        await self._cancelled.wait()
        await anyio.sleep(_HARD_SECONDS)
        self._scope.cancel()

    async def _redrive(self) -> None:
        try:
            await self._following.catch_up()
            self._following.check(self._selection)
            wanted = offsets_of(self._following.indexes, self._selection)
            count, limit = sum(map(len, wanted.values())), self._selection.limit
            self.done.total = count if limit is None else min(count, limit)
            await self._look_up_targets()
            async with self._writer, aclosing(selected(self._bus, wanted, self._selection)) as letters:
                await self._send_all(letters)
        except Exception as error:  # raised by `wait`, and when the block is left
            self._error = error

    async def _look_up_targets(self) -> None:
        following = self._following
        self._targets = Targets(
            await self._bus.admin.describe_topics(),
            following.indexes,
            following.state_topic,
            self._groups.known,
            to=self._to,
            whole_topic=self._whole_topic,
            allow=self._allow,
        )
        if self._whole_topic or self._to is not None:
            await self._groups.look_up_all()

    async def _send_all(self, letters: AsyncIterable[list[DeadLetter]]) -> None:
        batch: list[DeadLetter] = []
        size = 0
        async for some in letters:
            for letter in some:
                batch.append(letter)
                size += len(letter.value or b"")
                if len(batch) >= self._pace.batch or size >= _BATCH_BYTES:
                    if not await self._go(batch):
                        return
                    batch, size = [], 0
        if batch:
            await self._go(batch)

    async def _go(self, batch: Sequence[DeadLetter]) -> bool:
        """Send a batch once pause and rate allow it. Return False if the redrive is cancelled."""
        await self._until(self._went_on.wait)
        seconds = self._pace.wait(time.monotonic())
        if seconds:
            await self._until(lambda: anyio.sleep(seconds))
        if self._cancelled.is_set():
            return False
        before = self.done.redriven
        await self._send(batch)
        self._pace.went(self.done.redriven - before, time.monotonic())
        self.done.seconds = time.monotonic() - self._began
        if self._on_progress is not None:
            self._on_progress(self.done)
        return True

    async def _until(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Run ``wait``, and return early if the redrive is cancelled."""
        async with anyio.create_task_group() as tasks:

            async def cancelled() -> None:
                await self._cancelled.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(cancelled)
            await wait()
            tasks.cancel_scope.cancel()

    async def _send(self, batch: Sequence[DeadLetter], redriving: Redriving | None = None) -> None:
        """Send letters in one transaction. If it is refused, halve the batch to isolate the letter at fault."""
        sources = await source_records(self._bus, [letter for letter in batch if not letter.has_payload])
        await self._groups.look_up(letter.group for letter in batch if letter.group and letter.family == "eventbus")
        redriving = redriving or Redriving(self._now_ms(), self._step.by)

        async def decide() -> Writes:
            return await self._decide(batch, sources, redriving)

        if self.done.dry_run:
            (await decide()).committed(())
            return
        try:
            await self._writer.write(decide)
        except EventBusError as error:
            if isinstance(error, UnknownTopicOrPartition):  # deleted since the look-up
                await self._look_up_targets()
            elif error.retriable or error.fatal:
                raise
            if len(batch) > 1:
                half = len(batch) // 2
                await self._send(batch[:half])
                await self._send(batch[half:])
                return
            assert self._targets is not None
            target = self._targets.of(batch[0])
            smaller = redriving.smaller(error, target) if isinstance(target, Target) else None
            if smaller is not None:
                await self._send(batch, smaller)
                return
            letter = id_of(batch[0])
            logger.warning("dead letter %s cannot be redriven: %s", letter, error)
            self.done.leave_out(letter, "refused")
            if len(self.done.errors) < _SAMPLES:
                self.done.errors[str(letter)] = str(error)

    async def _decide(
        self, batch: Sequence[DeadLetter], sources: Mapping[LetterId, ConsumerRecord], redriving: Redriving
    ) -> Writes:
        assert self._targets is not None
        states = await self._following.states(map(id_of, batch))
        at_ms = redriving.at_ms
        records: list[LedgerRecord] = []
        written: list[tuple[LetterId, LetterState]] = []
        sent: list[tuple[Target, str]] = []
        left_out: list[tuple[LetterId, str]] = []
        for letter in batch:
            id = id_of(letter)
            before = states.get(id)
            source = sources.get(id)
            target = self._target_of(letter, id, before, source)
            if isinstance(target, Target):
                timestamp_ms = None if target.group else self._targets.timestamp_of(letter, target.topic, at_ms)
                records.append(redriving.record(letter, target, source or letter, timestamp_ms))
                step = msgspec.structs.replace(self._step, at_ms=at_ms, to=target.topic)
                written.append(state_after(self._following, id, before, step))
                sent.append((target, letter.group))
            else:
                left_out.append((id, target))

        def committed(_: Sequence[RecordMetadata]) -> None:
            for target, _group in sent:
                self.done.sent(target)
            for target, group in dict.fromkeys(sent):
                self.done.reaches(target, group, self._groups)
            for id, reason in left_out:
                self.done.leave_out(id, reason)

        return Writes(records, written, committed)

    def _target_of(
        self, letter: DeadLetter, id: LetterId, before: LetterState | None, source: ConsumerRecord | None
    ) -> Target | str:
        """Return the target of a letter by its newest state, or the reason why it is left out."""
        assert self._targets is not None
        row = row_of(self._following.indexes, id)
        if row is None:
            return "gone"
        by_this_run = before is not None and before.last.run == self.done.run_id
        if by_this_run or not self._selection.takes_status(STATUSES[row.status]):
            return "status"
        if self._max_hops is not None and letter.hops >= self._max_hops:
            return "hops"
        if not letter.has_payload and source is None:
            return "no-payload"
        return self._targets.of(letter)

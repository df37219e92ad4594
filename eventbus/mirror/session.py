"""A session of a mirror: from taking its transactional id to its end, or to the first error."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Mapping

import anyio
import msgspec

from eventbus.backends.base import EARLIEST, Backend, BackendConsumer
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.client.running.single_error import SingleError
from eventbus.errors import (
    ConfigError,
    EventBusError,
    KafkaError,
    ProducerFenced,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eventbus.ledger import ends_of
from eventbus.mirror.group_offsets import GroupOffsets
from eventbus.mirror.journal import READER, Entry, Journal, TopicState, create_journal
from eventbus.mirror.plan import Options, TopicPlan, by_name, own_configs, plan_topic
from eventbus.mirror.progress import Progress
from eventbus.mirror.refusals import Refusals, may_pass
from eventbus.mirror.writer import Refusal, Writer, refusal_of
from eventbus.types import FetchedRecords, TopicPartition

logger = logging.getLogger("eventbus.mirror")

_RECORDS = 100_000
_BYTES = 33_554_432
_FEWEST_RECORDS = 100
_FEWEST_BYTES = 65_536
_SECONDS = 1.0
"""A transaction is committed at this age, at a number of records or bytes, or when there are no more records."""
_COMPANY_MS = 10
"""How long an open transaction waits for more records."""
_IDLE_MS = 500
_STALL_SECONDS = 60.0
_TRIAL_SECONDS = 5.0
_FETCH_BYTES = 1_048_576


class Superseded(ProducerFenced):
    """Another mirror with the name has begun since: stop this one."""


class Session:
    """Reads the source, writes the destination and its journal."""

    def __init__(
        self,
        source: Backend,
        destination: Backend,
        options: Options,
        progress: Progress,
        refusals: Refusals,
        *,
        owner: str,
        has_begun: bool,
        attempt: int,
    ) -> None:
        """``owner``: the run of this session; ``has_begun``: the journal already contains it.

        ``attempt``: the number of earlier sessions with little progress; transactions get smaller, for slow links.
        """
        self._source = source
        self._destination = destination
        self._options = options
        self._progress = progress
        self._refusals = refusals
        self._owner = owner
        self.has_begun = has_begun
        self._most_records = max(_RECORDS >> attempt, _FEWEST_RECORDS)
        self._most_bytes = max(_BYTES >> attempt, _FEWEST_BYTES)
        self._timers = destination.timers
        self._journal = Journal(options.name)
        self._groups = GroupOffsets(source, destination, self._journal, options, progress)
        self._starts: dict[TopicPartition, int] = {}
        """Partitions that are mirrored, each with its first offset at the source."""
        self._read: set[TopicPartition] = set()
        """Partitions that are read now, without refused ones; a single one while it is tried separately."""
        self._cuts: dict[TopicPartition, Refusal] = {}
        """Records that the destination refuses: the records before them are copied."""
        self._is_stale = False
        """True if the set of partitions to read has changed."""
        self._doubtful: set[str] = set()
        """Topics that may have been deleted and created again: their records wait until that is known."""
        self._ends: dict[TopicPartition, int] = {}
        """The offsets at which copying ends, unless it follows, of partitions that are not finished yet."""
        self._next: dict[TopicPartition, int] = {}
        """The offset after the last record that was read."""
        self._passed: dict[TopicPartition, int] = {}
        """The consumer's positions after an empty poll: if they are unchanged after the next one, it has no more. On
        Kafka a position may be ahead of the records that were returned, except after an empty poll."""
        self._only: set[str] | None = None
        """The topics at the start, unless the mirror follows."""
        self._gaps: list[tuple[TopicPartition, int, int]] = []
        """Offsets passed without a record since the last check: unreadable, or deleted before they were read."""
        self._look_at = 0.0
        self._tried_since = 0.0

    async def run(self, *, follow: bool) -> None:
        """Run until cancelled, or until everything that exists now is copied.

        Topics that cannot be mirrored are in the progress' ``problems``. Raises ProducerFenced if another mirror with
        the name has begun, and at the end the error of a partition that could not be copied.
        """
        self._refusals.release_passing()
        if self.has_begun:  # before the transactional id is taken: another mirror's transactions may continue
            journal = Journal(self._options.name)
            await journal.load(self._destination)
            self._check_owner(journal)
        await create_journal(self._destination, self._journal.topic, self._options.replication_factor)
        writer = Writer(self._destination, self._journal, self._options, self._progress)
        consumer = self._source.consumer(
            msgspec.structs.replace(
                READER, max_partition_fetch_bytes=_FETCH_BYTES, fetch_max_wait_ms=_IDLE_MS if follow else _COMPANY_MS
            )
        )
        consumer.on_revoked = self._revoked
        try:
            async with SingleError(), anyio.create_task_group() as tasks:
                tasks.start_soon(writer.run)
                try:
                    await self._go(writer, consumer, follow=follow)
                finally:
                    await writer.aclose()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await consumer.aclose()

    async def _go(self, writer: Writer, consumer: BackendConsumer, *, follow: bool) -> None:
        await writer.init()
        await self._journal.load(self._destination)
        if self.has_begun:
            self._check_owner(self._journal)
        elif self._journal.owner != self._owner:
            restarted = [topic for topic in self._options.again if topic in self._journal.topics]
            forgotten = [entry for topic in restarted for entry in self._journal.forget(topic)]
            await writer.save([self._journal.claim(self._owner), *forgotten])
        self.has_begun = True
        await self._look(writer, consumer, at_start=True)
        if not follow:
            self._only = {where.topic for where in self._read}
            reached = {where: self._progress.of(where) for where in self._read}
            self._ends = {where: one.end for where, one in reached.items() if one.lag}
        await self._copy(writer, consumer, follow=follow)
        if not follow:
            await self._look(writer, consumer)
            self._refusals.check()

    def _check_owner(self, journal: Journal) -> None:
        if journal.owner != self._owner:
            name = self._options.name
            raise Superseded(
                f"another mirror of the name {name!r} has begun, and goes on with the work: this one stops"
            )

    # topics ----------------------------------------------------------------------------------------------------------

    def _revoked(self, where: TopicPartition) -> None:
        if where in self._read:
            self._doubtful.add(where.topic)
            self._look_at = 0.0

    async def _look(self, writer: Writer, consumer: BackendConsumer, *, at_start: bool = False) -> None:
        """Check for changes at the source: topics, partitions, configs, groups. Called between transactions."""
        described = {one.name: one for one in await self._describe() if self._only is None or one.name in self._only}
        there = by_name(await self._destination.describe_topics())
        problems = self._progress.problems
        self._refusals.release_due()
        plans = self._plan(described, there)
        if refused := {plan.topic for plan in plans if plan.action == "refuse"}:
            # Kafka returns a topic's id first, and its partitions' ends on request: if it was created again in between,
            # the ends are the new topic's. Its present id shows whose ends they were.
            ids = {one.name: one.topic_id for one in await self._describe()}
            for name in refused:
                topic = described.pop(name)
                if name in ids:
                    described[name] = msgspec.structs.replace(topic, topic_id=ids[name])
            plans = self._plan(described, there)
        for gone in {where.topic for where in self._progress.partitions} - described.keys() - problems.keys():
            self._give_up(gone, f"topic {gone!r} was deleted at the source; its copy stays unchanged")
        entries: list[Entry] = []
        for plan in plans:
            topic = described[plan.topic]
            if plan.action == "refuse" and plan.topic in there:
                self._give_up(plan.topic, plan.reason)
            elif plan.action == "refuse":  # deleted, or hidden from this user: it may return
                self._refuse_topic(topic, ConfigError(plan.reason))
            elif not any(self._refusals.waits(where) for where in _partitions(topic)):
                try:
                    entries += await self._prepare(plan, topic, there.get(plan.topic))
                except EventBusError as error:
                    if may_pass(error):
                        raise
                    self._refuse_topic(topic, error)
        if entries:
            await writer.save(entries)
        await self._take_up(consumer, described, at_start=at_start)
        await self._prune(writer, described)
        await self._groups.sync(writer)
        self._progress.looks += 1
        self._look_at = self._timers.current_time() + self._options.refresh_seconds

    def _plan(
        self, described: Mapping[str, TopicDescription], there: Mapping[str, TopicDescription]
    ) -> list[TopicPlan]:
        return [
            plan_topic(topic, there.get(name), self._journal.topics.get(name), self._journal)
            for name, topic in described.items()
            if name not in self._progress.problems
        ]

    async def _describe(self) -> list[TopicDescription]:
        selection = self._options.selection
        try:
            described = await self._source.describe_topics(selection.names or None)
        # At least one of the named topics does not exist: the separate calls show which.
        except UnknownTopicOrPartition:
            described = await self._source.describe_topics()
        return [one for one in described if not one.is_internal and selection.takes(one.name)]

    def _refuse_topic(self, topic: TopicDescription, error: EventBusError) -> None:
        for where in _partitions(topic):
            self._refuse(where, error)

    def _give_up(self, topic: str, reason: str) -> None:
        logger.warning("%s", reason)
        self._progress.problems[topic] = reason

    async def _prepare(self, plan: TopicPlan, source: TopicDescription, there: TopicDescription | None) -> list[Entry]:
        """Prepare the destination's topic; return the entries for the journal."""
        name, destination = plan.topic, self._destination
        if plan.kept_back:
            self._progress.kept_back[name] = plan.kept_back
        if plan.action == "create":
            spec = TopicSpec(name, plan.partitions, self._options.replication_factor, plan.set_configs)
            made = (await destination.create_topics([spec]))[name]
            if isinstance(made, KafkaError) and not isinstance(made, TopicAlreadyExists):
                raise type(made)(f"topic {name!r} of the source cannot be made at the destination: {made}") from made
            logger.info("topic %r: created with %d partition(s)", name, plan.partitions)
        elif plan.set_configs or plan.delete_configs:
            await destination.alter_configs(name, plan.set_configs, plan.delete_configs)
            logger.info("topic %r: configs %s", name, ", ".join([*plan.set_configs, *plan.delete_configs]))
        if plan.grow_to:
            await destination.add_partitions(name, plan.grow_to)
            logger.info("topic %r: has %d partitions now", name, plan.grow_to)
        state = self._journal.topics.get(name)
        if state is None or there is None or plan.grow_to:
            [there] = await destination.describe_topics([name])
            stamps = there.configs.get("message.timestamp.type")
            if stamps is not None and stamps.value == "LogAppendTime":  # the brokers' default is set
                await destination.alter_configs(name, {"message.timestamp.type": "CreateTime"}, [])
        bases = [] if state is None else state.bases[: plan.partitions]
        bases = bases + [there.partitions[number].log_end_offset for number in range(len(bases), plan.partitions)]
        now = TopicState(
            source_id=source.topic_id, destination_id=there.topic_id, bases=bases, configs=own_configs(source)
        )
        return [] if now == state else [self._journal.take_up(name, now)]

    async def _take_up(
        self, consumer: BackendConsumer, described: dict[str, TopicDescription], *, at_start: bool
    ) -> None:
        """Read the partitions that are mirrored now, new ones from the journal's position."""
        ends = await self._ends_of(described, at_start=at_start)
        self._starts = {}
        for name, topic in described.items():
            for one in topic.partitions if name not in self._progress.problems else ():
                where = TopicPartition(name, one.partition)
                if where not in self._journal.maps:
                    continue  # the destination could not be prepared
                progress = self._progress.of(where)
                progress.end = ends.get(where, progress.end)
                self._note_lost(where, one.log_start_offset)
                self._starts[where] = one.log_start_offset
        self._gaps.clear()
        doubtful, self._doubtful = self._doubtful, set()
        await self._read_mirrored(consumer, doubtful)

    async def _read_mirrored(self, consumer: BackendConsumer, doubtful: Collection[str] = ()) -> None:
        """Read the mirrored partitions that are not refused now. Called between transactions."""
        self._is_stale = False
        self._passed.clear()
        while (trial := self._refusals.next_trial()) is not None and trial not in self._starts:
            self._refusals.clear(trial)
        wanted = {one for one in self._starts if not self._refusals.waits(one)} if trial is None else {trial}
        new = {one: self._begin(one) for one in wanted if one not in self._read or one.topic in doubtful}
        if wanted != self._read:
            self._read = set()  # dropping partitions now does not count as a revocation
            await consumer.assign(sorted(wanted))
            self._read = wanted
            self._tried_since = self._timers.current_time()
        for where, offset in new.items():
            self._seek(consumer, where, offset)

    def _begin(self, where: TopicPartition) -> int:
        """Return the position from which to continue in a partition."""
        position, start = self._journal.maps[where].position, self._starts[where]
        if where not in self._read and 0 <= position < start and self._progress.of(where).position < start:
            self._log_lost(where, position, start)
        return max(position, start, 0)

    def _note_lost(self, where: TopicPartition, log_start_offset: int) -> None:
        """Record a loss: a consumer that retention has overtaken silently continues at the first record."""
        for gap, begin, end in self._gaps:
            if gap == where and begin < log_start_offset:
                self._log_lost(where, begin, min(end, log_start_offset))

    def _log_lost(self, where: TopicPartition, begin: int, end: int) -> None:
        self._progress.of(where).lost += end - begin
        logger.warning("%s: the source has deleted offsets %d to %d before they were copied", where, begin, end - 1)

    def _seek(self, consumer: BackendConsumer, where: TopicPartition, offset: int) -> None:
        self._next[where] = self._progress.of(where).position = offset
        self._passed.clear()
        consumer.seek(where, offset)

    async def _ends_of(self, described: dict[str, TopicDescription], *, at_start: bool) -> dict[TopicPartition, int]:
        wanted = [TopicPartition(name, one.partition) for name, topic in described.items() for one in topic.partitions]
        try:
            return await ends_of(self._source, wanted)
        except KafkaError as error:
            if at_start or not error.retriable:
                raise
            return {}  # a partition has no leader: the lag of the others can wait

    async def _prune(self, writer: Writer, described: dict[str, TopicDescription]) -> None:
        """Delete entries of the journal about records that exist on neither side any more."""
        starts = {
            TopicPartition(name, one.partition): one.log_start_offset
            for name, topic in described.items()
            for one in topic.partitions
            if one.log_start_offset > 0 and TopicPartition(name, one.partition) in self._read
        }
        if not starts:
            return
        try:
            there = await self._destination.list_offsets(dict.fromkeys(starts, EARLIEST))
        except KafkaError as error:
            if may_pass(error):
                raise
            logger.debug("the journal is not pruned now: %s", error)
            return
        entries: list[Entry] = []
        for where, start in starts.items():
            entries += self._journal.dropped(where, start, there[where].offset)
        if entries:
            await writer.save(entries)

    # records ---------------------------------------------------------------------------------------------------------

    async def _copy(self, writer: Writer, consumer: BackendConsumer, *, follow: bool) -> None:
        timers = self._timers
        moved_at = began_at = timers.current_time()
        while follow or self._ends:
            now = timers.current_time()
            if not writer.count and now >= self._look_at:
                await self._look(writer, consumer)
            if not writer.count and self._is_stale:
                await self._read_mirrored(consumer)
            fetched = await self._fetch(consumer, self._wait_ms(writer, now))
            if not fetched:
                await self._note_positions(consumer)
            elif not writer.count:
                began_at = timers.current_time()
            for records in fetched:
                if self._is_sound(records) and (before := self._before_cut(records)):
                    await writer.add(before)
            now = timers.current_time()
            self._note_reached()
            is_full = writer.count >= self._most_records or writer.size_bytes >= self._most_bytes
            is_full = is_full or writer.has_failed
            has_all = not follow and not self._ends  # there may be more: producers do not wait for a copy to end
            if writer.count and (is_full or has_all or now - began_at > _SECONDS or not fetched):
                moved_at = now
                await self._commit(writer, consumer, follow=follow)
            self._end_empty_trial(has_records=bool(fetched))
            if not follow and now - moved_at > _STALL_SECONDS:
                raise RequestTimedOut(
                    f"nothing has come from the source for {_STALL_SECONDS:.0f} s, though there is more in "
                    f"{', '.join(map(str, sorted(self._ends)))}: has the partition no leader?"
                )

    async def _fetch(self, consumer: BackendConsumer, wait_ms: int) -> list[FetchedRecords]:
        try:
            return await consumer.fetch(wait_ms)
        except KafkaError as error:
            where = error.topic_partition
            if where is None or where not in self._read or may_pass(error):
                raise
            self._refuse(where, refusal_of(error, where, self._next[where]))
            return []

    async def _commit(self, writer: Writer, consumer: BackendConsumer, *, follow: bool) -> None:
        trial = self._refusals.next_trial()
        outcome = await writer.commit(is_trial=trial is not None)
        for where, position in outcome.again.items():
            if where in self._read:
                self._seek(consumer, where, position)
            if not follow:
                self._ends[where] = self._progress.of(where).end
        for where, refusal in outcome.refused.items():
            if refusal.offset is None or refusal.offset <= outcome.again[where]:
                self._refuse(where, refusal.error)
            else:
                self._cuts[where] = refusal
        for where in sorted(outcome.suspects):
            self._refusals.suspect(where)
            self._is_stale = True
        if trial is not None and not outcome.again:
            self._refusals.clear(trial)
            self._is_stale = True

    def _refuse(self, where: TopicPartition, error: EventBusError) -> None:
        self._refusals.add(where, error)
        self._read.discard(where)  # it may be due again before others are read: then it is sought
        self._is_stale = True

    def _before_cut(self, records: FetchedRecords) -> FetchedRecords | None:
        """Return the records before the one that the destination refuses. The partition waits after they are copied."""
        where = TopicPartition(records.topic, records.partition)
        cut = self._cuts.get(where)
        if cut is None or cut.offset is None or records.offsets[-1] < cut.offset:
            return records
        del self._cuts[where]
        self._refuse(where, cut.error)
        self._progress.of(where).position = cut.offset
        return _part_until(records, cut.offset)

    def _end_empty_trial(self, *, has_records: bool) -> None:
        """End the separate try of a partition without records, so that the others need not wait."""
        trial = self._refusals.next_trial()
        if trial is None or has_records or self._is_stale:
            return
        if not self._progress.of(trial).lag:
            self._refusals.clear(trial)
            self._is_stale = True
        elif self._timers.current_time() - self._tried_since > _TRIAL_SECONDS:
            error = RequestTimedOut(f"nothing has come from the source for {_TRIAL_SECONDS:.0f} s")
            self._refuse(trial, refusal_of(error, trial, self._next[trial]))

    def _wait_ms(self, writer: Writer, now: float) -> int:
        if writer.count or self._passed:
            return _COMPANY_MS
        return min(max(int((self._look_at - now) * 1000), 1), _IDLE_MS)

    def _is_sound(self, records: FetchedRecords) -> bool:
        """True if these are records of the mirrored topic, and not of a new topic with its name."""
        where = TopicPartition(records.topic, records.partition)
        if where not in self._read or where.topic in self._doubtful:
            return False
        if records.offsets[0] < self._next[where]:
            self._revoked(where)
            return False
        if records.offsets[0] > self._next[where]:
            self._gaps.append((where, self._next[where], records.offsets[0]))
        self._passed.clear()
        self._next[where] = self._progress.of(where).position = records.next_offset
        return True

    def _note_reached(self) -> None:
        self._ends = {
            where: end
            for where, end in self._ends.items()
            if self._progress.of(where).position < end
            and where.topic not in self._progress.problems
            and not self._refusals.waits(where)
        }

    async def _note_positions(self, consumer: BackendConsumer) -> None:
        """Detect markers and aborted records that were passed."""
        for where, position in self._passed.items():
            self._progress.of(where).position = position
        self._note_reached()
        held = set(consumer.assignment()) & self._read
        behind = [one for one in held if self._progress.of(one).lag and one.topic not in self._doubtful]
        self._passed = {where: await consumer.position(where) for where in behind}
        self._passed = {at: where for at, where in self._passed.items() if where > self._progress.of(at).position}


def _partitions(topic: TopicDescription) -> list[TopicPartition]:
    return [TopicPartition(topic.name, one.partition) for one in topic.partitions]


def _part_until(records: FetchedRecords, offset: int) -> FetchedRecords | None:
    """Return the records before ``offset``; None if there are none."""
    end = bisect_left(records.offsets, offset)
    if not end:
        return None
    return msgspec.structs.replace(
        records,
        offsets=records.offsets[:end],
        timestamps_ms=records.timestamps_ms[:end],
        keys=records.keys[:end],
        values=records.values[:end],
        headers=None if records.headers is None else records.headers[:end],
        next_offset=offset,
    )

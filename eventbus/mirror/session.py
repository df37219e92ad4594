"""One life of a mirror as a writer: from taking its transactional id to its end, or to the first trouble."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import anyio
import msgspec

from eventbus.backends.base import EARLIEST, Backend, BackendConsumer
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.client.running.single_error import SingleError
from eventbus.errors import KafkaError, ProducerFenced, RequestTimedOut, TopicAlreadyExists, UnknownTopicOrPartition
from eventbus.ledger import ends_of
from eventbus.mirror.group_offsets import GroupOffsets
from eventbus.mirror.journal import READER, Entry, Journal, TopicState, create_journal
from eventbus.mirror.options import Options
from eventbus.mirror.plan import TopicPlan, by_name, own_configs, plan_topic
from eventbus.mirror.progress import Progress
from eventbus.mirror.writer import Writer
from eventbus.types import FetchedRecords, TopicPartition

logger = logging.getLogger("eventbus.mirror")

_RECORDS = 100_000
_BYTES = 33_554_432
_FEWEST_RECORDS = 100
_FEWEST_BYTES = 65_536
_SECONDS = 1.0
"""A transaction is committed when it has so many records, so many bytes, or is so old; or when there are no more."""
_COMPANY_MS = 10
"""How long an open transaction waits for more records."""
_IDLE_MS = 500
_STALL_SECONDS = 60.0
_FETCH_BYTES = 1_048_576


class Superseded(ProducerFenced):
    """Another mirror of the name has begun since: stop this one."""


class Session:
    """Reads the source, writes the destination and its journal."""

    def __init__(
        self,
        source: Backend,
        destination: Backend,
        options: Options,
        progress: Progress,
        *,
        owner: str,
        has_begun: bool,
        attempt: int,
    ) -> None:
        """``owner``: the run whose session this is; ``has_begun``: the journal has said so.

        ``attempt``: so many sessions before have not come far; transactions get smaller, for links that are slow.
        """
        self._source = source
        self._destination = destination
        self._options = options
        self._progress = progress
        self._owner = owner
        self.has_begun = has_begun
        self._most_records = max(_RECORDS >> attempt, _FEWEST_RECORDS)
        self._most_bytes = max(_BYTES >> attempt, _FEWEST_BYTES)
        self._timers = destination.timers
        self._journal = Journal(options.name)
        self._groups = GroupOffsets(source, destination, self._journal, options, progress)
        self._read: set[TopicPartition] = set()
        self._doubtful: set[str] = set()
        """Topics that may have been deleted, and made anew: nothing of them is taken until that is known."""
        self._ends: dict[TopicPartition, int] = {}
        """Where copying ends, unless it follows; of partitions that are not there yet."""
        self._next: dict[TopicPartition, int] = {}
        """The offset behind what was read last."""
        self._passed: dict[TopicPartition, int] = {}
        """The consumer's positions after it had nothing to give: true if it has nothing the next time either."""
        self._only: set[str] | None = None
        """Unless it follows: the topics there were at the start."""
        self._gaps: list[tuple[TopicPartition, int, int]] = []
        """Offsets passed without a record since the last look: nothing for readers, or deleted before they came."""
        self._look_at = 0.0

    async def run(self, *, follow: bool) -> None:
        """Until cancelled, or until everything is copied that is there now.

        Topics that cannot be mirrored stand in the progress' ``problems``. Raises ProducerFenced when another mirror of
        the name has begun.
        """
        if self.has_begun:  # before the transactional id is taken: another mirror's transactions go on
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
            anew = [topic for topic in self._options.again if topic in self._journal.topics]
            forgotten = [entry for topic in anew for entry in self._journal.forget(topic)]
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
        """What has changed at the source: topics, partitions, configs, groups. Between transactions."""
        described = {one.name: one for one in await self._describe() if self._only is None or one.name in self._only}
        there = by_name(await self._destination.describe_topics())
        problems = self._progress.problems
        plans = self._plan(described, there)
        if refused := {plan.topic for plan in plans if plan.action == "refuse"}:
            # Kafka tells a topic's id first, and its partitions' ends when they are asked: where it was made anew in
            # between, these are the new one's. By its id now it is known whose ends they were.
            ids = {one.name: one.topic_id for one in await self._describe()}
            for name in refused:
                topic = described.pop(name)
                if name in ids:
                    described[name] = msgspec.structs.replace(topic, topic_id=ids[name])
            plans = self._plan(described, there)
        for gone in {where.topic for where in self._progress.partitions} - described.keys() - problems.keys():
            self._give_up(gone, f"topic {gone!r} was deleted at the source; its copy stays as it is")
        entries: list[Entry] = []
        for plan in plans:
            if plan.action == "refuse":
                self._give_up(plan.topic, plan.reason)
            else:
                entries += await self._prepare(plan, described[plan.topic], there.get(plan.topic))
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
        except UnknownTopicOrPartition:  # one of those named, at least: which, the others tell
            described = await self._source.describe_topics()
        return [one for one in described if not one.is_internal and selection.takes(one.name)]

    def _give_up(self, topic: str, reason: str) -> None:
        logger.warning("%s", reason)
        self._progress.problems[topic] = reason

    async def _prepare(self, plan: TopicPlan, source: TopicDescription, there: TopicDescription | None) -> list[Entry]:
        """Make the destination's topic what it should be; what the journal is to say of it."""
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
            if stamps is not None and stamps.value == "LogAppendTime":  # the brokers' default
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
        """Read the partitions that are mirrored now, new ones from where the journal says."""
        ends = await self._ends_of(described, at_start=at_start)
        wanted: dict[TopicPartition, int] = {}
        for name, topic in described.items():
            if name in self._progress.problems:
                continue
            for one in topic.partitions:
                where = TopicPartition(name, one.partition)
                progress = self._progress.of(where)
                progress.end = ends.get(where, progress.end)
                self._note_lost(where, one.log_start_offset)
                wanted[where] = self._begin(where, one.log_start_offset)
        self._gaps.clear()
        doubtful, self._doubtful = self._doubtful, set()
        new = [where for where in sorted(wanted) if where not in self._read or where.topic in doubtful]
        if wanted.keys() != self._read:
            self._read = set()  # what is dropped now is not revoked
            await consumer.assign(sorted(wanted))
            self._read = set(wanted)
        for where in new:
            self._seek(consumer, where, wanted[where])

    def _begin(self, where: TopicPartition, log_start_offset: int) -> int:
        """Where to go on in a partition."""
        position = self._journal.maps[where].position
        if where not in self._read and 0 <= position < log_start_offset:
            self._say_lost(where, position, log_start_offset)
        return max(position, log_start_offset, 0)

    def _note_lost(self, where: TopicPartition, log_start_offset: int) -> None:
        """A reader that retention has overtaken goes on at the first record there is, without a word."""
        for gap, begin, end in self._gaps:
            if gap == where and begin < log_start_offset:
                self._say_lost(where, begin, min(end, log_start_offset))

    def _say_lost(self, where: TopicPartition, begin: int, end: int) -> None:
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
            return {}  # a partition without a leader: how far the others are behind can wait

    async def _prune(self, writer: Writer, described: dict[str, TopicDescription]) -> None:
        """Let the journal forget what neither side holds any more."""
        starts = {
            TopicPartition(name, one.partition): one.log_start_offset
            for name, topic in described.items()
            for one in topic.partitions
            if one.log_start_offset > 0 and TopicPartition(name, one.partition) in self._read
        }
        if not starts:
            return
        there = await self._destination.list_offsets(dict.fromkeys(starts, EARLIEST))
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
            fetched = await consumer.fetch(self._wait_ms(writer, now))
            if not fetched:
                await self._note_positions(consumer)
            elif not writer.count:
                began_at = timers.current_time()
            for records in fetched:
                if self._is_sound(records):
                    await writer.add(records)
            now = timers.current_time()
            self._note_reached()
            is_full = writer.count >= self._most_records or writer.size_bytes >= self._most_bytes
            has_all = not follow and not self._ends  # and maybe more: producers do not wait for a copy to end
            if writer.count and (is_full or has_all or now - began_at > _SECONDS or not fetched):
                moved_at = now
                for where, position in (await writer.commit()).items():
                    self._seek(consumer, where, position)
                    if not follow:
                        self._ends[where] = self._progress.of(where).end
            if not follow and now - moved_at > _STALL_SECONDS:
                raise RequestTimedOut(
                    f"nothing has come from the source for {_STALL_SECONDS:.0f} s, though there is more in "
                    f"{', '.join(map(str, sorted(self._ends)))}: has the partition no leader?"
                )

    def _wait_ms(self, writer: Writer, now: float) -> int:
        if writer.count or self._passed:
            return _COMPANY_MS
        return min(max(int((self._look_at - now) * 1000), 1), _IDLE_MS)

    def _is_sound(self, records: FetchedRecords) -> bool:
        """Whether these are records of the topic that is mirrored, and not of one made anew under its name."""
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
            if self._progress.of(where).position < end and where.topic not in self._progress.problems
        }

    async def _note_positions(self, consumer: BackendConsumer) -> None:
        """Markers and aborted records are passed without being seen."""
        for where, position in self._passed.items():
            self._progress.of(where).position = position
        self._note_reached()
        held = set(consumer.assignment()) & self._read
        behind = [one for one in held if self._progress.of(one).lag and one.topic not in self._doubtful]
        self._passed = {where: await consumer.position(where) for where in behind}
        self._passed = {at: where for at, where in self._passed.items() if where > self._progress.of(at).position}

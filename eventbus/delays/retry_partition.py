"""The entries of one retry partition, in memory: which of them may be handled, and what to commit of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from eventbus.delays.delay_queue import BLOCKED, DelayQueue, rank_of
from eventbus.delays.header_values import MAX_INT32, number_of
from eventbus.delays.retry_entry import RetryEntry, Source, SourcePartition, packed
from eventbus.delays.retry_records import (
    ATTEMPT,
    DONE,
    DUE,
    FIRST_FAILED,
    OWNER,
    ROOT,
    done_mark,
    place_of,
    read_mark,
    read_root,
    root_of,
)
from eventbus.recovery import EveryKey, Plan, RetryOrder
from eventbus.types import ConsumerRecord, FetchedRecords, TopicPartition

logger = logging.getLogger("eventbus.delays")

_MOST_STALE = 1000
"""The number of useless offsets of finished entries that are kept before they are removed."""


class RetryPartition:
    """A pure machine over the records of a retry partition. Not for several threads.

    The runner reads the partition from its committed offset on and adds everything. Then the state is that of the
    member that had the partition before. Offsets that were read are not read twice.

    1. An entry's place in its line is given by the offset of its record in the source. So a record that is tried again,
       and written again, keeps its place. To that end the runner calls `hold` for the record before `finish` of the
       entry: the place stays taken until the new entry is read. Each key has a line with order "key", and each source
       partition with order "partition". Records without a key are in no line of a key.
    2. A new entry of a record replaces the earlier entry, for which no mark is written: every reader reads the new
       entry as well. If the new entry was not tried more often, it is a copy, and is finished at once.
    3. Several groups may write to a topic. Entries and marks with another ``owner`` are skipped: that group reads the
       topic too. Records without an owner are taken.
    4. Records that are neither entries nor marks are skipped, and logged if ``logs_others``. A record without a valid
       root has no place in any line. An entry without other headers is due at once, and was tried once.
    5. ``topic_ids`` has the ids of the topics that the handler reads. An entry of a topic that was deleted is in a
       separate line from the topic that has this name now. An entry without an id belongs to the present topic.
    6. `release` and `unhold` forget records that were not written. A record that moved on is in the next entry, which
       only a new `RetryPartition` reads again.
    """

    def __init__(
        self,
        order: RetryOrder,
        *,
        owner: str | None = None,
        max_waiting: int = 200_000,
        max_bytes: int = 256 << 20,
        logs_others: bool = False,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self._order = order
        self._owner = owner
        self._owners = None if owner is None else frozenset((None, owner.encode()))
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._logs_others = logs_others
        self._topic_ids: Mapping[str, str] = {} if topic_ids is None else topic_ids
        self._queue = DelayQueue[RetryEntry]()
        self._open = self._queue.entries
        """Open entries by their offsets, which rise."""
        self._log: deque[int] = deque()
        """Offsets of entries from the first open entry on, including finished entries."""
        self._next = 0
        """Everything below it was read."""
        self._finished: set[int] = set()
        """Offsets that are finished, but not recorded in a mark or below a committed offset."""
        self._sources: dict[SourcePartition, Source] = {}
        self._bytes = 0
        self._buffer = bytearray()
        self._where = ""
        self._now_ms = 0

    # what is read ----------------------------------------------------------------------------------------------------

    def add(self, records: FetchedRecords) -> None:
        """Add records in the log's order: entries, marks of finished entries, and records of other programs."""
        self._where = f"{records.topic}-{records.partition}"
        headers, others = records.headers, list[int]()
        for index, offset in enumerate(records.offsets):
            if offset < self._next:
                continue
            given = () if headers is None else headers[index]
            found = dict(given)
            if self._owners is not None and found.get(OWNER) not in self._owners:
                continue
            root = read_root(found.get(ROOT))
            if root is not None:
                attempt = number_of(found.get(ATTEMPT), MAX_INT32)
                due_ms = number_of(found.get(DUE)) or 0
                # With LogAppendTime the timestamp is of the log's clock, and only the first failure is of ours.
                since_ms = max(records.timestamps_ms[index], number_of(found.get(FIRST_FAILED)) or 0)
                source = self._source(TopicPartition(root.topic, root.partition), root.topic_id)
                entry = RetryEntry(
                    rank_of(due_ms, offset),
                    BLOCKED,
                    max(due_ms - since_ms, 0),
                    offset,
                    1 if attempt is None else attempt,
                    source.partition,
                    place_of(root.offset, found),
                    records.keys[index],
                    packed(records.values[index], given, self._buffer),
                )
                self._enter(source, entry)
            elif DONE not in found or not self._mark(offset, records.values[index]):
                others.append(offset)
        if others and self._logs_others:
            logger.warning(
                "%s: %d record(s) of this retry topic are not handled, the first at offset %d. They are not "
                "entries, because they lack a valid header %r: another program wrote them. Send them to the topic that "
                "the handler reads",
                self._where, len(others), others[0], ROOT,
            )  # fmt: skip
        self._next = max(self._next, records.next_offset)

    def _enter(self, source: Source, entry: RetryEntry) -> None:
        place, key = entry.place, entry.key
        earlier = source.places.get(place)
        kept_for = source.coming.pop(place, None)
        if earlier is not None:
            if earlier.attempt >= entry.attempt:
                self._finished.add(entry.offset)
                return
            kept_for = earlier.key
            self._remove(earlier)
        if place in source.places and kept_for != key:
            self._leave(source, kept_for, place)
        is_new = place not in source.places
        source.places[place] = entry
        self._queue.add(entry)
        self._log.append(entry.offset)
        self._bytes += entry.size
        if not self._is_lined(key):
            self._ready(entry)
            return
        line = self._line(key)
        if is_new:
            source.join(line, place)
        if source.heads[line] == place:
            self._ready(entry)

    def _mark(self, offset: int, value: bytes | None) -> bool:
        """Read a mark; return False if the record is not a mark."""
        finished_offsets = read_mark(value)
        if finished_offsets is None:
            return False
        first = self._log[0] if self._log else offset
        for one in finished_offsets:
            # A mark is about earlier offsets; whatever it contains, only offsets that were read are considered.
            offsets = range(max(one.start, first), min(one.stop, offset))
            for finished in _among(offsets, self._open):
                self._mark_recorded(finished)
        return True

    @property
    def has_room(self) -> bool:
        """True if more may be added. Otherwise reading waits until some entries are finished.

        Also true if no entry can be handled: then they wait for something that is still to be read.
        """
        if len(self._open) < self._max_waiting and self._bytes < self._max_bytes:
            return True
        return not self._queue.taken and self.next_due_ms() is None

    # what may go -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of entries that are not finished, with those that are being handled."""
        return len(self._open)

    def depth(self) -> int:
        """Return the number of records that are neither handled nor given up: in an entry, or in flight."""
        return sum(len(source.places) for source in self._sources.values())

    def next_due_ms(self) -> int | None:
        """Return when the next entry that can be handled is due, or None if there is none."""
        return self._queue.next_due_ms()

    def correct(self, now_ms: int) -> None:
        """Correct due times, see `DelayQueue.correct`. They are not written: the next reader corrects them again."""
        self._queue.correct(now_ms, self._where)

    def take(self, now_ms: int, most: int) -> Sequence[RetryEntry]:
        """Return entries that are due and not blocked, in the order of their times. `finish` or `put_back` each."""
        self._now_ms = now_ms
        self.correct(now_ms)
        return self._queue.take(now_ms, most)

    def put_back(self, entry: RetryEntry) -> None:
        """Return an entry that was taken and not handled."""
        self._queue.put_back(entry)

    def finish(self, entry: RetryEntry) -> None:
        """Finish an entry that was handled or moved on. Its lane's next entry is unblocked, unless it will wait
        again."""
        known = self._known(entry)
        if known is not None:
            self._close(known)
            self._finished.add(known.offset)

    # what is committed -----------------------------------------------------------------------------------------------

    def plan(self, also: Collection[RetryEntry] = ()) -> Plan | None:
        """Return what to commit, or None if nothing has finished since the last `stored`.

        The plan is made as if the entries in ``also`` had finished too. Call `finish` for them when it is stored.
        """
        finished = self._finished.union(known.offset for entry in also if (known := self._known(entry)) is not None)
        if not finished:
            return None
        next_offset = self._first_open(finished)
        finished_offsets = sorted(offset for offset in finished if offset >= next_offset)
        return Plan(next_offset, done_mark(finished_offsets, self._owner) if finished_offsets else None)

    def stored(self, plan: Plan) -> None:
        """Record that the transaction of the plan is committed."""
        self._finished = {offset for offset in self._finished if offset >= plan.next_offset}
        log = self._log
        while log and log[0] < plan.next_offset:
            self._mark_recorded(log.popleft())
        for offsets in () if plan.done is None else read_mark(plan.done.value) or ():
            for offset in offsets:
                self._finished.discard(offset)
                self._mark_recorded(offset)

    def _mark_recorded(self, offset: int) -> None:
        entry = self._open.get(offset)
        if entry is not None:
            self._close(entry)

    def _first_open(self, finished: Collection[int]) -> int:
        """Return the lowest offset of an open entry that is not in ``finished``."""
        log = self._log
        while log and log[0] not in self._open:
            log.popleft()
        # A single entry waits long, and many later entries are finished.
        if len(log) > 2 * len(self._open) + _MOST_STALE:
            log = self._log = deque(self._open)
        return next((offset for offset in log if offset in self._open and offset not in finished), self._next)

    # what source partitions ask --------------------------------------------------------------------------------------

    def holds(self, source: TopicPartition) -> Collection[bytes | None] | None:
        """Return a live view of the keys whose records must wait for earlier records of ``source``.

        With order "partition" it is an `EveryKey`: the partition waits as a whole, in its place. None: nothing waits.
        """
        if self._order == "none":
            return None
        watched = self._source(source)
        watched.is_watched = True
        if self._order == "partition":
            return EveryKey(lambda: bool(watched.heads))
        return watched.heads.keys()

    def hold(self, record: ConsumerRecord) -> None:
        """Block the key of ``record``, which is being written to this partition, for later records of its source."""
        source = self._source_of(record)
        place, key = _place_of(record), record.key
        source.coming[place] = key
        if place not in source.places:
            source.places[place] = None
            if self._is_lined(key):
                source.join(self._line(key), place)

    def unhold(self, record: ConsumerRecord) -> None:
        """Forget a record that is not written after all. No effect if `hold` was not called for it."""
        source = self._source_of(record)
        if (place := _place_of(record)) in source.coming:
            self._do_not_wait_for(source, place)
        self._drop_empty(source)

    def release(self, source: TopicPartition) -> None:
        """Forget the records of a source partition for which `hold` was called. The partition was revoked."""
        for released in [one for one in self._sources.values() if one.partition.topic_partition == source]:
            for place in list(released.coming):
                self._do_not_wait_for(released, place)
            self._drop_empty(released)

    # parts -----------------------------------------------------------------------------------------------------------

    def _is_lined(self, key: bytes | None) -> bool:
        return self._order == "partition" or (self._order == "key" and key is not None)

    def _line(self, key: bytes | None) -> bytes | None:
        return key if self._order == "key" else None

    def _known(self, entry: RetryEntry) -> RetryEntry | None:
        """Return the entry if it is one of ours and not finished."""
        return entry if self._open.get(entry.offset) is entry else None

    def _source(self, topic_partition: TopicPartition, topic_id: str = "") -> Source:
        partition = SourcePartition(topic_partition, topic_id or self._topic_ids.get(topic_partition.topic, ""))
        source = self._sources.get(partition)
        if source is None:
            source = self._sources[partition] = Source(partition)
        return source

    def _source_of(self, record: ConsumerRecord) -> Source:
        root = root_of(record)  # of an entry that is written again: its topic may have been deleted since
        return self._source(record.topic_partition, "" if root is None else root.topic_id)

    def _drop_empty(self, source: Source) -> None:
        if not source.places and not source.is_watched:
            self._sources.pop(source.partition, None)

    def _do_not_wait_for(self, source: Source, place: int) -> None:
        key = source.coming.pop(place)
        if source.places[place] is None:
            self._leave(source, key, place)

    def _leave(self, source: Source, key: bytes | None, place: int) -> None:
        head = source.leave(self._line(key), place)
        if head is not None:
            self._ready(head)

    def _close(self, entry: RetryEntry) -> None:
        """Close a finished entry: the next entry of its line may be handled, unless this one comes again."""
        self._remove(entry)
        source, place = self._sources[entry.source], entry.place
        if place in source.coming:
            source.places[place] = None
        else:
            self._leave(source, entry.key, place)
            self._drop_empty(source)

    def _remove(self, entry: RetryEntry) -> None:
        self._queue.remove(entry)
        self._bytes -= entry.size

    def _ready(self, entry: RetryEntry) -> None:
        if entry.attempt == 0:  # it only waited for another entry, and is due now
            entry.due_ms = self._now_ms
        self._queue.unblock(entry)


def _place_of(record: ConsumerRecord) -> int:
    return place_of(record.offset, dict(record.headers))


def _among(offsets: range, known: Collection[int]) -> list[int]:
    """Return the members of ``known`` that are in ``offsets``, in the time of the smaller collection."""
    if len(offsets) <= len(known):
        return [offset for offset in offsets if offset in known]
    return [offset for offset in known if offset in offsets]

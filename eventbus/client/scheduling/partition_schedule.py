"""The scheduled records of one partition, and the records to write about them. Pure: times are arguments.

All processes read the partition in order, including one that takes it over. A record counts until there is a tombstone
of its key. Records that were `read` are only decided on by `settle`, which the partition's owner calls once it has read
everything that the partition held when it was taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from eventbus.client.scheduling.entries import Cancel, Entry, Every, Item, decode, encode, id_of, key_of, outcome
from eventbus.delays.delay_queue import BLOCKED, PLAUSIBLE_MS, DelayQueue, Due, rank_of
from eventbus.types import Headers

HELD_BYTES = 64 << 20
"""Limit of the scheduled values kept in memory. Others are read again when they are due."""
_NEVER_READ = 1 << 62
"""Stands for the offset of an entry that we wrote and have not read back yet."""
_MOST_ERROR_CHARS = 500


class Pending(Due):
    """An entry that waits: a record, a request to cancel one, or the next firing of a function."""

    key: bytes
    id: str
    offset: int
    size: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """Size of the value in bytes."""
    item: Item | None
    """None if it is not kept in memory, and must be read again at its offset."""
    is_dead: bool = False

    def corrected_ms(self, now_ms: int) -> int | None:
        """Return the corrected due time, or None if it is plausible.

        For a function, a next time before 2020 is wrong too: with ``missed="all"`` it would fire for each second since.
        """
        if not isinstance(self.item, Every):
            return super().corrected_ms(now_ms)
        table = self.item.timetable
        is_wrong = table.too_far(self.due_ms, now_ms) or self.due_ms < PLAUSIBLE_MS <= now_ms
        return table.after(now_ms) if is_wrong else None


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduled call of a function decorated with ``@bus.every``."""

    name: str
    """The name of the function."""
    scheduled_ms: int
    """The scheduled time, in milliseconds since the epoch."""
    next_ms: int
    """The next scheduled time."""


Place = tuple[str, int | None]
"""A topic, and the partition that a record names. None means the whole topic."""


class Delivery(NamedTuple):
    """A record to write to its topic, with the time of its delivery or its own timestamp."""

    pending: Pending
    entry: Entry
    timestamp_ms: int

    @property
    def places(self) -> tuple[Place, Place]:
        entry = self.entry
        return (entry.topic, None), (entry.topic, entry.partition)


class Writes(NamedTuple):
    """The records to write in one transaction."""

    due: Sequence[Pending]
    deliveries: list[Delivery]
    own: dict[bytes, tuple[bytes | None, Headers]]
    """Records to write to the partition itself, by key. None is a tombstone."""
    following: list[Pending]
    """The next firings, which are also in ``own``."""


class PartitionSchedule:
    """The scheduled records of one partition.

    ``new_token`` creates tokens for the keys of entries; ``held_bytes`` limits the values kept in memory.
    """

    def __init__(self, new_token: Callable[[], str], *, held_bytes: int = HELD_BYTES) -> None:
        self._new_token = new_token
        self._most_held_bytes = held_bytes
        self.held_bytes = 0
        self._unread: dict[bytes, Pending] = {}
        """Entries that were read but not settled yet, in order."""
        self._by_id: dict[str, Pending] = {}
        self._queue = DelayQueue[Pending]()
        self._count = 0
        """Number of the last entry. It orders entries that we write, which have no offset yet."""
        self._owed: dict[bytes, tuple[bytes | None, Headers]] = {}
        """Decisions that are not written yet, by key."""
        self._behind: set[bytes] = set()
        """Keys of entries that we wrote and completed before either record was read back."""

    # what is read ----------------------------------------------------------------------------------------------------

    def read(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        """Process a record of the partition. Records with foreign keys are skipped."""
        id = id_of(key)
        if key is None or id is None:
            return
        if value is None:
            self._drop_unread(key)
            self._owed.pop(key, None)
            self._behind.discard(key)
            if (known := self._known(id, key)) is not None:
                self._forget(known)
        elif (known := self._known(id, key)) is not None:
            known.offset = offset  # we wrote it
        elif key not in self._behind:
            item = decode(value)
            if item is None:
                return
            due_ms = item.asked_ms if isinstance(item, Cancel) else item.due_ms
            self._drop_unread(key)
            is_dead = isinstance(item, Entry) and bool(item.error)
            delay_ms = item.delay_ms if isinstance(item, Entry) and not is_dead else None
            held = self._held(item, len(value))
            self._unread[key] = Pending(
                self._rank(due_ms), BLOCKED, delay_ms, key, id, offset, len(value), held, is_dead
            )  # fmt: skip

    def _rank(self, due_ms: int) -> int:
        self._count += 1
        return rank_of(due_ms, self._count)

    def _known(self, id: str, key: bytes) -> Pending | None:
        known = self._by_id.get(id)
        return known if known is not None and known.key == key else None

    def _held(self, item: Item, size: int) -> Item | None:
        """Return the entry, or None if its value is too large to be kept in memory."""
        if not isinstance(item, Entry):
            return item
        if self.held_bytes + size > self._most_held_bytes:
            return None
        self.held_bytes += size
        return item

    def _drop_unread(self, key: bytes) -> None:
        one = self._unread.pop(key, None)
        if one is not None:
            self._release(one)

    def settle(self) -> None:
        """Decide on all entries that were read."""
        unread, self._unread = self._unread, {}
        for one in unread.values():
            known = self._by_id.get(one.id)
            if isinstance(one.item, Cancel):
                self._owed[one.key] = None, outcome("gone" if known is None else "cancelled")
                if known is not None:
                    self._give_up(known, outcome("cancelled"))
            elif known is not None and not _goes_before(one, known):
                self._owed[one.key] = None, outcome("replaced")
            else:
                if known is not None:
                    self._give_up(known, outcome("replaced"))
                self._enter(one)

    def correct(self, now_ms: int, where: str = "") -> list[Pending]:
        """Correct implausible due times; see `DelayQueue.correct`. They are written, or each restart would delay them
        again.
        """
        corrected = self._queue.correct(now_ms, where)
        for one in corrected:
            if isinstance(one.item, Every):
                one.item = msgspec.structs.replace(one.item, due_ms=one.due_ms, armed=True)
            elif isinstance(one.item, Entry):
                one.item = msgspec.structs.replace(one.item, due_ms=one.due_ms)
            if one.item is not None:  # otherwise the next owner corrects it
                self._owed[one.key] = encode(one.item), ()
                one.offset = _NEVER_READ  # if delivered before it is read back, it must not be delivered again
        return corrected

    def _enter(self, one: Pending) -> None:
        self._by_id[one.id] = one
        self._queue.add(one)
        if not one.is_dead:
            self._queue.unblock(one)

    def _give_up(self, one: Pending, why: Headers) -> None:
        self._forget(one)
        self._owed[one.key] = None, why

    def _forget(self, one: Pending) -> None:
        if self._by_id.get(one.id) is one:
            del self._by_id[one.id]
            self._queue.remove(one)
            self._release(one)

    def _release(self, one: Pending) -> None:
        if isinstance(one.item, Entry):
            self.held_bytes -= one.size
            one.item = None

    # what is due -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of waiting entries that can be delivered."""
        return len(self._by_id) - self.dead

    def __iter__(self) -> Iterator[Pending]:
        """Iterate over all entries, including those that cannot be delivered."""
        return iter(self._by_id.values())

    @property
    def dead(self) -> int:
        """Number of records that cannot be delivered."""
        return sum(one.is_dead for one in self)

    def next_due_ms(self) -> int | None:
        return self._queue.next_due_ms()

    @property
    def owes(self) -> bool:
        """True if decisions are not written yet."""
        return bool(self._owed)

    def take(self, now_ms: int, most: int, most_bytes: int) -> list[Pending]:
        """Take due entries, earliest first. Call `stored` or `put_back` afterwards."""
        return self._queue.take(now_ms, most, most_bytes)

    def put_back(self, due: Iterable[Pending]) -> None:
        """Return entries that were probably not delivered."""
        for one in due:
            self._queue.put_back(one)

    def die(self, one: Pending, item: Entry, error: str) -> None:
        """Mark an entry as undeliverable. It stays in the schedule with its error."""
        self._release(one)
        one.is_dead, one.delay_ms = True, None
        self._queue.block(one)
        self._owed[one.key] = encode(msgspec.structs.replace(item, error=error[:_MOST_ERROR_CHARS])), ()

    def writes(self, due: Sequence[Pending], items: Sequence[Item], now_ms: int, most_owed: int) -> Writes:
        """Return the transaction that delivers ``due``, with contents ``items``, plus decisions not written yet."""
        deliveries: list[Delivery] = []
        following: list[Pending] = []
        own = {key: self._owed[key] for key, _ in zip(self._owed, range(most_owed), strict=False)}
        for one, item in zip(due, items, strict=True):
            own[one.key] = None, outcome("delivered")
            if isinstance(item, Every):
                turn = item.timetable.turn(item.due_ms, now_ms)
                for scheduled_ms, next_ms in pairwise([*turn.firings_ms, turn.next_ms]):
                    firing = Firing(name=item.name, scheduled_ms=scheduled_ms, next_ms=next_ms)
                    entry = Entry(scheduled_ms, item.topic, 0, None, msgspec.json.encode(firing))
                    deliveries.append(Delivery(one, entry, now_ms))
                after = msgspec.structs.replace(item, due_ms=turn.next_ms, armed=True)
                data, key = encode(after), key_of(one.id, self._new_token())
                own[key] = data, ()
                rank = self._rank(turn.next_ms)
                following.append(Pending(rank, BLOCKED, None, key, one.id, _NEVER_READ, len(data), after))
            elif isinstance(item, Entry):
                deliveries.append(Delivery(one, item, now_ms if item.timestamp_ms is None else item.timestamp_ms))
        return Writes(due, deliveries, own, following)

    def stored(self, writes: Writes) -> None:
        """Apply a transaction that was committed."""
        for one in writes.due:
            self._forget(one)
            # The next firing came before this one was read back. Read later, it would fire again.
            if one.offset == _NEVER_READ:
                self._behind.add(one.key)
        for key in writes.own:
            self._owed.pop(key, None)
        for one in writes.following:
            self._enter(one)


def _goes_before(new: Pending, known: Pending) -> bool:
    """True if the new entry replaces the known one: the later one does, with an exception for functions.

    A service's new declaration of a function counts only if its times differ, and the next firing that was written
    along with the previous one takes precedence over an earlier declaration.
    """
    if not isinstance(new.item, Every) or not isinstance(known.item, Every):
        return True
    if new.item.is_same(known.item):
        return new.item.armed
    return not new.item.armed or known.item.armed

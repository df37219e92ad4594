"""What waits in one partition of scheduled records, and what is to be written about it: a machine without a clock.

All that has a say reads the partition in its order, and so does whoever takes it over: a record counts as long as
there is no tombstone of its key. Nothing is decided about what was `read` before `settle`, which its owner calls once
everything is read that stood there when it took the partition over.
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
"""Of records that wait, kept in memory; the others are read again when they are due."""
_NEVER_READ = 1 << 62
"""Stands for the offset of what was written by ourselves, and was not read back."""
_MOST_ERROR_CHARS = 500


class Pending(Due):
    """Something that waits: a record, a request to cancel one, or the next firing of a function."""

    key: bytes
    id: str
    offset: int
    size: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """Of its value, in bytes."""
    item: Item | None
    """None: it is to be read again, at its offset."""
    is_dead: bool = False

    def corrected_ms(self, now_ms: int) -> int | None:
        """A next time of a function before 2020 is wrong too: with ``missed="all"`` each second since would fire."""
        if not isinstance(self.item, Every):
            return super().corrected_ms(now_ms)
        table = self.item.timetable
        is_wrong = table.too_far(self.due_ms, now_ms) or self.due_ms < PLAUSIBLE_MS <= now_ms
        return table.after(now_ms) if is_wrong else None


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """One time of a function that is decorated with ``@bus.every``."""

    name: str
    """The function's."""
    scheduled_ms: int
    """The time it was meant for, in milliseconds since the epoch."""
    next_ms: int
    """The time of the next one."""


Place = tuple[str, int | None]
"""A topic, and the partition that a record names. None: the whole topic."""


class Delivery(NamedTuple):
    """A record to be written to its topic, with the time of its delivery or its own."""

    pending: Pending
    entry: Entry
    timestamp_ms: int

    @property
    def places(self) -> tuple[Place, Place]:
        entry = self.entry
        return (entry.topic, None), (entry.topic, entry.partition)


class Writes(NamedTuple):
    """What is to be written in one transaction."""

    due: Sequence[Pending]
    deliveries: list[Delivery]
    own: dict[bytes, tuple[bytes | None, Headers]]
    """Into the partition itself, by key; None: a tombstone."""
    following: list[Pending]
    """The next firings, which are among ``own``."""


class Agenda:
    """``new_token`` makes the keys of what it writes; ``held_bytes`` bounds what it keeps in memory of values."""

    def __init__(self, new_token: Callable[[], str], *, held_bytes: int = HELD_BYTES) -> None:
        self._new_token = new_token
        self._most_held_bytes = held_bytes
        self.held_bytes = 0
        self._unread: dict[bytes, Pending] = {}
        """Read, and not settled yet, in their order."""
        self._by_id: dict[str, Pending] = {}
        self._queue = DelayQueue[Pending]()
        self._count = 0
        """The number of the last entry. Entries that we write have no offset yet."""
        self._owed: dict[bytes, tuple[bytes | None, Headers]] = {}
        """What is decided and not yet written, by key."""
        self._behind: set[bytes] = set()
        """Keys of ours that were written and are over, before either was read back."""

    # what is read ----------------------------------------------------------------------------------------------------

    def read(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        """A record of the partition. Those that are not ours are skipped."""
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
            known.offset = offset  # written by ourselves
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
        """It, or None for a record that is too much to be kept in memory."""
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
        """Decide about all that was read."""
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
        """See `DelayQueue.correct`. The new times are written, else each restart would put a firing off once more."""
        corrected = self._queue.correct(now_ms, where)
        for one in corrected:
            if isinstance(one.item, Every):
                one.item = msgspec.structs.replace(one.item, due_ms=one.due_ms, armed=True)
            elif isinstance(one.item, Entry):
                one.item = msgspec.structs.replace(one.item, due_ms=one.due_ms)
            if one.item is not None:  # else the next owner corrects it
                self._owed[one.key] = encode(one.item), ()
                one.offset = _NEVER_READ  # delivered before it is read back, it must not be delivered again then
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
        """How much waits, without what cannot be delivered."""
        return len(self._by_id) - self.dead

    def __iter__(self) -> Iterator[Pending]:
        """All of it, also what cannot be delivered."""
        return iter(self._by_id.values())

    @property
    def dead(self) -> int:
        """Records that cannot be delivered."""
        return sum(one.is_dead for one in self)

    def next_due_ms(self) -> int | None:
        return self._queue.next_due_ms()

    @property
    def owes(self) -> bool:
        """Something is decided and not yet written."""
        return bool(self._owed)

    def take(self, now_ms: int, most: int, most_bytes: int) -> list[Pending]:
        """What is due, the earliest first; then `stored`, or `put_back`."""
        return self._queue.take(now_ms, most, most_bytes)

    def put_back(self, due: Iterable[Pending]) -> None:
        """They were not delivered, as far as one knows."""
        for one in due:
            self._queue.put_back(one)

    def die(self, one: Pending, item: Entry, error: str) -> None:
        """It cannot be delivered, and is kept with its error."""
        self._release(one)
        one.is_dead, one.delay_ms = True, None
        self._queue.block(one)
        self._owed[one.key] = encode(msgspec.structs.replace(item, error=error[:_MOST_ERROR_CHARS])), ()

    def writes(self, due: Sequence[Pending], items: Sequence[Item], now_ms: int, most_owed: int) -> Writes:
        """The transaction that delivers them, with what else is to be written. ``items``: theirs."""
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
        """The transaction is committed."""
        for one in writes.due:
            self._forget(one)
            if one.offset == _NEVER_READ:  # a firing followed sooner than it was read: read then, it would fire again
                self._behind.add(one.key)
        for key in writes.own:
            self._owed.pop(key, None)
        for one in writes.following:
            self._enter(one)


def _goes_before(new: Pending, known: Pending) -> bool:
    """The later one, but for a function's times: there what its service has declared anew counts only if they differ,
    and the next firing as it was written with the one before counts before an earlier declaration."""
    if not isinstance(new.item, Every) or not isinstance(known.item, Every):
        return True
    if new.item.is_same(known.item):
        return new.item.armed
    return not new.item.armed or known.item.armed

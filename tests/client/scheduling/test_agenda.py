"""The machine: whatever is sent, cancelled, delivered, lost and taken over, a record comes once, in time, in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.client.scheduling.entries import OUTCOME, Cancel, Entry, Every, Item, decode, encode, id_of, key_of
from eventbus.client.scheduling.partition_schedule import PartitionSchedule, Pending, Writes
from eventbus.client.scheduling.timetable import Timetable

Stored = tuple[bytes, bytes | None, Any]


class Partition:
    """A partition of scheduled records: its contents, its owner, and what was delivered."""

    def __init__(self, held_bytes: int = 1 << 20) -> None:
        self.records: list[Stored] = []
        self.delivered: list[tuple[int, int, str]] = []
        """The time of delivery, the due time, and the value."""
        self.tokens = map(str, itertools.count())
        self._held_bytes = held_bytes
        self.take_over()

    def put(self, id: str, item: Item) -> bytes:
        key = key_of(id, next(self.tokens))
        self.records.append((key, encode(item), ()))
        return key

    def take_over(self) -> None:
        self.schedule = PartitionSchedule(lambda: next(self.tokens), held_bytes=self._held_bytes)
        self.read_to = 0

    def compact(self) -> None:
        """Compact as the log may at any time: keep only the last record of each key, and drop tombstones."""
        last = {key: at for at, (key, _, _) in enumerate(self.records)}
        self.records = [
            one if one[1] is None or last[one[0]] == at else (one[0], None, ()) for at, one in enumerate(self.records)
        ]

    def read(self) -> None:
        for offset in range(self.read_to, len(self.records)):
            key, value, _ = self.records[offset]
            self.schedule.read(key, value, offset)
        self.read_to = len(self.records)
        self.schedule.settle()

    def item(self, one: Pending) -> Item:
        """Return the item of a pending entry, reading it again if necessary."""
        if one.item is not None:
            return one.item
        key, value, _ = self.records[one.offset]
        found = decode(value or b"")
        assert key == one.key and found is not None
        return found

    def begin(self, now_ms: int, most: int = 3) -> Writes:
        due = self.schedule.take(now_ms, most, 1 << 20)
        return self.schedule.writes(due, [self.item(one) for one in due], now_ms, 1000)

    def commit(self, writes: Writes, now_ms: int) -> None:
        for one in writes.deliveries:
            self.delivered.append((now_ms, one.pending.due_ms, (one.entry.value or b"").decode()))
        self.records += [(key, value, headers) for key, (value, headers) in writes.own.items()]

    def step(self, now_ms: int) -> bool:
        self.read()
        writes = self.begin(now_ms)
        if not writes.own:
            return False
        self.commit(writes, now_ms)
        self.schedule.stored(writes)
        return True

    def outcome(self, request: bytes) -> bytes | None:
        for key, value, headers in self.records:
            if key == request and value is None:
                return dict(headers).get(OUTCOME)
        return None

    def live(self) -> Iterator[str]:
        over = {key for key, value, _ in self.records if value is None}
        return (id_of(key) or "" for key, value, _ in self.records if value is not None and key not in over)


def entry(due_ms: int, what: str) -> Entry:
    return Entry(due_ms, "t", None, None, what.encode())


def values(partition: Partition) -> list[str]:
    return [what for _, _, what in partition.delivered]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 50), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("time"), st.integers(0, 30)),
        st.tuples(st.just("step")),
        st.tuples(st.just("abort")),
        st.tuples(st.just("die before the commit")),
        st.tuples(st.just("die behind the commit")),
        st.tuples(st.just("not know")),
    ),
    max_size=60,
)


@pytest.mark.system
@given(STEPS, st.sampled_from([0, 60, 1 << 20]))
@settings(max_examples=300)
def test_once_in_time_in_order_and_never_lost(steps: list[tuple[Any, ...]], held_bytes: int) -> None:
    partition, now_ms, number = Partition(held_bytes), 0, itertools.count()
    sent: dict[str, list[str]] = {}
    due: dict[str, int] = {}
    requests: list[bytes] = []
    for name, *given_ in steps:
        match name, *given_:
            case "send", after_ms, which:
                what = f"{which}/{next(number)}"
                partition.put(f"id-{which}", entry(now_ms + after_ms, what))
                sent.setdefault(f"id-{which}", []).append(what)
                due[what] = now_ms + after_ms
            case "cancel", which:
                requests.append(partition.put(f"id-{which}", Cancel(now_ms)))
            case "time", passed_ms:
                now_ms += passed_ms
            case "step", *_:
                partition.step(now_ms)
            case _:
                partition.read()
                writes = partition.begin(now_ms)
                if "behind" in name or (name == "not know" and now_ms % 2):
                    partition.commit(writes, now_ms)
                if name.startswith("die"):
                    partition.take_over()
                else:
                    partition.schedule.put_back(writes.due)
    now_ms += 1000
    while partition.step(now_ms):
        pass
    assert all(when >= due_ms for when, due_ms, _ in partition.delivered), "never early"
    assert all(due[what] == due_ms for _, due_ms, what in partition.delivered)
    assert len(set(values(partition))) == len(partition.delivered), "never twice"
    assert not [*partition.live()], "all is over"
    assert partition.schedule.held_bytes == 0 and len(partition.schedule) == 0
    cancelled = sum(partition.outcome(one) == b"cancelled" for one in requests)
    replaced = [key for key, _, headers in partition.records if dict(headers).get(OUTCOME) == b"replaced"]
    assert all(partition.outcome(one) in (b"cancelled", b"gone") for one in requests), "each request is answered"
    given_up = {key for key, _, headers in partition.records if dict(headers).get(OUTCOME) == b"cancelled"}
    assert len(given_up - set(requests)) == cancelled, "an answer is true"
    assert len(partition.delivered) + cancelled + len(set(replaced)) == sum(map(len, sent.values())), "never lost"


@given(st.lists(st.integers(0, 100), max_size=50))
def test_what_is_due_goes_in_the_order_of_its_times(times: list[int]) -> None:
    partition = Partition()
    for number, due_ms in enumerate(times):
        partition.put(f"{number}", entry(due_ms, f"{number}"))
    for now_ms in range(0, 101, 7):
        while partition.step(now_ms):
            pass
    while partition.step(100):
        pass
    assert [int(what) for what in values(partition)] == sorted(range(len(times)), key=lambda one: (times[one], one))


def test_a_second_send_of_an_id_takes_the_place_of_the_first() -> None:
    partition = Partition()
    partition.put("a", entry(10, "first"))
    partition.put("a", entry(20, "second"))
    while partition.step(15):
        pass
    assert values(partition) == [] and partition.schedule.next_due_ms() == 20
    while partition.step(20):
        pass
    assert values(partition) == ["second"] and not [*partition.live()]


def test_a_record_that_cannot_be_delivered_is_kept_and_holds_nobody_up() -> None:
    partition = Partition()
    partition.put("bad", entry(1, "bad"))
    partition.put("good", entry(2, "good"))
    partition.read()
    due = partition.schedule.take(5, 10, 1000)
    bad = partition.item(due[0])
    assert isinstance(bad, Entry)
    partition.schedule.die(due[0], bad, "topic 't' is gone")
    partition.schedule.put_back(due)
    while partition.step(5):
        pass
    assert values(partition) == ["good"] and (len(partition.schedule), partition.schedule.dead) == (0, 1)
    partition.take_over()
    partition.read()
    assert (len(partition.schedule), partition.schedule.dead, partition.schedule.next_due_ms()) == (0, 1, None)
    request = partition.put("bad", Cancel(5))
    while partition.step(6):
        pass
    assert partition.outcome(request) == b"cancelled" and not [*partition.live()]


def test_what_is_not_ours_is_passed_over() -> None:
    partition = Partition()
    partition.records += [(b"a\0b", b"\x01", ()), (b"nobody's", b"", ()), (b"\xff\0a", b"", ())]
    partition.put("a", entry(1, "x"))
    while partition.step(1):
        pass
    assert values(partition) == ["x"]


def test_memory_is_bounded_by_what_may_be_held() -> None:
    partition = Partition(held_bytes=1000)
    for number in range(100):
        partition.put(f"{number}", entry(number, "x" * 80))
    partition.read()
    assert partition.schedule.held_bytes <= 1000 and len(partition.schedule) == 100
    while partition.step(100):
        pass
    assert len(partition.delivered) == 100 and partition.schedule.held_bytes == 0


def test_the_heap_forgets_what_is_over() -> None:
    partition, chosen = Partition(), random.Random(1)
    for _ in range(5_000):
        partition.put("one", entry(chosen.randrange(1000), "x"))
        partition.read()
    assert len(partition.schedule) == 1
    while partition.step(1000):
        pass
    assert len(partition.delivered) == 1


# functions that fire -------------------------------------------------------------------------------------------------

MINUTELY = Timetable(interval_ms=60)


def every(due_ms: int, table: Timetable = MINUTELY, topic: str = "f", *, armed: bool = False) -> Every:
    return Every(due_ms, topic, "f", table, armed)


def scheduled(partition: Partition) -> list[int]:
    return [due_ms for _, due_ms, _ in partition.delivered]


def test_a_firing_brings_the_next_one() -> None:
    partition = Partition()
    partition.put("every:f", every(60))
    for now_ms in range(300):
        while partition.step(now_ms):
            pass
    assert scheduled(partition) == [60, 120, 180, 240]
    assert [*partition.live()] == ["every:f"]


@pytest.mark.parametrize("dies", [False, True])
def test_an_instance_that_starts_changes_nothing_unless_the_times_do(dies: bool) -> None:
    partition = Partition()
    partition.put("every:f", every(60))
    for now_ms in range(60, 130):
        while partition.step(now_ms):
            pass
    partition.put("every:f", every(199))
    if dies:
        partition.take_over()
    while partition.step(130):
        pass
    assert partition.schedule.next_due_ms() == 180
    partition.put("every:f", every(150, Timetable(interval_ms=7)))
    if dies:
        partition.take_over()
    while partition.step(131):
        pass
    assert partition.schedule.next_due_ms() == 150 and len([*partition.live()]) == 1


def test_a_declaration_that_was_written_beside_a_firing_is_no_second_one() -> None:
    """An instance starts right before a firing, so its record comes after it; the instance that fired may die then."""
    for dies in (False, True):
        partition = Partition()
        partition.put("every:f", every(60))
        partition.read()
        writes = partition.begin(60)
        partition.put("every:f", every(60))
        partition.commit(writes, 60)
        partition.schedule.stored(writes)
        if dies:
            partition.take_over()
        for now_ms in range(60, 130):
            while partition.step(now_ms):
                pass
        assert scheduled(partition) == [60, 120]


def test_a_firing_that_is_read_only_when_it_is_over_does_not_fire_again() -> None:
    """Times that follow each other faster than a partition is read back: what is read ends between the two."""
    partition = Partition()
    partition.put("every:f", every(60))
    partition.read()
    for now_ms in (60, 120):
        written = len(partition.records)
        writes = partition.begin(now_ms)
        partition.commit(writes, now_ms)
        partition.schedule.stored(writes)
    for offset in range(partition.read_to, written):
        partition.schedule.read(*partition.records[offset][:2], offset)
    partition.schedule.settle()
    partition.read_to = written
    while partition.step(121):
        pass
    assert scheduled(partition) == [60, 120]
    assert partition.schedule.next_due_ms() == 180 and len([*partition.live()]) == 1


@given(st.lists(st.sampled_from(["step", "die before", "die behind", "declare", "not know"]), max_size=80))
def test_each_time_fires_once_whoever_dies_when(steps: list[str]) -> None:
    partition = Partition()
    partition.put("every:f", every(10, Timetable(interval_ms=10, missed="all")))
    for now_ms, name in enumerate(steps, 5):
        if name == "declare":
            partition.put("every:f", every(now_ms + 10, Timetable(interval_ms=10, missed="all")))
        elif name == "step":
            partition.step(now_ms)
        else:
            partition.read()
            writes = partition.begin(now_ms)
            if "behind" in name or (name == "not know" and now_ms % 2):
                partition.commit(writes, now_ms)
            if "die" in name:
                partition.take_over()
            else:
                partition.schedule.put_back(writes.due)
    last = len(steps) + 5
    while partition.step(last):
        pass
    fired = [decoded["scheduled_ms"] for decoded in map(json, values(partition))]
    assert fired == [*range(10, last + 1, 10)]


def json(text: str) -> dict[str, int]:
    import msgspec

    return msgspec.json.decode(text, type=dict[str, Any])


def test_what_is_read_and_not_settled_yet_is_bounded_too() -> None:
    schedule = PartitionSchedule(lambda: "", held_bytes=1000)
    keys = [key_of(f"r-{number}", "0") for number in range(100)]
    value = encode(Entry(5, "t", None, None, b"x" * 100))
    for _ in range(2):  # also when it is read again
        for offset, key in enumerate(keys):
            schedule.read(key, value, offset)
        assert 1000 - len(value) < schedule.held_bytes <= 1000
    for offset, key in enumerate(keys[:50]):
        schedule.read(key, None, 100 + offset)
    assert schedule.held_bytes == 0, "of what is over nothing is kept"
    schedule.settle()
    assert len(schedule) == 50


def test_entries_of_an_earlier_release_are_read() -> None:
    old = b"\x9a\xa6record\x05\xa1t\xc0\xc0\xc4\x01x\x90\xc0\xa0\x07"
    assert decode(old) == Entry(5, "t", None, None, b"x", delay_ms=7)

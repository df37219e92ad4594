"""Waiting records, case by case: lines and places, reading, foreign records, and limits."""

from __future__ import annotations

import pytest

from eventbus.delays.retry_partition import RetryPartition
from eventbus.delays.retry_records import done_mark, entry_behind, retry_entry
from eventbus.recovery import EveryKey, Plan, RetryOrder, Waiting
from eventbus.types import ConsumerRecord, Header, Record, TopicPartition
from tests.dlq.waiting.retry_log import SOURCE, add, fetched, places, source_record


def failed(place: int, due_ms: int = 100, attempt: int = 1, key: bytes | None = b"k") -> Record:
    record = source_record(place, key)
    return retry_entry(record, attempt=attempt, due_ms=due_ms, first_failed_ms=50, error="Error: no")


def behind(place: int, key: bytes | None = b"k") -> Record:
    return entry_behind(source_record(place, key))


def told(plan: Plan | None) -> tuple[int, bool] | None:
    return None if plan is None else (plan.next_offset, plan.done is not None)


def test_it_is_what_the_runner_asks_for() -> None:
    waiting: Waiting = RetryPartition("key")
    assert len(waiting) == 0
    assert waiting.next_due_ms() is None
    assert waiting.take(10**9, 10) == []
    assert waiting.plan() is None


def test_never_early_and_in_the_order_of_their_times() -> None:
    waiting = RetryPartition("none")
    add(waiting, failed(1, 300), failed(2, 100), failed(3, 200), failed(4, 100))
    assert waiting.next_due_ms() == 100
    assert waiting.take(99, 10) == []
    assert places(waiting.take(100, 1)) == [2]
    assert places(waiting.take(250, 10)) == [4, 3]
    assert waiting.next_due_ms() == 300


def test_a_key_waits_in_line_and_others_do_not() -> None:
    waiting = RetryPartition("key")
    add(waiting, failed(1, 500), behind(2), behind(3), failed(4, 100, key=b"other"), behind(5, key=b"other"))
    (other,) = waiting.take(400, 10)
    assert places([other]) == [4]
    assert waiting.next_due_ms() == 500
    waiting.finish(other)
    assert places(waiting.take(400, 10)) == [5], "nothing is ahead of it"
    (first,) = waiting.take(500, 10)
    waiting.finish(first)
    (second,) = waiting.take(600, 10)
    assert (places([first, second]), second.due_ms) == ([1, 2], 500)
    waiting.put_back(second)
    assert places(waiting.take(600, 10)) == [2]


def test_records_without_a_key_are_held_by_nobody() -> None:
    waiting = RetryPartition("key")
    waiting.hold(source_record(1, None))
    add(waiting, failed(1, 500, key=None), failed(2, 100, key=None), failed(3, 100, key=b""))
    assert places(waiting.take(100, 10)) == [2, 3]
    assert list(waiting.holds(SOURCE) or ()) == [b""], "an empty key is one"


def test_a_partition_is_one_line() -> None:
    waiting = RetryPartition("partition")
    held = waiting.holds(SOURCE)
    assert isinstance(held, EveryKey) and not held
    add(waiting, failed(1, 500, key=b"a"), failed(2, 100, key=None), failed(3, 100, key=b"c"))
    assert held and b"anything" in held
    for place in (1, 2, 3):
        (entry,) = waiting.take(500, 10)
        assert places([entry]) == [place]
        waiting.finish(entry)
    assert not held


@pytest.mark.parametrize("order", ["none", "key", "partition"])
def test_a_record_that_failed_again_is_counted_until_its_next_entry_is_read(order: RetryOrder) -> None:
    """A program that waits for the depth to reach 0 must not see 0 while the next entry is being written."""
    waiting = RetryPartition(order)
    add(waiting, failed(1))
    (entry,) = waiting.take(100, 1)
    assert waiting.depth() == 1
    waiting.hold(entry.record)
    waiting.finish(entry)
    assert (len(waiting), waiting.depth()) == (0, 1)
    add(waiting, failed(1, 200, attempt=2), at=1)
    (entry,) = waiting.take(200, 1)
    waiting.finish(entry)
    assert waiting.depth() == 0


def test_without_an_order_nothing_is_held() -> None:
    waiting = RetryPartition("none")
    waiting.hold(source_record(1))
    add(waiting, failed(1), failed(2))
    assert waiting.holds(SOURCE) is None
    assert places(waiting.take(100, 10)) == [1, 2]


def test_keys_of_two_partitions_are_not_the_same() -> None:
    waiting = RetryPartition("key")
    there = TopicPartition("orders", 7)
    add(waiting, failed(1, 500))
    waiting.hold(ConsumerRecord(*there, 9, 0, source_record(0).timestamp_type, b"else", b"v"))
    assert list(waiting.holds(SOURCE) or ()) == [b"k"]
    assert list(waiting.holds(there) or ()) == [b"else"]


def test_the_view_of_what_is_held_is_live() -> None:
    waiting = RetryPartition("key")
    held = waiting.holds(SOURCE)
    assert held is not None and not held
    waiting.hold(source_record(1))
    assert list(held) == [b"k"]
    add(waiting, failed(1))
    (entry,) = waiting.take(100, 1)
    assert list(held) == [b"k"]
    waiting.finish(entry)
    assert not held
    waiting.hold(source_record(2, b"l"))
    assert list(held) == [b"l"], "also after a time when nothing waited"


# records that are tried again ----------------------------------------------------------------------------------------


def test_a_record_that_is_tried_again_keeps_its_place() -> None:
    waiting = RetryPartition("key")
    add(waiting, failed(1), behind(2))
    (first,) = waiting.take(100, 10)
    waiting.hold(first.record)
    waiting.finish(first)
    assert waiting.take(10**9, 10) == [], "it is on its way"
    assert list(waiting.holds(SOURCE) or ()) == [b"k"]
    add(waiting, failed(1, 700, attempt=2), at=2)
    assert waiting.next_due_ms() == 700
    (again,) = waiting.take(700, 10)
    assert (places([again]), again.attempt) == ([1], 2)


def test_read_anew_a_record_that_was_tried_again_stands_before_those_behind_it() -> None:
    """Its second entry comes after them in the log, and the mark after that."""
    waiting = RetryPartition("key")
    add(waiting, failed(1), behind(2), failed(1, 700, attempt=2), done_mark([0]))
    assert len(waiting) == 2
    assert waiting.plan() is None
    assert waiting.next_due_ms() == 700


def test_the_log_was_shortened_up_to_those_behind() -> None:
    waiting = RetryPartition("key")
    add(waiting, behind(2), behind(3), failed(1, 700, attempt=2), at=10)
    assert waiting.next_due_ms() == 700
    assert places(waiting.take(700, 10)) == [1]


def test_of_two_entries_of_a_record_the_one_that_was_tried_more_often_counts() -> None:
    """The group's offsets were reset, so the record fails in its source a second time."""
    waiting = RetryPartition("key")
    add(waiting, failed(1, 100, attempt=5), failed(1, 200, attempt=3), failed(1, 300, attempt=5))
    assert (len(waiting), waiting.next_due_ms()) == (1, 100)
    plan = waiting.plan()
    assert plan is not None and plan.next_offset == 0 and plan.done == done_mark([1, 2])
    add(waiting, failed(1, 400, attempt=6), at=3)
    assert (len(waiting), waiting.next_due_ms()) == (1, 400)
    assert told(waiting.plan()) == (3, False)


def test_a_duplicate_is_not_found_open_when_the_first_one_is_gone() -> None:
    waiting = RetryPartition("none")
    log = [failed(1), failed(2, 10**9), failed(1)]
    add(waiting, *log)
    (first,) = waiting.take(100, 10)
    waiting.finish(first)
    plan = waiting.plan()
    assert plan is not None and plan == Plan(1, done_mark([2]))
    anew = RetryPartition("none")
    anew.add(fetched([(1, log[1]), (2, log[2]), (3, plan.done or behind(0))]))
    assert len(anew) == 1


def test_an_entry_at_work_is_overtaken_by_its_next() -> None:
    """Its successor is stored and read before the runner reports that it is finished."""
    waiting = RetryPartition("key")
    add(waiting, failed(1), behind(2))
    (first,) = waiting.take(100, 10)
    waiting.hold(first.record)
    plan = waiting.plan([first])
    assert told(plan) == (1, False)
    add(waiting, failed(1, 700, attempt=2), at=2)
    assert plan is not None
    waiting.stored(plan)
    waiting.finish(first)
    assert (len(waiting), waiting.next_due_ms(), waiting.plan()) == (2, 700, None)


def test_the_same_record_under_another_key() -> None:
    """Even with malicious entries no key is held permanently."""
    waiting = RetryPartition("key")
    add(waiting, failed(1, key=b"a"), behind(2, key=b"a"), failed(1, 300, attempt=2, key=b"b"))
    assert set(waiting.holds(SOURCE) or ()) == {b"a", b"b"}
    assert places(waiting.take(100, 10)) == [2]
    assert places(waiting.take(300, 10)) == [1]


def test_one_in_the_middle_of_a_line_is_finished() -> None:
    """A mark reports the end of the second record; when read again, the first one has been retried."""
    waiting = RetryPartition("key")
    add(waiting, failed(1), behind(2), behind(3), done_mark([1]))
    (first,) = waiting.take(100, 10)
    waiting.finish(first)
    assert places(waiting.take(100, 10)) == [3]


def test_nobody_gets_ahead_of_one_at_work() -> None:
    waiting = RetryPartition("key")
    add(waiting, failed(5))
    (fifth,) = waiting.take(100, 10)
    add(waiting, failed(3), at=1)
    assert waiting.take(100, 10) == []
    waiting.finish(fifth)
    assert places(waiting.take(100, 10)) == [3]


# in flight -----------------------------------------------------------------------------------------------------------


def test_what_does_not_come_is_forgotten() -> None:
    waiting = RetryPartition("key")
    for place in (1, 2, 3):
        waiting.hold(source_record(place))
    add(waiting, behind(2))
    assert waiting.take(10**9, 10) == []
    waiting.unhold(source_record(1))
    waiting.unhold(source_record(1))
    waiting.unhold(source_record(2))
    (second,) = waiting.take(10**9, 10)
    assert places([second]) == [2]
    waiting.finish(second)
    assert list(waiting.holds(SOURCE) or ()) == [b"k"]
    waiting.release(SOURCE)
    assert not waiting.holds(SOURCE)


def test_a_release_leaves_what_was_read() -> None:
    waiting = RetryPartition("key")
    add(waiting, failed(1))
    (first,) = waiting.take(100, 1)
    waiting.hold(first.record)
    waiting.release(SOURCE)
    waiting.release(TopicPartition("orders", 99))
    assert list(waiting.holds(SOURCE) or ()) == [b"k"]
    waiting.finish(first)
    assert not waiting.holds(SOURCE)


# commits -------------------------------------------------------------------------------------------------------------


def test_a_plan_is_the_same_until_it_is_stored() -> None:
    waiting = RetryPartition("none")
    add(waiting, failed(1, 300), failed(2), failed(3), failed(4))
    second, third, fourth = waiting.take(100, 10)
    waiting.finish(third)
    waiting.finish(fourth)
    plan = waiting.plan()
    assert plan == waiting.plan() == Plan(0, done_mark([2, 3]))
    waiting.finish(second)
    assert plan is not None
    waiting.stored(plan)
    assert waiting.plan() == Plan(0, done_mark([1])), "what finished meanwhile is for the next"
    (first,) = waiting.take(300, 1)
    waiting.finish(first)
    assert waiting.plan() == Plan(4, None)


def test_behind_everything_that_was_read() -> None:
    """The consumer's position is after control records and gaps, too."""
    waiting = RetryPartition("none")
    waiting.add(fetched([(3, failed(1))], next_offset=9))
    (entry,) = waiting.take(100, 1)
    waiting.finish(entry)
    assert waiting.plan() == Plan(9, None)


def test_what_is_read_twice_counts_once() -> None:
    waiting = RetryPartition("key")
    records = [(0, failed(1)), (1, failed(2, key=b"l")), (2, done_mark([0]))]
    waiting.add(fetched(records[:2]))
    (first, second) = waiting.take(100, 2)
    waiting.finish(second)
    waiting.add(fetched(records))
    assert len(waiting) == 0, "the mark told of the first"
    waiting.put_back(first)
    waiting.finish(first)
    assert waiting.take(10**9, 10) == []
    assert waiting.plan() == Plan(3, None)


def test_a_mark_tells_of_nothing_that_comes_later() -> None:
    waiting = RetryPartition("none")
    add(waiting, done_mark([0, 1, 2, 3]), failed(1), failed(2))
    assert len(waiting) == 2


def test_a_mark_may_tell_of_what_was_passed() -> None:
    waiting = RetryPartition("none")
    add(waiting, failed(1), failed(2), done_mark([3, 4, 11]), at=10)
    assert places(waiting.take(10**9, 10)) == [1]


def test_a_mark_over_all_offsets_there_are() -> None:
    waiting = RetryPartition("none")
    huge = Record(None, b"\x01" + bytes([0x92, 0, 0xCF]) + b"\xff" * 8, (("eb-retry-done", b"1"),))
    add(waiting, failed(1), failed(2), huge, failed(3), at=2**40)
    assert places(waiting.take(10**9, 10)) == [3]


# what does not belong there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("eb-retry-root", b"[1"),),
        (("eb-retry-root", None),),
        (("eb-retry-attempt", b"1"), ("eb-retry-due", b"1")),
        (("eb-retry-done", b"1"),),
        (("eb-retry-root", b'["orders",3,1,0,0]'), ("eb-retry-root", b"")),
        (("�", b"\xff\xfe"),),
    ],
)
def test_a_foreign_record_is_passed_over(headers: tuple[Header, ...]) -> None:
    waiting = RetryPartition("key")
    add(waiting, Record(b"k", b"v", headers), failed(1))
    assert len(waiting) == 1
    (entry,) = waiting.take(100, 10)
    waiting.finish(entry)
    assert waiting.plan() == Plan(2, None)


def test_a_fetch_without_any_headers() -> None:
    waiting = RetryPartition("key")
    chunk = fetched([(0, Record(b"k", b"v"))])
    chunk.headers = None
    waiting.add(chunk)
    assert not waiting


@pytest.mark.parametrize("number", [b"", b"-5", b"soon", b"9" * 400, b"\xff", None])
def test_an_entry_with_broken_numbers_is_somebodys_record(number: bytes | None) -> None:
    waiting = RetryPartition("key")
    root = ("eb-retry-root", b'["orders",3,7,0,0]')
    headers = (
        ("eb-retry-due", b"999999"),
        ("mine", b"1"),
        root,
        ("eb-retry-attempt", number),
        ("eb-retry-due", number),
    )
    add(waiting, Record(b"k", b"v", headers), behind(8))
    (entry,) = waiting.take(0, 10)
    assert (entry.record.offset, entry.attempt, entry.due_ms) == (7, 1, 0)
    assert entry.record.headers == headers, "as they were"


# room ----------------------------------------------------------------------------------------------------------------


def test_room_by_count() -> None:
    waiting = RetryPartition("none", max_waiting=2)
    add(waiting, failed(1))
    assert waiting.has_room
    add(waiting, failed(2), at=1)
    assert not waiting.has_room
    entry = waiting.take(100, 1)[0]
    assert not waiting.has_room
    waiting.finish(entry)
    assert waiting.has_room


def test_room_by_bytes() -> None:
    waiting = RetryPartition("none", max_bytes=10_000)
    big = retry_entry(source_record(1, b"k", b"v" * 9_000), attempt=1, due_ms=0, first_failed_ms=0, error="")
    add(waiting, big)
    assert waiting.has_room
    add(waiting, failed(2), failed(3), at=1)
    assert not waiting.has_room
    for entry in waiting.take(100, 10):
        waiting.finish(entry)
    add(waiting, failed(4), at=3)
    assert waiting.has_room


def test_there_is_room_for_what_the_others_wait_for() -> None:
    """It is full of records of one key, and the entry that they wait for has not been read."""
    waiting = RetryPartition("key", max_waiting=2)
    add(waiting, failed(1), behind(2), behind(3))
    assert not waiting.has_room, "the first one is due some time"
    (first,) = waiting.take(100, 10)
    for _ in range(2):
        waiting.put_back(first)
    (first,) = waiting.take(100, 10)
    assert not waiting.has_room, "it is at work"
    waiting.hold(first.record)
    waiting.finish(first)
    assert waiting.has_room
    add(waiting, failed(1, 500, attempt=2), at=3)
    assert not waiting.has_room


@pytest.mark.system
def test_what_is_finished_is_not_kept_behind_one_that_waits_long() -> None:
    waiting = RetryPartition("none")
    add(waiting, failed(0, 10**12))
    for at in range(1, 20_000, 100):
        add(waiting, *(failed(place, 10**11) for place in range(at, at + 100)), at=2 * at)
        add(waiting, done_mark(range(2 * at, 2 * at + 100)), at=2 * at + 150)
    assert len(waiting) == 1
    add(waiting, failed(20_000), at=10**6)
    (entry,) = waiting.take(100, 2)
    waiting.finish(entry)
    assert waiting.plan() == Plan(0, done_mark([10**6]))
    assert entries_remembered(waiting) < 2_500


def entries_remembered(waiting: RetryPartition) -> int:
    """Return how many finished entries are remembered, by offsets and times."""
    return sum(len(kept) for kept in vars(waiting).values() if hasattr(kept, "__len__"))


def test_an_entry_of_a_clock_that_was_wrong_waits_for_its_own_delay(caplog: pytest.LogCaptureFixture) -> None:
    """An entry was written ten years ahead. When the clock is set back again, correct times stay."""
    waiting, years, now = RetryPartition("key"), 315_360_000_000, 1_700_000_000_000
    chunk = fetched([(0, failed(1, now + years + 60_000)), (1, failed(2, now + 30_000)), (2, failed(3, now, key=b"l"))])
    chunk.timestamps_ms = [now + years, now - 1_000, now - 1_000]
    waiting.add(chunk)
    waiting.correct(now)
    (other,) = waiting.take(now, 10)
    assert places([other]) == [3] and waiting.next_due_ms() == now + 60_000
    assert len(caplog.records) == 1 and "1 times at which records of retry.billing-3 are due" in caplog.text
    waiting.put_back(other)
    waiting.correct(now - 3_600_000)
    assert len(caplog.records) == 2 and "3 times" in caplog.text
    assert waiting.next_due_ms() == now - 3_600_000 + 1_000
    assert places(waiting.take(now - 3_540_000, 10)) == [3, 1]
    waiting.correct(now - 3_540_000)
    assert len(caplog.records) == 2


def test_an_entry_of_a_clock_that_was_wrong_in_a_topic_with_the_logs_own_timestamps() -> None:
    waiting, years, now = RetryPartition("key"), 315_360_000_000, 1_700_000_000_000
    ahead = now + years
    entry = retry_entry(source_record(1), attempt=1, due_ms=ahead + 60_000, first_failed_ms=ahead, error="")
    chunk = fetched([(0, entry)])
    chunk.timestamps_ms = [now]
    waiting.add(chunk)
    waiting.correct(now)
    assert waiting.next_due_ms() == now + 60_000


def test_entries_and_marks_of_another_group_in_a_shared_topic_are_passed_over() -> None:
    def failed_of(owner: str | None, place: int) -> Record:
        record = source_record(place, b"%d" % place)
        return retry_entry(record, attempt=1, due_ms=0, first_failed_ms=0, error="", owner=owner)

    waiting = RetryPartition("none", owner="billing")
    add(waiting, failed_of("billing", 1), failed_of("mailer", 2), failed_of(None, 3), done_mark([0, 2], "mailer"))
    taken = waiting.take(1, 10)
    assert places(taken) == [1, 3], "the mark is about the mailer's entries"
    waiting.finish(taken[1])
    assert waiting.plan() == Plan(0, done_mark([2], "billing"))

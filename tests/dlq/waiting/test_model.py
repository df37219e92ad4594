"""Waiting records, checked against a model that is trivially right, with a crash at every step.

The test plays the runner: records of a source partition fail or wait for others, entries are taken and succeed or fail,
and everything is written to a log in transactions. The model keeps plain lists of what was read, and scans them for
every answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from eventbus.delays.retry_entry import RetryEntry
from eventbus.delays.retry_partition import RetryPartition
from eventbus.delays.retry_records import attempts_of, entry_behind, retry_entry
from eventbus.recovery import Plan, RetryOrder
from eventbus.types import Record
from tests.dlq.waiting.retry_log import SOURCE, fetched, source_record

pytestmark = pytest.mark.system

delays_ms = st.integers(0, 300)
KEYS = (b"a", b"b", b"c", None)
JUNK = Record(b"a", b"x", (("eb-retry-root", b"[1"),))


@dataclass(eq=False)
class Known:
    """An entry in the model that was read and is not finished."""

    offset: int
    place: int
    key: bytes | None
    attempt: int
    due_ms: int
    at_work: RetryEntry | None = None


@dataclass
class Moving:
    """A transaction of the retry partition whose outcome the runner does not know yet."""

    plan: Plan
    committed: bool
    moved: list[int]
    done: set[int]


@dataclass
class Durable:
    """The state that survives a crash."""

    log: list[tuple[int, Record]] = field(default_factory=list[tuple[int, Record]])
    end: int = 0
    committed: int = 0
    source: int = 0
    """The next record of the source partition to handle."""
    done: set[int] = field(default_factory=set[int])
    """Records of the source that need no further handling."""
    waiting: set[int] = field(default_factory=set[int])


class Runner(RuleBasedStateMachine):
    order: ClassVar[RetryOrder] = "key"

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1000
        self.durable = Durable()
        self.begin()

    def begin(self) -> None:
        """Start a process without memory."""
        self.moving: Moving | None = None
        self.source = self.durable.source
        self.handled: set[int] = set()
        self.source_moves: dict[int, Record] = {}
        self.entry_moves: dict[int, Record] = {}
        """Successors of finished entries, by number. The consumer may read one before the runner knows that it was
        written.
        """
        self.moves = 0
        self.finished: set[int] = set()
        """Places whose entries were finished, but not reported yet."""
        self.finished_offsets: set[int] = set()
        self.waiting = RetryPartition(self.order, max_waiting=10**6)
        self.known: list[Known] = []
        self.coming: dict[int, bytes | None] = {}
        self.read_to = self.durable.committed
        self.end_of_read = 0
        self.read(10**9)

    # the model -------------------------------------------------------------------------------------------------------

    def key_of(self, place: int) -> bytes | None:
        return KEYS[self.keys[place % len(self.keys)]]

    def line_of(self, key: bytes | None) -> object:
        """Return the line of a key, whose records wait for each other, or None without an order."""
        if self.order == "partition":
            return "all"
        return key if self.order == "key" else None

    def is_head(self, one: Known) -> bool:
        line = self.line_of(one.key)
        if line is None:
            return True
        ahead = [known.place for known in self.known if self.line_of(known.key) == line]
        ahead += [place for place, key in self.coming.items() if self.line_of(key) == line]
        at_work = [
            known for known in self.known if self.line_of(known.key) == line and known.at_work and known is not one
        ]
        return one.place == min(ahead) and not at_work

    def runnable(self) -> list[Known]:
        return [
            known
            for known in self.known
            if known.at_work is None and known.place not in self.coming and self.is_head(known)
        ]

    def held(self) -> set[object]:
        lines = {self.line_of(known.key) for known in self.known}
        return (lines | {self.line_of(key) for key in self.coming.values()}) - {None}

    # the log ---------------------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        self.durable.log.append((self.durable.end, record))
        self.durable.end += 1

    @initialize(keys=st.lists(st.integers(0, 3), min_size=1, max_size=12))
    def choose_keys(self, keys: list[int]) -> None:
        self.keys = keys

    # reading ---------------------------------------------------------------------------------------------------------

    @rule(most=st.integers(1, 6), again=st.integers(0, 3))
    def read_some(self, most: int, again: int) -> None:
        self.read(most, again)

    def read(self, most: int, again: int = 0) -> None:
        """Read up to ``most`` records, after fetching ``again`` records a second time."""
        unread = [(offset, record) for offset, record in self.durable.log if offset >= self.read_to][:most]
        before = (
            [(offset, record) for offset, record in self.durable.log if offset < self.read_to][-again:] if again else []
        )
        if not unread:
            return
        self.read_to = unread[-1][0] + 1
        self.waiting.add(fetched(before + unread, self.read_to))
        for offset, record in unread:
            self.model_reads(offset, record)

    def model_reads(self, offset: int, record: Record) -> None:
        headers = dict(record.headers)
        if "eb-retry-done" in headers:
            told = offsets_told(record)
            self.known = [known for known in self.known if known.offset not in told]
        elif record is not JUNK:
            place = int((headers["eb-retry-root"] or b"").split(b",")[2])
            attempt = int(headers["eb-retry-attempt"] or b"")
            due_ms = int(headers["eb-retry-due"] or b"")
            self.coming.pop(place, None)
            for known in [known for known in self.known if known.place == place]:
                assert known.attempt < attempt
                self.known.remove(known)
            self.known.append(Known(offset, place, record.key, attempt, due_ms))

    # the source partition --------------------------------------------------------------------------------------------

    @rule(
        records=st.lists(st.tuples(st.booleans(), delays_ms, st.booleans()), min_size=1, max_size=5),
        commits=st.booleans(),
        reads=st.booleans(),
    )
    def source_records(self, records: list[tuple[bool, int, bool]], commits: bool, reads: bool) -> None:
        for fails, delay_ms, is_begun in records:
            self.source_record(fails, delay_ms, is_begun)
        if commits:
            self.source_commits()
        if reads:
            self.read(10**9)

    def source_record(self, fails: bool, delay_ms: int, is_begun: bool) -> None:
        """``is_begun``: the record was in flight when an earlier one failed."""
        record = source_record(self.source, self.key_of(self.source))
        held = self.waiting.holds(SOURCE)
        if self.order == "partition" and held and not is_begun:
            return
        self.source += 1
        if self.order == "key" and held and record.key in held:
            self.source_moves[record.offset] = entry_behind(record)
        elif fails:
            self.source_moves[record.offset] = self.entry(record.offset, 1, delay_ms)
        else:
            self.handled.add(record.offset)
            return
        self.waiting.hold(record)
        self.coming[record.offset] = record.key

    def entry(self, place: int, attempt: int, delay_ms: int) -> Record:
        record = source_record(place, self.key_of(place))
        due_ms = self.now_ms + delay_ms
        return retry_entry(record, attempt=attempt, due_ms=due_ms, first_failed_ms=self.now_ms, error="Error: no")

    def source_commits(self) -> None:
        for record in self.source_moves.values():
            self.append(record)
        self.durable.waiting |= set(self.source_moves)
        self.durable.done |= self.handled
        self.durable.source = self.source
        self.source_moves, self.handled = {}, set()

    # what goes wrong -------------------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(["junk", "gap", "taken back", "away", "taken over", "crash"]))
    def disturbed(self, what: str) -> None:
        settled = self.moving is None and not self.entry_moves
        if what == "junk":
            self.append(JUNK)
        elif what == "gap":
            self.durable.end += 2
        elif what == "taken back" and max(self.source_moves, default=-1) == self.source - 1 >= 0:
            # as a transaction of the record's own is, when it fails
            self.source -= 1
            del self.source_moves[self.source], self.coming[self.source]
            self.waiting.unhold(source_record(self.source, self.key_of(self.source)))
        elif what == "away" and settled:
            self.source_moves_away_and_comes_back()
        elif what == "taken over" and settled and not self.source_moves:
            self.another_one_takes_over()
        elif what == "crash":
            self.crash()

    def source_moves_away_and_comes_back(self) -> None:
        """Release the source partition after reading all of its entries, because none may be in flight."""
        self.read(10**9)
        self.waiting.release(SOURCE)
        self.coming, self.source_moves, self.handled = {}, {}, set()
        self.source = self.durable.source

    def crash(self) -> None:
        self.begin()
        assert sorted(known.place for known in self.known) == sorted(self.durable.waiting), "nothing is lost"
        assert self.durable.done | self.durable.waiting == set(range(self.durable.source))
        assert self.waiting.plan() is None

    def another_one_takes_over(self) -> None:
        """Let another process read the partition, after all results were reported and read: it must find the same
        state.
        """
        for known in self.at_work():
            assert known.at_work is not None
            self.waiting.put_back(known.at_work)
        self.read(10**9)
        plan = self.waiting.plan()
        if plan is not None:
            self.write(plan)
            self.waiting.stored(plan)
        before = self.waiting
        self.begin()
        assert state_of(self.waiting) == state_of(before)

    # entries ---------------------------------------------------------------------------------------------------------

    @rule(
        ms=st.integers(0, 200),
        most=st.integers(1, 5) | st.just(10**9),
        ends=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["done", "again", "back"]), delays_ms), max_size=5),
    )
    def entries_are_handled(self, ms: int, most: int, ends: list[tuple[int, str, int]]) -> None:
        """Take some entries, and end some of those in flight."""
        self.now_ms += ms
        self.take(most)
        for which, what, delay_ms in ends:
            if at_work := self.at_work():
                self.entry_ends(at_work[which % len(at_work)], what, delay_ms)

    def take(self, most: int) -> None:
        due = [known for known in self.runnable() if known.attempt == 0 or known.due_ms <= self.now_ms]
        taken = self.waiting.take(self.now_ms, most)
        assert len(taken) == min(most, len(due))
        for entry in taken:
            record = entry.record
            known = next(known for known in due if known.place == record.offset)
            assert record == source_record(record.offset, known.key, headers=record.headers)
            assert attempts_of(record).attempt == known.attempt
            assert entry.due_ms <= self.now_ms
            assert known.attempt == 0 or entry.due_ms == known.due_ms
            assert record.offset not in self.durable.done, "it was told to be done"
            known.at_work = entry
        assert [entry.due_ms for entry in taken] == sorted(entry.due_ms for entry in taken)

    def at_work(self) -> list[Known]:
        return [known for known in self.known if known.at_work is not None]

    def entry_ends(self, known: Known, what: str, delay_ms: int) -> None:
        entry = known.at_work
        assert entry is not None
        if what == "back":
            self.waiting.put_back(entry)
            known.at_work = None
            return
        if what == "again":
            self.move(known, entry, delay_ms)
        else:
            self.finished.add(known.place)
        self.waiting.finish(entry)
        self.waiting.finish(entry)
        self.waiting.put_back(entry)
        self.known.remove(known)
        self.finished_offsets.add(known.offset)

    def move(self, known: Known, entry: RetryEntry, delay_ms: int) -> None:
        self.moves += 1
        self.entry_moves[self.moves] = self.entry(known.place, known.attempt + 1, delay_ms)
        self.waiting.hold(entry.record)
        self.coming[known.place] = known.key

    # commits of the retry partition ----------------------------------------------------------------------------------

    @precondition(lambda self: self.moving is None)
    @rule(committed=st.sampled_from([True, True, True, False]), is_seen=st.booleans(), most_also=st.integers(-2, 3))
    def commit_begins(self, committed: bool, is_seen: bool, most_also: int) -> None:
        """Commit, sometimes with entries in flight: their outputs are in the transaction, and they end with it."""
        also = self.at_work()[: max(most_also, 0)] if committed else []
        again = most_also == 2
        finished = self.finished_offsets | {known.offset for known in also}
        plan = self.waiting.plan([known.at_work for known in also if known.at_work is not None])
        assert (plan is None) == (not finished)
        if plan is None:
            return
        still_open = [known.offset for known in self.known if known not in also]
        assert plan.next_offset == min(still_open, default=self.read_to)
        told = {offset for offset in finished if offset >= plan.next_offset}
        assert (plan.done is None) == (not told)
        assert plan.done is None or offsets_told(plan.done) == told
        for known in also:
            assert known.at_work is not None
            if again:
                self.move(known, known.at_work, 100)
            else:
                self.finished.add(known.place)
        self.moving = Moving(plan, committed, list(self.entry_moves), set(self.finished))
        if committed:
            self.write(plan)
        for known in also:
            # The runner learns of the outcome before anything else happens.
            self.known.remove(known)
            self.finished_offsets.add(known.offset)
        if also or is_seen:
            self.commit_ends()

    def write(self, plan: Plan) -> None:
        durable = self.durable
        for record in self.entry_moves.values():
            self.append(record)
        if plan.done is not None:
            self.append(plan.done)
        assert plan.next_offset >= durable.committed
        durable.committed = plan.next_offset
        durable.waiting -= self.finished
        durable.done |= self.finished

    @precondition(lambda self: self.moving is not None)
    @rule()
    def commit_ends(self) -> None:
        """Report the outcome, perhaps after the written entries were read back."""
        moving, self.moving = self.moving, None
        assert moving is not None
        if moving.committed:
            self.waiting.stored(moving.plan)
            for number in moving.moved:
                del self.entry_moves[number]
            self.finished -= moving.done
            told = set[int]() if moving.plan.done is None else offsets_told(moving.plan.done)
            self.finished_offsets = {
                offset for offset in self.finished_offsets if offset >= moving.plan.next_offset and offset not in told
            }

    # always ----------------------------------------------------------------------------------------------------------

    @invariant()
    def answers_are_the_models(self) -> None:
        waiting = self.waiting
        assert len(waiting) == len(self.known)
        assert waiting.depth() == len({known.place for known in self.known} | set(self.coming))
        dues = [known.due_ms for known in self.runnable() if known.attempt > 0]
        found = waiting.next_due_ms()
        if any(known.attempt == 0 for known in self.runnable()):
            assert found is not None and found <= self.now_ms
        else:
            assert found == min(dues, default=None)
        held = waiting.holds(SOURCE)
        if self.order == "none":
            assert held is None
        elif self.order == "partition":
            assert held is not None and bool(held) == (b"any" in held) == bool(self.held())
        else:
            assert held is not None and set(held) == self.held()

    def teardown(self) -> None:
        """Finally, everything that waits can be handled, in order of each key."""
        self.begin()
        order: dict[bytes | None, list[int]] = {}
        while taken := self.waiting.take(10**9, 3):
            for entry in taken:
                order.setdefault(entry.key, []).append(entry.record.offset)
                self.waiting.finish(entry)
        assert sorted(place for run in order.values() for place in run) == sorted(self.durable.waiting)
        if self.order == "key":
            assert all(run == sorted(run) for key, run in order.items() if key is not None)
        assert not self.waiting.holds(SOURCE)


def offsets_told(mark: Record) -> set[int]:
    """Decode a mark independently: MessagePack's numbers below 2**16, alternately skipped and reported."""
    data, numbers = (mark.value or b"")[1:], list[int]()
    at = {0x90: 1, 0xD0: 3}[data[0] & 0xF0]
    while at < len(data):
        size = {0xCC: 1, 0xCD: 2}.get(data[at], 0)
        numbers.append(int.from_bytes(data[at + 1 : at + 1 + size]) if size else data[at])
        at += 1 + size
    told, end = set[int](), 0
    for gap, count in zip(numbers[::2], numbers[1::2], strict=True):
        told |= set(range(end + gap, end + gap + count))
        end += gap + count
    return told


def state_of(waiting: RetryPartition) -> object:
    """Return everything observable, except for the times of entries that only wait for others."""
    held = waiting.holds(SOURCE)
    first = waiting.take(10**9, 10**9)
    entries = sorted((entry.offset, entry.record, entry.attempt and entry.due_ms) for entry in first)
    for entry in first:
        waiting.put_back(entry)
    return entries, len(waiting), bool(held), sorted(held or (), key=repr)


class OfPartition(Runner):
    order = "partition"


class OfNone(Runner):
    order = "none"


MACHINES = [Runner, OfPartition, OfNone]


def run(machine: type[Runner], examples: int, steps: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_short_life(machine: type[Runner]) -> None:
    run(machine, 25, 40)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_long_life(machine: type[Runner]) -> None:
    run(machine, 500, 80)

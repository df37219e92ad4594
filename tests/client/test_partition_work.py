"""`PartitionWork` as transcripts, one file for each policy: events in, actions out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventbus.client.handling.partition_work import PartitionWork
from eventbus.client.handling.work_actions import Abort, Call, Commit, Mode, Policy, Singly
from eventbus.recovery import Again, Skip, Stop, Verdict, WaitHere
from tests import transcripts
from tests.client.partition_works import Blocked, check, move, records

FILES = sorted((Path(__file__).parent / "partition_work").glob("*.txt"))


class Transcript:
    """Reports events to a machine, and prints the actions that it pulls after each.

    policy order=key delivery=... batch=2 workers=2 ...   what the handler's options mean; one call at a time by default
    fetched 10..13 [keys a b a -] [bytes 9]               records, "-" for one without a key
    passed 20                                             a fetch without records, up to this offset
    not_called 10 skip | dead                             a record arrives of which no call is made
    not_begun                                             drop what is committed, and will not be called
    returned 11 [publishes x]                             the records of its call up to offset 11
    raised 11 again | singly | wait 5s | retry | dead | skip | stop [dirty]
    ended 11 | cut 11                                     its call ends before record 11, or while it was called
    interval                                              pull a commit that is not due
    committed | failed | aborted [singly]                 the outcome of the last commit or abort
    unblocked 11                                          record 11 was tried again, elsewhere, and is handled
    """

    def __init__(self) -> None:
        self.start()

    def start(self, *options: str) -> None:
        given = dict(option.split("=") for option in options)
        self.workers = int(given.pop("workers", 1))
        values: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in given.items()}
        for name in ("manual_ack", "store_forwards_first"):
            values[name] = bool(values.get(name))
        self.policy = Policy(**values)
        self.blocked = Blocked(self.policy)
        self.work = PartitionWork(self.policy, self.blocked)
        self.calls: list[Call] = []
        self.action: Commit | Abort | None = None
        self.now_ms = 0
        self.dropped = ""
        self.shown: dict[str, object] = {}

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        getattr(self, "start" if name == "policy" else name)(*words)
        check(self.work)
        lines = self._pulled(wants_commit=name == "interval" or self.work.wants_commit)
        check(self.work)
        return lines

    # events ----------------------------------------------------------------------------------------------------------

    def fetched(self, offsets: str, *words: str) -> None:
        first, _, last = offsets.partition("..")
        count = int(last or first) - int(first) + 1
        size_bytes = int(words[words.index("bytes") + 1]) if "bytes" in words else 0
        names = words[words.index("keys") + 1 :] if "keys" in words else ("-",) * count
        keys = [None if name == "-" else name.encode() for name in names[:count]]
        self.work.fetched(records(int(first), keys), size_bytes)

    def passed(self, offset: str) -> None:
        self.work.fetched(records(int(offset), [], next_offset=int(offset)))

    def done_below(self, offset: str) -> None:
        self.work.done_below(int(offset))

    def not_called(self, offset: str, what: str) -> None:
        verdict = Skip() if what == "skip" else move(what)
        self.work.not_called(records(int(offset), [None]), verdict)

    def not_begun(self) -> None:
        self.dropped = " ".join(map(str, self.work.drop_not_begun()))

    def returned(self, offset: str, *words: str) -> None:
        call, at = self._find(offset)
        call.at = at + 1
        self.work.returned(call, at + 1, words[1] if words else None)
        if call.is_open and call.at >= call.end:
            self.work.ended(call)

    def raised(self, offset: str, name: str, *words: str) -> None:
        call, at = self._find(offset)
        call.at = at
        verdicts: dict[str, Verdict | Singly] = {
            "again": Again(),
            "singly": Singly(),
            "skip": Skip(),
            "stop": Stop(),
            "retry": move("retry"),
            "dead": move("dead"),
        }
        verdict = WaitHere(float(words[0].rstrip("s")), "") if name == "wait" else verdicts[name]
        count = len(call.indexes) if self.policy.batch else 1
        error = RuntimeError(f"record {offset} failed")
        goes_on = self.work.raised(
            call, at, verdict, count=count, now_ms=self.now_ms, error=error, is_clean="dirty" not in words
        )
        if goes_on:
            call.at = at + count

    def ended(self, offset: str, cut_off: str = "0") -> None:
        call, at = self._find(offset)
        call.at = at
        self.work.returned(call, at)
        self.work.ended(call, int(cut_off))

    def cut(self, offset: str, count: str = "1") -> None:
        self.ended(offset, count)

    def stored(self, outputs: str) -> None:
        self.work.stored(outputs)

    def refused(self, outputs: str, *words: str) -> None:
        self.work.refused(outputs, None if words else RuntimeError(f"{outputs} was refused"))

    def acknowledged(self, offset: str) -> None:
        self.work.acknowledged(int(offset))

    def interval(self) -> None: ...

    def committed(self) -> None:
        assert isinstance(self.action, Commit)
        self.work.commit_stored(self.action)

    def failed(self) -> None:
        assert isinstance(self.action, Commit)
        self.work.commit_failed(self.action)

    def aborted(self, *words: str) -> None:
        self.work.aborted(singly=bool(words))

    def unblocked(self, offset: str) -> None:
        del self.blocked.waiting[int(offset)]

    def now(self, ms: str) -> None:
        self.now_ms = int(ms)

    def end_slice(self) -> None:
        self.work.end_slice()

    def revoked(self) -> None:
        self.work.revoked()

    def lost(self) -> None:
        self.work.lost()

    def stop(self) -> None:
        self.work.stop(RuntimeError("the log cannot be read"))

    def _find(self, offset: str) -> tuple[Call, int]:
        for call in self.calls:
            offsets = [call.records.offsets[index] for index in call.indexes]
            if call.is_open and int(offset) in offsets:
                return call, offsets.index(int(offset))
        raise AssertionError(f"no call of {offset} is open")

    # actions ---------------------------------------------------------------------------------------------------------

    def _pulled(self, wants_commit: bool) -> list[str]:
        lines: list[str] = []
        self.calls = [call for call in self.calls if call.is_open]
        has_commit = wants_commit and self._commits(lines)
        while len(self.calls) < self.workers and (call := self.work.next_call(self.now_ms)) is not None:
            self.calls.append(call)
            call.is_resting = False
            lines.append(_call(call))
        if wants_commit and not has_commit:
            self._commits(lines)  # of records that were forwarded without a call
        for name, value in {
            "paused": self.work.is_paused and self.work.mode is Mode.OPEN,
            "waits until": self.work.waits_until_ms,
            "stopped": self.work.error,
            "over": self.work.is_over,
            "dropped": self.dropped,
        }.items():
            if value != self.shown.get(name, value if not value else None):
                lines.append(f"{name} {value}" if value and value is not True else name if value else f"{name} no more")
            self.shown[name] = value
        return lines

    def _commits(self, lines: list[str]) -> bool:
        action = self.work.next_commit()
        if action is None:
            return False
        self.action = action
        lines.append(_commit(action) if isinstance(action, Commit) else "abort")
        return True


def _spelled(offsets: list[int]) -> str:
    if len(offsets) > 1 and offsets[-1] - offsets[0] == len(offsets) - 1:
        return f"{offsets[0]}..{offsets[-1]}"
    return " ".join(map(str, offsets))


def _call(call: Call) -> str:
    opens = ", opens a transaction" if call.opens_transaction else ""
    return f"call {_spelled([call.records.offsets[index] for index in call.indexes])}{opens}"


def _commit(commit: Commit) -> str:
    written = [
        f"{forward.records.offsets[forward.at]} to {forward.outgoing.topic if forward.outgoing else 'retry, uncalled'}"
        for forward in commit.forwards
    ]
    parts = [f"commit {commit.next_offset}"]
    parts += [f"writes {', '.join(written)}"] if written else []
    parts += ["in the transaction"] if commit.in_transaction else []
    parts += [f"gives back {commit.gives_back}"] if commit.gives_back else []
    return "; ".join(parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_policies(path: Path, rewrite: bool) -> None:
    transcripts.check(path, Transcript, rewrite)


def test_each_queue_of_a_call_of_several_goes_on_after_it() -> None:
    """A call of the queue with the number 0 and of others left the others busy."""
    work = PartitionWork(Policy(order="key", key_queues=4))
    keys: list[bytes | None] = [b"%d" % number for number in range(20)]
    for first in (0, 20):
        work.fetched(records(first, keys))
        call = work.next_call(workers=1)
        assert call is not None and len(call) == 20 and len(call.parts) == 4
        call.at = len(call)
        work.ended(call)
    assert work.finished == 40

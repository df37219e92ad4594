"""Compares a run in which the process ended with a run in which it did not; see `eventbus.testing.crash_points`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from eventbus.client.handling.handlers import Handler
from eventbus.testing.crash_disk import Visible
from eventbus.testing.crash_process import HandlerCall, Instant, Past, Process, Way, topics_of
from eventbus.testing.crash_report import Finding, Kind, difference
from eventbus.types import ConsumerRecord, TopicPartition

Identity = Callable[[ConsumerRecord], Hashable]
Output = tuple[str, Hashable]
"""An output: its topic, and its identity."""
Place = tuple[TopicPartition, int]

_ENDED = {"kill": "killed", "cancel": "cancelled", "stop": "stopped"}


class Run(NamedTuple):
    """The lives of a run, and the state after the last."""

    way: Way
    past: list[Process | Past]
    """The lives that ended early."""
    last: Process
    state: Any

    @property
    def lives(self) -> list[Process | Past]:
        return [*self.past, self.last]


class Expected:
    """The results without a crash."""

    def __init__(self, run: Run, identity: Identity) -> None:
        life = run.last
        self.trace: list[Instant] = life.trace
        self.told_apart = {instant for index, instant in enumerate(life.trace) if life.is_told_apart(index)}
        self.state = run.state
        self.found = life.found
        """The records that existed before the run: the inputs."""
        self.outputs = outputs(life.seen_at_end, life.found, identity)
        names = _identities(life.seen_at_end, identity)
        self.handled: dict[str, set[Hashable]] = defaultdict(set)
        """The records that each handler handles completely, as pairs of topic and identity."""
        self.uncommitted = set(_uncommitted(life))
        for call in life.calls:
            for where, offset in call.records if call.is_done else ():
                self.handled[call.handler].add((where.topic, names.get((where, offset))))
        self.groups = _belonging_together(life.calls, self.outputs, identity)

    @classmethod
    def of(cls, run: Run, identity: Identity) -> Expected:
        return cls(run, identity)

    def difference(self, other: Expected) -> str:
        return f"the second run is {difference(other.outputs, self.outputs)}"


def outputs(seen: Visible, found: Visible, identity: Identity) -> Counter[Output]:
    """Return the records that are not among those found before."""
    counted: Counter[Output] = Counter()
    for where, records in seen.items():
        known = {record.offset for record in found.get(where, ())}
        counted.update((where.topic, identity(record)) for record in records if record.offset not in known)
    return counted


def _identities(seen: Visible, identity: Identity) -> dict[Place, Hashable]:
    return {(where, record.offset): identity(record) for where, records in seen.items() for record in records}


def _belonging_together(
    calls: Iterable[HandlerCall], expected: Counter[Output], identity: Identity
) -> dict[str, set[Output]]:
    """Return the outputs of each call with several outputs, counting only outputs that no other call has."""
    by_call: dict[str, set[Output]] = {}
    for call in calls:
        sent = {(topic, identity(_as_record(topic, key, value))) for topic, key, value in call.sent}
        mine = {output for output in sent if expected[output] == 1}
        if len(mine) > 1:
            by_call[call.label] = mine
    return by_call


def _as_record(topic: str, key: bytes | None, value: bytes | None) -> ConsumerRecord:
    from eventbus.types import TimestampType

    return ConsumerRecord(topic, 0, -1, -1, TimestampType.CREATE_TIME, key, value)


def _uncommitted(life: Process) -> Generator[tuple[str, TopicPartition]]:
    """Yield partitions with records that a handler's group has not committed."""
    for runner in life.handlers:
        committed = life.committed.get(runner.group, {})
        for where in topics_of(runner.handler, life.seen_at_end):
            records = life.seen_at_end[where]
            if records and committed.get(where, 0) <= records[-1].offset:
                yield runner.group, where


# -- judging -----------------------------------------------------------------------------------------------------------


def judge(run: Run, expected: Expected, identity: Identity) -> list[Finding]:
    """Return the consequences of the end, or the ends, of the process in this run."""
    return list(_Judge(run, expected, identity).findings())


class _Judge:
    def __init__(self, run: Run, expected: Expected, identity: Identity) -> None:
        self._run = run
        self._expected = expected
        self._identity = identity
        self._last = run.last
        self._handlers = [(self._last.label_of(one), one.handler) for one in self._last.handlers]
        self._at = ", then ".join(f"{_ENDED[run.way]} {life.ended_at}" for life in run.past)

    def _finding(self, kind: Kind, where: str, which: str, what: str, advice: str) -> Finding:
        return Finding(kind, self._at, where, which, what, advice, len(self._run.past) > 1)

    def findings(self) -> Generator[Finding]:
        yield from self._failures()
        yield from self._calls()
        yield from self._outputs()
        yield from self._half_done()
        yield from self._state()

    def _failures(self) -> Generator[Finding]:
        last = self._last
        if last.error is not None:
            yield self._finding(
                "failed",
                "the next start",
                "",
                f"fails: {type(last.error).__name__}: {last.error}",
                "a handler must be able to handle a record again after any end",
            )
        elif last.is_stuck:
            yield self._finding(
                "stuck",
                "the next start",
                "",
                "does not come to an end within limit_seconds",
                "a handler waits for something that the first life has left, or that never comes",
            )
        for group, where in _uncommitted(last):
            if (group, where) not in self._expected.uncommitted and last.error is None:
                yield self._finding(
                    "not_committed",
                    f"group {group}",
                    str(where),
                    "is never committed as a whole",
                    "a record is not acknowledged, or its partition has stopped",
                )

    # records ---------------------------------------------------------------------------------------------------------

    def _calls(self) -> Generator[Finding]:
        calls: dict[tuple[str, Place], list[HandlerCall]] = defaultdict(list)
        for life in self._run.lives:
            for call in life.calls:
                for place in call.records:
                    calls[call.handler, place].append(call)
        names = _identities(self._last.seen_at_end, self._identity)
        for label, handler in self._handlers:
            for where in topics_of(handler, self._last.seen_at_end):
                for record in self._last.seen_at_end[where]:
                    place = where, record.offset
                    if (where.topic, names[place]) in self._expected.handled[label]:
                        yield from self._of_record(label, handler, record, calls[label, place])

    def _of_record(
        self, label: str, handler: Handler[Any, Any], record: ConsumerRecord, calls: list[HandlerCall]
    ) -> Generator[Finding]:
        name = f"{record.topic_partition}@{record.offset}" + (
            "" if record.key is None else f" (key {record.key!r:.40})"
        )
        done = sum(call.is_done for call in calls)
        spec = handler.spec
        if not done:
            yield self._finding("lost", label, name, _how_lost(calls), _why_lost(handler, calls))
        elif len(calls) > 1:
            times = "handled twice" if done == 2 else f"handled {done} times" if done > 1 else "begun again"
            why = _why_repeated(spec.delivery, self._run.way, done)
            yield self._finding("repeated", label, name, times, why)

    # outputs ---------------------------------------------------------------------------------------------------------

    def _outputs(self) -> Generator[Finding]:
        expected, got = self._expected.outputs, outputs(self._last.seen_at_end, self._expected.found, self._identity)
        by_topic: dict[str, list[tuple[Hashable, int, int]]] = defaultdict(list)
        for topic, name in {**expected, **got}:
            by_topic[topic].append((name, expected[topic, name], got[topic, name]))
        for topic, found in by_topic.items():
            for name, before, after in found:
                if after < before:
                    yield self._finding(
                        "missing_output",
                        topic,
                        f"{name!r:.80}",
                        "is missing",
                        self._why_missing(),
                    )
                elif after > before:
                    often = f"there {after} times" if before else "there, and never without a crash"
                    yield self._finding("doubled_output", topic, f"{name!r:.80}", often, self._why_doubled())

    def _why_missing(self) -> str:
        if any(handler.spec.delivery == "at-most-once" for _, handler in self._handlers):
            return "at-most-once: outputs of records that were committed and not handled to their end are missing"
        return (
            "an input was committed before its output was stored: return outputs from the handler (@bus.producer), or "
            "await bus.send before it returns or acknowledges"
        )

    def _why_doubled(self) -> str:
        if any(handler.spec.exactly_once for _, handler in self._handlers):
            return (
                "doubled outputs of an exactly-once handler were sent past its transaction: return them "
                "(@bus.producer), or take `tx: Transaction` and tx.send them; bus.send is stored at once and not undone"
            )
        return (
            "doubled outputs: at-least-once sends again what a dead process had sent. Use exactly_once=True, or let "
            "the readers of the topic know a record by a key of its own"
        )

    def _half_done(self) -> Generator[Finding]:
        """Find records with partial outputs: directly after an end, before the next life repairs it, and at last."""
        lives = [life for life in (*self._run.past[1:], self._last) if isinstance(life, Process)]
        seen = [(life.found, "until the next start") for life in lives]
        for visible, until in [*seen, (self._last.seen_at_end, "for good")]:
            got = outputs(visible, self._expected.found, self._identity)
            for label, together in self._expected.groups.items():
                there = {output for output in together if got[output]}
                if there and there != together:
                    gone = ", ".join(sorted({topic for topic, _ in together - there}))
                    yield self._finding(
                        "half_done",
                        label,
                        "",
                        f"readers see its output in {', '.join(sorted({topic for topic, _ in there}))} "
                        f"and not in {gone}, {until}",
                        "what belongs together is one transaction: exactly_once=True, or bus.transaction(id)",
                    )

    # the state -------------------------------------------------------------------------------------------------------

    def _state(self) -> Generator[Finding]:
        before, after = self._expected.state, self._run.state
        if before == after:
            return
        yield self._finding(
            "state",
            "state()",
            "",
            f"is {_how_different(before, after)}",
            "effects outside of the log: store them together with the record's topic, partition and offset (or its own "
            "id), and leave out what is there already; and commit or acknowledge only after them",
        )


def _how_different(before: Any, after: Any) -> str:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return _changed(cast("Mapping[Any, Any]", before), cast("Mapping[Any, Any]", after))
    collections = (list, tuple, set, frozenset)
    if isinstance(before, collections) and isinstance(after, collections):
        one, other = _counted(cast("Iterable[Any]", before)), _counted(cast("Iterable[Any]", after))
        return difference(one, other) or f"in another order: {after!r:.80}"
    return f"{after!r:.80}, without a crash {before!r:.80}"


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    keys = [key for key in {**before, **after} if key not in before or key not in after or before[key] != after[key]]
    parts: list[str] = []
    for key in keys[:3]:
        was = f"instead of {before[key]!r:.40}" if key in before else "and was not there"
        parts.append(f"{after[key]!r:.40} for {key!r:.40} {was}" if key in after else f"without {key!r:.40}")
    return "; ".join(parts) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _counted(values: Iterable[Any]) -> Counter[Any]:
    values = list(values)
    try:
        return Counter(values)
    except TypeError:
        return Counter(map(repr, values))


def _how_lost(calls: list[HandlerCall]) -> str:
    if not calls:
        return "is never handled"
    if any(call.swallowed for call in calls):
        return "was cancelled half way, returned all the same, and is never handled again"
    return "was begun, cut short, and is never handled again"


def _why_lost(handler: Handler[Any, Any], calls: list[HandlerCall]) -> str:
    spec = handler.spec
    if any(call.swallowed for call in calls):
        return (
            "the handler swallows its cancellation, so its record counts as handled: catch Exception, not "
            "BaseException, and raise what cancelled it again"
        )
    if spec.delivery == "at-most-once":
        return "at-most-once: offsets are committed before the handler runs, and a crash loses what was under way"
    if spec.ack == "manual":
        return 'ack="manual": the record was acknowledged before its work was done: acknowledge last'
    return "the offset was committed before the handler had finished: no delivery of this library does that by itself"


def _why_repeated(delivery: str, way: Way, done: int) -> str:
    if way == "stop" and done > 1:
        return "a clean stop repeats nothing that was finished: please report this"
    if done < 2:
        return "begun again: what its first call had done outside of the log by then is done again"
    if delivery == "exactly-once":
        return "exactly-once is about outputs: the handler itself runs again when its transaction was aborted"
    return (
        "handled twice: it ended after the handler and before the commit. At-least-once: make the handler repeatable "
        "(upsert by key or offset), or use exactly_once=True if its effects are outputs"
    )

"""Inject the faults that every service meets sooner or later: rebalances, lost sessions, outages, fencing, slow disks.

Available as ``log.faults`` of a bus under test. Each method documents the real event that it simulates.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import cast, get_args

import anyio
import msgspec

from eventbus.backends.base import ConsumerConfig
from eventbus.backends.engine import Engine
from eventbus.backends.membership import GiveUp, Membership
from eventbus.client.bus import EventBus
from eventbus.errors import ConfigError, CoordinatorNotAvailable, KafkaError, RequestTimedOut
from eventbus.suggest import nearest
from eventbus.testing.faulty import Call, FaultyBackend, FaultyConsumer, Step, Wait
from eventbus.types import TopicPartition

_PATIENCE_SECONDS = 60
"""How long a client retries a step (``default.api.timeout.ms``)."""
_NEVER_GIVEN_UP: tuple[Step, ...] = ("fetch",)
"""A poll without a connection returns nothing, and the next poll tries again."""


class Faults:
    """Inject faults into the log of a bus under test."""

    def __init__(self, bus: EventBus, backend: FaultyBackend) -> None:
        self._bus = bus
        self._backend = backend

    @property
    def hooks_count(self) -> int:
        """The number of active faults."""
        return len(self._backend.hooks)

    # groups ----------------------------------------------------------------------------------------------------------

    async def rebalance(self, group: str) -> None:
        """Let another member join and leave: every partition is revoked in order, and assigned again.

        This happens in a rolling deployment, or when a service is scaled up and down. Handlers finish records in flight
        and commit before their partitions are revoked. Returns when the previous members have their partitions again; a
        handler that waits for a fake clock delays that, so advance the clock in another task. Raises ConfigError for a
        group without members.
        """
        config = self._members(group)[0].config
        engine = self._backend.engine
        topics = {topic for member in self._members(group) for topic, _ in member.assignment()}
        woken = anyio.Event()

        def wake() -> None:
            woken.set()

        other = Membership(engine, _as_another(config), group, wake, lambda _: None)
        engine.add_member(other)
        other.subscribe(topics)
        try:
            while not other.is_settled:
                woken = anyio.Event()
                step = other.advance()
                if step is None:
                    if not other.is_settled:
                        await woken.wait()
                elif isinstance(step, GiveUp):
                    other.given_up(step)
                else:
                    other.taken(step)
        finally:
            engine.remove_member(other)
            other.leave("the test's other member goes")
            engine.deadline_changed()
        await self._until_back(engine, group)

    async def _until_back(self, engine: Engine, group: str) -> None:
        """Return when the group's members in this process have their partitions."""
        while not all(member.is_settled for member in engine.members_of(group)):
            await self._backend.until_moved()

    async def lose(self, group: str) -> None:
        """Remove the members from the group: they lose their partitions without being able to commit.

        This happens when a session expires: the process was paused (a laptop's lid, a virtual machine that moves, a
        long garbage collection) or cut off. Records that were finished but not committed are handled again; commits are
        refused now. The members join again with their next poll. Raises ConfigError for a group without members.
        """
        self._members(group)
        await self._backend.remove_group_members(group)

    def redeliver(self, group: str, topic: str, partition: int = 0, offset: int = 0) -> None:
        """Make the next fetch return the records of the partition from ``offset`` on again.

        This happens after a crash, or a rebalance that came before the commit: with at-least-once delivery a handler
        must tolerate repeated records. Raises ConfigError if no member of the group reads the partition.
        """
        topic_partition = TopicPartition(topic, partition)
        members = self._members(group)
        for member in members:
            if topic_partition in member.assignment():
                member.seek(topic_partition, offset)
                return
        held = [str(one) for member in members for one in member.assignment()]
        raise ConfigError(
            f"no member of group {group!r} reads {topic_partition}{nearest(str(topic_partition), held)}: "
            f"they read {', '.join(held) or 'nothing'}"
        )

    def _members(self, group: str) -> list[FaultyConsumer]:
        members = [one for one in self._backend.consumers if one.config.group == group]
        if not members:
            known = sorted({one.config.group for one in self._backend.consumers if one.config.group})
            raise ConfigError(
                f"group {group!r} has no member here{nearest(group, known)}: the groups with members are "
                f"{', '.join(map(repr, known)) or 'none (is the bus running?)'}"
            )
        return members

    # transactions ----------------------------------------------------------------------------------------------------

    async def fence(self, name: str) -> None:
        """Let another producer take over the transactional id ``name``, or all ids of the exactly-once handler
        ``name``.

        This happens when a process seems dead, is replaced, and then wakes up: a zombie. Its open transaction is
        aborted, and everything it writes from then on is refused with ProducerFenced. An exactly-once handler takes its
        id back and handles the records again. Raises ConfigError if no producer has used the id yet.
        """
        known = [one.transactional_id for one in await self._backend.list_transactions()]
        if name in known:
            chosen = [name]
        else:
            # An exactly-once handler has one per partition: group.handler.topic-partition.
            runners = [(runner.group, runner.handler.__name__) for runner in self._bus.context.runners]
            prefixes = [f"{group}.{handler}." for group, handler in runners if name in (group, handler)]
            chosen = [one for one in known if one.startswith(tuple(prefixes))]
        if not chosen:
            names = [*known, *(runner.handler.__name__ for runner in self._bus.context.runners)]
            raise ConfigError(
                f"no producer has taken the transactional id {name!r}, and no exactly-once handler of that name has "
                f"begun a transaction{nearest(name, names)}: known are {', '.join(map(repr, known)) or 'none'}"
            )
        for transactional_id in chosen:
            await self._backend.fence_producer(transactional_id)

    # the log ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def outage(
        self, *steps: Step, group: str | None = None, topic: str | None = None, hang: bool = False
    ) -> Generator[None]:
        """Make the log unreachable in ``with log.faults.outage():``: every call to it fails with a retriable error.

        This happens when a broker restarts or the network fails. ``steps``: only these ("fetch", "send", "flush",
        "commit", "init_transactions", "send_offsets", "commit_transaction", "abort_transaction"); ``group``: only its
        consumers; ``topic``: only sends to it. ``hang=True``: calls wait until it is over, as they do while a client
        still retries, and fail with RequestTimedOut after 60 s of the clock; a fetch waits without limit.
        """
        over = anyio.Event()
        chosen = _checked(steps) or tuple(get_args(Step))

        def meet(call: Call) -> Wait | None:
            # A fetch that waits inside the log when the outage begins must not come back with records.
            is_meant = call.step in chosen and (call.when == "before" or call.step == "fetch")
            if not is_meant or not _is_of(call, group, topic) or (call.step == "flush" and not hang):
                return None  # a flush has no result of its records: each delivery has its own outcome
            if not hang:
                raise _no_answer(call.step, "a test's outage")
            return over.wait if call.step in _NEVER_GIVEN_UP else partial(self._wait_for_end, over, call.step)

        with self._hooked(meet):
            try:
                yield
            finally:
                over.set()

    async def _wait_for_end(self, over: anyio.Event, step: Step) -> None:
        with self._backend.timers.move_on_after(_PATIENCE_SECONDS):
            await over.wait()
        if not over.is_set():
            raise RequestTimedOut(f"{step}: the log could not be reached for {_PATIENCE_SECONDS} s (a test's outage)")

    @contextmanager
    def slow(self, *steps: Step, ms: float, group: str | None = None, topic: str | None = None) -> Generator[None]:
        """Delay these steps, or all, by the bus's clock: ``with log.faults.slow("commit", ms=200):``.

        This happens when a disk or a network is busy. With a fake clock they wait until it is advanced.
        """
        chosen = _checked(steps) or tuple(get_args(Step))

        def wait(call: Call) -> Wait | None:
            if call.when == "after" or call.step not in chosen or not _is_of(call, group, topic):
                return None
            return partial(self._backend.timers.sleep, ms / 1000)

        with self._hooked(wait):
            yield

    def fail_next(self, step: Step, error: Exception | None = None, *, times: int = 1, after: bool = False) -> None:
        """Make the next ``times`` calls of ``step`` raise ``error`` and do nothing; by default the error of a lost
        connection.

        ``after=True``: the calls take effect, and only the answer is lost: a retry finds its own work. Not for sends
        that are not awaited: their result is their delivery.
        """
        _checked((step,))
        when = "after" if after else "before"
        raised = error if error is not None else _no_answer(step, "a test's fault")
        left = times

        def fail(call: Call) -> None:
            nonlocal left
            if call.step != step or call.when != when:
                return
            left -= 1
            if not left:
                self._backend.hooks.remove(fail)
            raise raised

        if left > 0:
            self._backend.hooks.append(fail)

    async def restart_coordinator(self) -> None:
        """Restart the log's process: groups and transactions lose what they keep only in memory.

        This happens when the coordinator of a group moves to another broker, or its broker restarts. Committed offsets,
        generations and transactions are stored, and continue; a member that was about to join has to join again. A
        member that left during an unfinished rebalance counts as a member again, and the group waits for it until its
        session ends: advance the clock past ``session_timeout_ms``.
        """
        self._backend.engine.restart()

    @contextmanager
    def _hooked(self, hook: Callable[[Call], Wait | None]) -> Generator[None]:
        self._backend.hooks.append(hook)
        try:
            yield
        finally:
            self._backend.hooks.remove(hook)


def _no_answer(step: Step, why: str) -> KafkaError:
    if step in ("fetch", "send", "flush"):
        return RequestTimedOut(f"{step}: no answer in time ({why})")
    return CoordinatorNotAvailable(f"{step}: the coordinator cannot be reached ({why})")


def _as_another(config: ConsumerConfig) -> ConsumerConfig:
    """Return the settings of a member for a different member."""
    return msgspec.structs.replace(config, group_instance_id=None, client_id="another")


def _is_of(call: Call, group: str | None, topic: str | None) -> bool:
    return (group is None or call.group == group) and (topic is None or call.topic == topic)


def _checked(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    known = cast("tuple[str, ...]", get_args(Step))
    for step in steps:
        if step not in known:
            raise ConfigError(f"there is no step {step!r}{nearest(step, known)}: there are {', '.join(known)}")
    return steps

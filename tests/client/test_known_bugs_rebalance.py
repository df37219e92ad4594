"""Reproduce bugs of other clients when partitions move. The list is in test_known_bugs.py."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.membership import GiveUp, Membership
from eventbus.errors import (
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.client.fleets import committed, fleet, life
from tests.client.trials import turns
from tests.support import until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOST_PLACE = (UnknownMemberId, IllegalGeneration, RebalanceInProgress)


# revokes and losses ---------------------------------------------------------------------------------------------------


async def test_librdkafka_3745_a_position_does_not_survive_a_revoke() -> None:
    """An offset stored before a revoke was committed after it; here a commit covers what is held since.

    confluentinc/librdkafka#3745, #3774.
    """
    async with fleet(partitions=2) as all_:
        for partition in range(2):
            await all_.send(3, partition)
        is_looking = True

        def assigned(partitions: list[TopicPartition]) -> None:
            if not is_looking:
                first.pause(*partitions)

        async with all_.keeper.new_consumer("t", group="g", on_assigned=assigned) as first:
            assert len(await first.poll()) == 6
            is_looking = False
            async with all_.keeper.new_consumer("t", group="g") as second:
                for _ in range(10):
                    await first.poll(0)
                    await second.poll(0)
                [moved] = second.assignment()
                await second.commit({moved: 1})
            for _ in range(10):
                assert await first.poll(0) == []
            assert first.assignment() == [T0, T1]
            await first.commit()
            assert await committed(all_.keeper) == {moved: 1}


async def test_faust_216_reading_goes_on_at_the_commit_when_a_partition_returns() -> None:
    """Fetching was resumed before seeking back: events were skipped. faust-streaming/faust#216."""
    async with fleet() as all_:
        await all_.send(6)
        async with all_.keeper.new_consumer("t", group="g") as first:
            assert [record.offset for record in await first.poll(max_records=4)] == [0, 1, 2, 3]
            await first.commit({T0: 2})
            async with all_.keeper.new_consumer("t", group="g") as second:
                for _ in range(5):
                    await second.poll(0, max_records=1)
                    if T0 not in first.assignment():
                        break
                    await first.poll(0, max_records=1)
            found: list[int] = []
            with anyio.fail_after(20):
                while 5 not in found:
                    found += [record.offset for record in await first.poll(0)]
        assert found[-4:] == [2, 3, 4, 5]


async def test_faust_221_what_was_fetched_ahead_is_dropped_when_the_partition_goes() -> None:
    """Prefetched events were delivered after a rebalance, out of order. faust-streaming/faust#221, #223."""
    async with fleet(partitions=2) as all_:
        go_on = anyio.Event()
        seen: list[tuple[str, int, int]] = []

        def service(name: str) -> EventBus:
            bus = EventBus(all_.keeper.url, clock=all_.clock, client_id=name)

            @bus.consumer("t", group="g")
            async def handle(value: bytes, record: ConsumerRecord) -> None:
                if name == "a" and record.offset == 1:
                    await go_on.wait()
                seen.append((name, record.partition, record.offset))

            return bus

        for partition in range(2):
            await all_.send(6, partition)
        async with service("a") as a:
            await until(lambda: len(seen) == 2)
            async with service("b") as b:
                await turns(30)
                go_on.set()
                await b.drain()
                await a.drain()
        for partition in range(2):
            assert [offset for _, where, offset in seen if where == partition] == list(range(6))
        assert {name for name, _, _ in seen} == {"a", "b"}


async def test_faust_318_a_partition_that_returns_is_committed_again() -> None:
    """Nothing was committed any more once a partition had come back. faust-streaming/faust#318, robinhood/faust#458."""
    async with fleet() as all_, all_.service("a") as a:
        await all_.send(2)
        await a.drain()
        for round_ in range(1, 4):
            async with all_.service("b") as b:
                await all_.send(2)
                await a.drain()
                await b.drain()
            await all_.send(2)
            await a.drain()
            await all_.clock.advance(seconds=1)
            assert all_.offsets() == list(range(2 + 4 * round_))
        await a.close()
        assert await committed(all_.keeper) == {T0: 14}


async def test_faust_323_rebalances_neither_crash_nor_double_an_exactly_once_handler() -> None:
    """A rebalance crashed the workers, and their results were there twice. faust-streaming/faust#323."""
    async with fleet(partitions=2) as all_:

        def service(name: str) -> EventBus:
            bus = EventBus(all_.keeper.url, clock=all_.clock, client_id=name)

            @bus.consumer("t", group="g", exactly_once=True, transaction_records=3)
            @bus.producer("out")
            async def double(value: bytes, record: ConsumerRecord) -> bytes:
                await anyio.lowlevel.checkpoint()
                return b"%d:%d" % (record.partition, record.offset)

            return bus

        async with service("a") as a:
            for _ in range(4):
                for partition in range(2):
                    await all_.send(5, partition)
                async with service("b") as b:
                    await turns(25)
                    await b.drain()
            await a.drain()
        async with all_.keeper.new_consumer("out") as reader:
            values = [record.value for record in await reader.poll(0, max_records=1_000)]
        assert sorted(values) == sorted(b"%d:%d" % (p, n) for p in range(2) for n in range(20))


async def test_kafkajs_1046_a_handler_that_outlasts_its_partition_commits_nothing() -> None:
    """Handlers went on with partitions that were others', and their offsets were committed. tulios/kafkajs#1046."""
    async with fleet() as all_:
        begun: list[str] = []
        go_on = anyio.Event()

        def service(name: str) -> EventBus:
            bus = EventBus(all_.keeper.url, clock=all_.clock, client_id=name)

            @bus.consumer("t", group="g")
            async def handle(value: bytes, record: ConsumerRecord) -> None:
                begun.append(name)
                await go_on.wait()

            return bus

        await all_.send(1)
        async with life(service("a")) as a:
            await until(lambda: begun == ["a"])
            await all_.keeper.admin.remove_group_members("g")  # its session is over
            a.stop.set()
            await turns(20)
            go_on.set()
            await a.ended.wait()
            assert await committed(all_.keeper) == {}
        async with service("b") as b:
            await b.drain()
        assert begun == ["a", "b"]
        assert await committed(all_.keeper) == {T0: 1}


async def test_librdkafka_5604_what_is_lost_during_a_rebalance_is_not_committed() -> None:
    """A poll timeout during a rebalance led to commits of lost partitions. confluentinc/librdkafka#5604."""
    async with fleet(partitions=2) as all_:
        for partition in range(2):
            await all_.send(3, partition)
        options = {"group": "g", "max_poll_interval_ms": 10_000, "session_timeout_ms": 6_000}
        async with (
            all_.keeper.new_consumer("t", **options) as slow,
            all_.keeper.new_consumer("t", group="g", max_poll_interval_ms=600_000) as other,
        ):
            for _ in range(20):
                await slow.poll(0, max_records=1)
                await other.poll(0, max_records=1)
            assert len(slow.assignment()) == 1
            async with all_.keeper.new_consumer("t", group="g") as third:  # a rebalance begins
                await third.poll(0)
                await all_.clock.advance(seconds=11)
                assert slow.assignment() == []
                with pytest.raises(LOST_PLACE):
                    await slow.commit()
                with pytest.raises(LOST_PLACE):
                    await slow.commit({T0: 3, T1: 3})
            assert await committed(all_.keeper) == {}


async def test_aiokafka_929_between_two_polls_a_partition_stays_whose_it_is() -> None:
    """A rebalance in the background broke the textbook loop of poll, handle, commit. aio-libs/aiokafka#929, #933."""
    async with fleet() as all_:
        await all_.send(3)
        async with all_.keeper.new_consumer("t", group="g") as one:
            assert len(await one.poll()) == 3
            async with all_.keeper.new_consumer("t", group="g") as two:
                await all_.clock.advance(seconds=9)
                assert one.assignment() == [T0] and two.assignment() == []
                await one.commit()
            assert await committed(all_.keeper) == {T0: 3}


async def test_aiokafka_1084_a_revoke_callback_may_commit() -> None:
    """The callback was called when it was too late for what its page suggests. aio-libs/aiokafka#1084."""
    async with fleet() as all_:
        await all_.send(3)
        told: list[Any] = []

        async def revoked(partitions: list[TopicPartition]) -> None:
            await one.commit({T0: 2})
            told.append((partitions, one.assignment()))

        async with all_.keeper.new_consumer("t", group="g", on_revoked=revoked) as one:
            await one.poll()
            async with all_.keeper.new_consumer("t", group="g") as two:
                for _ in range(10):
                    await one.poll(0)
                    await two.poll(0)
                assert told[0] == ([T0], [T0])
        assert await committed(all_.keeper) == {T0: 2}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_faust_502_what_is_finished_is_not_handled_again_when_members_come_and_go(
    assignor: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Autoscaling handled finished messages again. faust-streaming/faust#502, aio-libs/aiokafka#821, #933.

    Also quixio/quix-streams#705: commits failed in rebalances of cooperative-sticky.
    """
    caplog.set_level(logging.WARNING)
    async with fleet(partitions=4) as all_, all_.service("a", partition_assignment_strategy=assignor) as a:
        for round_ in range(3):
            async with (
                all_.service(f"b{round_}", partition_assignment_strategy=assignor) as b,
                all_.service("c", partition_assignment_strategy=assignor),
            ):
                for partition in range(4):
                    await all_.send(3, partition)
                await turns(7 * round_)
                await b.drain()
        await a.drain()
        for partition in range(4):
            assert all_.offsets(partition) == list(range(9))
    assert "could not be committed" not in caplog.text and "lost" not in caplog.text


class Peer:
    """A member that takes a step when the test says so."""

    def __init__(self, engine: Any, name: str) -> None:
        config = ConsumerConfig(group="g", client_id=name, assignors=("cooperative-sticky",))
        self.member = Membership(engine, config, "g", lambda: None, lambda _: None)
        engine.add_member(self.member)
        self.member.subscribe(["t"])

    def go_on(self) -> None:
        while (step := self.member.advance()) is not None:
            if isinstance(step, GiveUp):
                self.member.given_up(step)
            else:
                self.member.taken(step)


async def test_quix_705_a_member_that_closes_in_a_rebalance_commits_what_it_keeps() -> None:
    """Commits failed in rebalances of cooperative-sticky; here closing first finds out what the group says.

    quixio/quix-streams#705.
    """
    async with fleet(partitions=2) as all_:
        engine = all_.keeper.context.backend.engine
        leader = Peer(engine, "leader")
        leader.go_on()
        async with life(
            all_.service("a", partition_assignment_strategy="cooperative-sticky", commit_interval_ms=60_000)
        ) as a:
            with anyio.fail_after(20):
                while len(leader.member.owned) != 1 or not leader.member.is_settled:
                    leader.go_on()
                    await turns(5)
            for partition in range(2):
                await all_.send(3, partition)
            await until(lambda: len(all_.handled) == 3)
            third = Peer(engine, "third")
            third.go_on()  # the group prepares a rebalance
            leader.go_on()  # the leader joins it
            await turns(20)  # so does "a": all have joined, and the leader has not assigned yet
            with pytest.raises(RebalanceInProgress):
                await a.bus.context.runners[0].commit()
            a.stop.set()
            await turns(20)
            for peer in (leader, third, leader):
                peer.go_on()
                await all_.clock.advance(seconds=1)
            await a.ended.wait()
        assert list((await committed(all_.keeper)).values()) == [3]
        for peer in (leader, third):
            engine.remove_member(peer.member)

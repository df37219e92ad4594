"""List and mark dead letters, on a log in memory."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from dlq.dead_letters import DeadLetters, Selection
from dlq.state import Step
from eventbus import TopicPartition
from eventbus.errors import ConfigError, PayloadGone, UnknownTopicOrPartition
from eventbus.testing import FakeClock, TestBus
from tests.dlq.letters.making import NOW_MS, TOPIC, letter, put, topics
from tests.support import records_of


def letters_of(bus: TestBus, *names: str) -> DeadLetters:
    return DeadLetters(bus, names or None, clock=bus.clock)


async def test_log_without_dead_letters(bus: TestBus) -> None:
    async with bus:
        letters = letters_of(bus)
        assert await letters.topics() == []
        assert await letters.groups() == []
        assert await letters.resolve(Selection()) == 0
        with pytest.raises(UnknownTopicOrPartition):
            await letters_of(bus, "dlq.absent").groups()
        with pytest.raises(UnknownTopicOrPartition):
            await letters.get("dlq.absent/0/0")


@pytest.mark.parametrize("wrong", [{"topic": "failures"}, {"ids": {f"{TOPIC}/0/0", "failures/0/0"}}])
async def test_topic_that_is_not_followed_is_told(bus: TestBus, wrong: dict[str, Any]) -> None:
    async with bus:
        await topics(bus, TOPIC, "failures")
        letters, chosen = letters_of(bus), Selection(**wrong)
        with pytest.raises(ConfigError, match=r"topics=\['failures'\]"):
            await letters.groups(selection=chosen)
        with pytest.raises(ConfigError, match="failures"):
            await letters.park(chosen)
        with pytest.raises(ConfigError, match="failures"):
            await letters.redrive(chosen)
        with pytest.raises(ConfigError, match="failures"):
            [one async for one in letters.letters(chosen)]
        assert await letters_of(bus, "failures", TOPIC).groups(selection=chosen) == []


async def test_topic_of_the_bus_s_own_handler_is_followed(bus: TestBus) -> None:
    @bus.consumer("orders", group="billing", dead_letter="failures")
    def bill(order: bytes) -> None:
        raise ValueError("no price")

    async with bus:
        await bus.send("orders", b"{}")
        letters = letters_of(bus)
        while not (cases := await letters.groups()):
            await bus.clock.advance(ms=100)
        (case,) = cases
        assert (case.topic, case.handler, case.group, case.error_class, case.count) == (
            "failures", "bill", "billing", "ValueError", 1,
        )  # fmt: skip


async def test_two_services_share_a_topic(bus: TestBus) -> None:
    async with bus:
        await topics(bus, "dlq.all", partitions=2)
        await put(bus, *[letter(n) for n in range(3)], topic="dlq.all")
        await put(bus, *[letter(n, handler="ship", group="shipping") for n in range(5)], topic="dlq.all", partition=1)
        await put(bus, letter(9, error=KeyError("x")), topic="dlq.all")
        letters = letters_of(bus)
        (topic,) = await letters.topics()
        assert (topic.name, topic.count, topic.groups, topic.cases) == ("dlq.all", 9, ("billing", "shipping"), 3)
        assert (topic.oldest_open_ms, topic.newest_ms) == (NOW_MS, NOW_MS + 9)
        cases = await letters.groups()
        assert [(one.group, one.handler, one.error_class, one.count) for one in cases] == [
            ("shipping", "ship", "ValueError", 5),
            ("billing", "bill", "ValueError", 3),
            ("billing", "bill", "KeyError", 1),
        ]
        assert cases[0].sample_ids == tuple(f"dlq.all/1/{n}" for n in (4, 3, 2, 1, 0))
        assert (cases[0].first_ms, cases[0].last_ms) == (NOW_MS, NOW_MS + 4)
        mine = [one async for one in letters.letters(Selection(group="billing"))]
        assert [one.id for one in mine] == [f"dlq.all/0/{n}" for n in range(4)]
        assert {one.case for one in mine} == {cases[1].case, cases[2].case}


async def test_view_follows_the_topic(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, "orders")
        letters = letters_of(bus)
        assert await letters.groups() == []
        for count in (1, 2, 3):
            await put(bus, letter(count))
            (case,) = await letters.groups()
            assert case.count == count
        await topics(bus, "orders-dlq")
        await put(bus, letter(1), topic="orders-dlq")
        assert [one.name for one in await letters.topics()] == [TOPIC, "orders-dlq"]
        await bus.admin.delete_records({TopicPartition(TOPIC, 0): 2})  # retention
        (case,) = await letters.groups(TOPIC)
        assert (case.count, case.sample_ids) == (1, (f"{TOPIC}/0/2",))
        with pytest.raises(ConfigError, match="retention"):
            await letters.get(f"{TOPIC}/0/1")
        await bus.admin.delete_topics("orders-dlq")
        assert [one.name for one in await letters.topics()] == [TOPIC]


async def test_letters_by_time(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, "dlq.other", "dlq.late")
        await put(bus, *[letter(n) for n in (0, 5, 9, 10, 25, 39, 40, 70)])
        await put(bus, letter(5), topic="dlq.other")
        letters = letters_of(bus)
        assert await letters.rates(NOW_MS + 5, 10, 3) == {
            TOPIC: [3, 0, 1],
            "dlq.other": [1, 0, 0],
            "dlq.late": [0, 0, 0],
        }
        assert await letters.rates(NOW_MS + 100, 10, 2, topic=TOPIC) == {TOPIC: [0, 0]}
        with pytest.raises(ConfigError, match="bucket_ms=0"):
            await letters.rates(NOW_MS, 0, 1)


async def test_uncommitted_letters_are_none(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        letters = letters_of(bus)
        with pytest.raises(RuntimeError):
            async with bus.transaction("t") as tx:
                await tx.send(TOPIC, b"", headers=letter(1).headers)
                assert await letters.groups() == []
                raise RuntimeError
        await put(bus, letter(3))
        (case,) = await letters.groups()
        (one,) = [one async for one in letters.letters(Selection())]
        assert (case.count, case.sample_ids) == (1, (one.id,))


async def test_selection_narrows_the_view(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await put(bus, *[letter(n, value=b"v%d" % n, error=[ValueError(), KeyError()][n % 2]) for n in range(10)])
        letters = letters_of(bus)

        async def counts(**chosen: Any) -> list[tuple[str, int]]:
            return [(c.error_class, c.count) for c in await letters.groups(selection=Selection(**chosen))]

        assert await counts(error_class="KeyError") == [("KeyError", 5)]
        assert await counts(since_ms=NOW_MS + 3, until_ms=NOW_MS + 6, error_class="KeyError") == [("KeyError", 2)]
        assert await counts(contains="v7") == [("KeyError", 1)]
        assert await counts(ids={f"{TOPIC}/0/2", f"{TOPIC}/0/99", f"{TOPIC}/7/0"}) == [("ValueError", 1)]
        assert sum(count for _, count in await counts(limit=3)) == 3
        assert await counts(limit=0) == []
        assert await counts(status={"resolved"}) == []
        found = [one.offset async for one in letters.letters(Selection(contains="v", limit=4), limit=2)]
        assert found == [0, 1]


# what becomes of them ------------------------------------------------------------------------------------------------


async def test_marks_and_their_history(bus: TestBus, clock: FakeClock) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await put(bus, *[letter(n) for n in range(4)])
        letters, id = letters_of(bus), f"{TOPIC}/0/1"
        assert await letters.park(Selection(ids={id}), by="ann", note="waits for the prices") == 1
        assert await letters.resolve(Selection(), by="bob") == 3  # those that are open
        await clock.advance(seconds=5)
        assert await letters.resolve(Selection(ids={id}, status={"parked"}), by="bob", note="paid by hand") == 1
        assert await letters.resolve(Selection(ids={id}, status=None)) == 0
        (case,) = await letters.groups()
        assert (case.count, case.statuses) == (4, {"resolved": 4})
        assert await letters.groups(selection=Selection()) == []
        assert await letters.history(id) == (
            Step("parked", clock() - 5_000, "ann", "waits for the prices"),
            Step("resolved", clock(), "bob", "paid by hand"),
        )
        assert await letters.reopen(Selection(ids={id}, status=None), by="ann") == 1
        assert await letters.statuses([id, f"{TOPIC}/0/2", f"{TOPIC}/0/77"]) == {id: "open", f"{TOPIC}/0/2": "resolved"}
        assert await letters.history(f"{TOPIC}/0/77") == ()
        # The letters are as they were, and a program that starts now sees the same.
        assert len(await records_of(bus, TOPIC)) == 4
        (again,) = await letters_of(bus).groups()
        assert again.statuses == {"open": 1, "resolved": 3}
        configs = (await bus.admin.describe_topics(["_dlq_state"]))[0].configs
        assert configs["cleanup.policy"].value == "compact"


async def test_parked_by_the_handler_is_parked_from_the_start(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await put(bus, letter(1), letter(2, reason="parked"))
        letters = letters_of(bus)
        assert await letters.statuses([f"{TOPIC}/0/0", f"{TOPIC}/0/1"]) == {
            f"{TOPIC}/0/0": "open",
            f"{TOPIC}/0/1": "parked",
        }


@pytest.mark.system
async def test_many_letters_are_marked_at_once_while_others_come(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, partitions=3)
        for partition in range(3):
            await put(bus, *[letter(n) for n in range(900)], partition=partition)
        letters = letters_of(bus)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put, bus, letter(5_000))
            assert await letters.resolve(Selection(until_ms=NOW_MS + 5_000)) == 2_700
        assert (await letters.topics())[0].statuses == {"resolved": 2_700, "open": 1}


async def test_marks_of_a_topic_that_was_made_anew_are_not_its_own(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await put(bus, letter(1), letter(2))
        letters = letters_of(bus)
        await letters.resolve(Selection())
        await bus.admin.delete_topics(TOPIC)
        await topics(bus, TOPIC)
        await put(bus, letter(7))
        for one in (letters, letters_of(bus)):
            (case,) = await one.groups()
            assert case.statuses == {"open": 1}
        assert await letters.history(f"{TOPIC}/0/0") == ()
        assert await letters.park(Selection()) == 1
        assert [step.status for step in await letters.history(f"{TOPIC}/0/0")] == ["parked"]


async def test_lost_states_are_read_anew(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await put(bus, letter(1), letter(2, reason="parked"))
        letters = letters_of(bus)
        await letters.resolve(Selection(status=None))
        await bus.admin.delete_topics("_dlq_state")
        (case,) = await letters.groups()
        assert case.statuses == {"open": 1, "parked": 1}
        assert await letters.park(Selection()) == 1


async def test_topic_of_states_that_is_not_fit(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await bus.admin.create_topic("_dlq_state", 2, configs={"cleanup.policy": "compact"})
        await put(bus, letter(1))
        with pytest.raises(ConfigError, match="2 partition"):
            await letters_of(bus).resolve(Selection())
        await topics(bus, "states")
        with pytest.raises(ConfigError, match=r"cleanup.policy=delete.*eventbus topics alter states"):
            await DeadLetters(bus, state_topic="states").resolve(Selection())


# payloads ------------------------------------------------------------------------------------------------------------


async def test_payload_is_fetched_where_the_letter_has_none(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, "orders")
        await bus.send("orders", b"x" * 5_000, key=b"k")
        await bus.send("orders", None, key=b"k")
        large = letter(0, key=b"k", value=b"x" * 5_000, max_bytes=4_000)
        assert large.value is None
        tombstone = letter(1, key=b"k", value=None)
        elsewhere = letter(0, key=b"other", value=b"x" * 5_000, max_bytes=4_000)
        await put(bus, large, tombstone, elsewhere)
        letters = letters_of(bus)
        first, second, third = [one async for one in letters.letters(Selection())]
        assert await letters.payload(first) == b"x" * 5_000
        assert second.has_payload
        assert await letters.payload(second) is None
        with pytest.raises(PayloadGone, match="created again"):  # another key stands there
            await letters.payload(third)
        await bus.admin.delete_records({TopicPartition("orders", 0): 1})
        with pytest.raises(PayloadGone, match="orders-0 no longer holds offset 0: retention"):
            await letters.payload(first)


async def test_payload_is_not_taken_from_another_topic_of_the_same_name(bus: TestBus) -> None:
    bus.topic("orders")
    bus.topic("dlq.billing", configs={"max.message.bytes": 10_000})

    @bus.consumer("orders", group="billing", dead_letter=True)
    async def bill(order: bytes) -> None:
        raise ValueError("no price")

    async with bus:
        await bus.send("orders", b"old" * 5_000)
        await bus.drain()
        letters = letters_of(bus)
        [found] = [one async for one in letters.letters(Selection())]
        assert not found.has_payload and await letters.payload(found) == b"old" * 5_000
        await bus.admin.delete_topics(["orders"])
        await bus.admin.create_topic("orders")
        await bus.send("orders", b"new")
        with pytest.raises(PayloadGone, match="created again"):
            await letters.payload(found)


@pytest.mark.parametrize("source", [("__consumer_offsets", 0), ("absent", 0), ("orders", 7)])
async def test_payload_is_not_looked_for_everywhere(bus: TestBus, source: tuple[str, int]) -> None:
    async with bus:
        await topics(bus, TOPIC, "orders")
        await bus.admin.alter_group_offsets("g", {TopicPartition("orders", 0): 0})
        await put(bus, letter(0, source=TopicPartition(*source), value=b"x" * 5_000, max_bytes=4_000))
        letters = letters_of(bus)
        with pytest.raises(PayloadGone):
            await letters.payload(await letters.get(f"{TOPIC}/0/0"))


# the index -----------------------------------------------------------------------------------------------------------


async def test_index_goes_on_where_it_ended(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bus:
        await topics(bus, TOPIC, partitions=2)
        await put(bus, *[letter(n) for n in range(5)])
        letters = letters_of(bus)
        await letters.resolve(Selection(limit=2))
        expected = await letters.groups()
        monkeypatch.setattr("dlq.reading.dead_letter", lambda record: pytest.fail("it was read before"))
        assert await letters.groups() == expected
        monkeypatch.undo()
        await put(bus, letter(9), partition=1)
        (case,) = await letters.groups()
        assert (case.count, case.statuses) == (6, {"open": 4, "resolved": 2})
        await bus.admin.delete_topics(TOPIC)
        await topics(bus, TOPIC)
        await put(bus, letter(1))
        (case,) = await letters.groups()
        assert (case.count, case.statuses) == (1, {"open": 1})

"""Dead letters sent back, each once: twice, two at a time, cut off, and with faults in between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import anyio
import pytest

from dlq import redrive
from dlq.dead_letters import DeadLetters, Redriven, Selection
from dlq.redrive import Pace
from eventbus import ConsumerRecord, TopicPartition
from eventbus.broker import TopicDescription
from eventbus.client import ledger_writer
from eventbus.client.admin import Admin
from eventbus.client.producer import Producer
from eventbus.errors import ConfigError, RequestTimedOut, StorageFull, TransactionOutcomeUnknown
from eventbus.testing import FakeClock, TestBus
from tests.dlq.letters.making import ORDERS, TOPIC, letter, linked, put, topics
from tests.support import others_wait, records_of

CONNECT = tuple(
    (f"__connect.errors.{name}", value)
    for name, value in [("topic", b"orders"), ("partition", b"1"), ("offset", b"7"), ("connector.name", b"sink"),
                        ("exception.class.name", b"java.lang.Boom"), ("exception.message", b"boom")]
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was fenced takes the transactional id again at once."""
    monkeypatch.setattr(ledger_writer, "FIRST_PAUSE_SECONDS", 0.0001)


def letters_of(bus: TestBus) -> DeadLetters:
    return DeadLetters(bus, clock=bus.clock)


async def started(bus: TestBus, count: int, *, partitions: int = 1) -> DeadLetters:
    """Return the dead letters of ``orders``, ``count`` in all. The topic is empty."""
    await topics(bus, TOPIC)
    await topics(bus, "orders", partitions=partitions)
    await put(bus, *[letter(n, key=b"k%d" % (n % 7)) for n in range(count)])
    return letters_of(bus)


def links(count: int) -> Counter[bytes]:
    return Counter(json.dumps([TOPIC, 0, n], separators=(",", ":")).encode() for n in range(count))


# what is sent, and where to ------------------------------------------------------------------------------------------


async def test_letters_go_back_as_they_were(bus: TestBus, clock: FakeClock) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await topics(bus, "orders", partitions=3)
        headers = (("trace", b"1"), ("trace", None), ("eb-redrive-hops", b"1"))
        await put(
            bus,
            letter(0, key=b"k", value=b"\0\xff", headers=headers, source=TopicPartition("orders", 2)),
            letter(1, key=None, value=None, source=TopicPartition("orders", 1)),
            letter(2, key=b"k", source=TopicPartition("orders", 9)),
        )
        done = await letters_of(bus).redrive(Selection(), whole_topic=True, by="ann", run_id="r-1")
        assert (done.run_id, done.total, done.seen, done.redriven, done.topics) == ("r-1", 3, 3, 3, {"orders": 3})
        assert (done.left_out, done.cancelled, done.dry_run) == ({}, False, False)
        by_offset = {json.loads(one.header("eb-redrive-of") or b"")[2]: one for one in await records_of(bus, "orders")}
        first, tombstone, moved = (by_offset[n] for n in range(3))
        assert (first.partition, first.key, first.value) == (2, b"k", b"\0\xff")
        assert first.headers == (
            ("trace", b"1"),
            ("trace", None),
            ("eb-redrive-of", b'["dlq.billing",0,0]'),
            ("eb-redrive-hops", b"2"),
            ("eb-redrive-at", b"%d" % clock()),
            ("eb-redrive-group", b"billing"),
            ("eb-redrive-by", b"ann"),
        )
        assert first.timestamp_ms == clock()  # the original time may be older than the topic keeps records
        assert (tombstone.partition, tombstone.key, tombstone.value) == (1, None, None)
        assert moved.partition == (await bus.send("orders", b"", key=b"k")).partition


async def test_letters_of_other_systems_go_back_without_their_error_headers(bus: TestBus) -> None:
    async with bus:
        await topics(bus, "orders-dlq")
        await topics(bus, "orders", partitions=2)
        await bus.send("orders-dlq", b"v", key=b"k", headers=(("own", b"1"), *CONNECT))
        await bus.send("orders-dlq", b"v", headers={"who": "knows"})
        letters = letters_of(bus)
        done = await letters.redrive(Selection(), whole_topic=True)
        assert (done.redriven, done.left_out, done.samples) == (1, {"no-source": 1}, {"no-source": ("orders-dlq/0/1",)})
        (record,) = await records_of(bus, "orders")
        assert (record.partition, record.key, record.value) == (1, b"k", b"v")
        assert [name for name, _ in record.headers] == [
            "own", "eb-redrive-of", "eb-redrive-hops", "eb-redrive-at", "eb-redrive-group",
        ]  # fmt: skip
        done = await letters.redrive(Selection(), to="orders")
        assert (done.redriven, done.left_out) == (1, {})


async def test_letter_without_payload_is_sent_as_it_stands_in_its_source(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, "orders")
        await bus.send("orders", b"x" * 5_000, key=b"k", headers={"own": "1"})
        gone = letter(5, key=b"k", value=b"x" * 5_000, max_bytes=4_000)
        await put(bus, letter(0, key=b"k", value=b"x" * 5_000, max_bytes=4_000), gone)
        done = await letters_of(bus).redrive(Selection(), whole_topic=True)
        assert (done.redriven, done.left_out) == (1, {"no-payload": 1})
        _, record = await records_of(bus, "orders")
        assert (record.key, record.value, record.headers[0]) == (b"k", b"x" * 5_000, ("own", b"1"))


async def test_letters_that_may_not_go_where_they_say(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, "orders", "other", "retry.billing", "dlq.else", "_private")
        await bus.admin.alter_group_offsets("g", {ORDERS: 0})  # there is a __consumer_offsets now
        names = ("orders", "other", "absent", "__consumer_offsets", "_dlq_state", "retry.billing", TOPIC, "_private")
        await put(bus, *[letter(n, source=TopicPartition(name, 0)) for n, name in enumerate(names)])
        letters = letters_of(bus)
        assert await letters.park(Selection(limit=1)) == await letters.reopen(Selection(status={"parked"})) == 1
        before = {name: len(await records_of(bus, name)) for name in (TOPIC, "retry.billing", "_private")}
        done = await letters.redrive(Selection(), whole_topic=True, allow=["orders", "absent", "_dlq_state"])
        assert (done.topics, done.left_out) == ({"orders": 1}, {"not-allowed": 4, "no-topic": 1, "internal": 2})
        done = await letters.redrive(Selection(), whole_topic=True)
        assert (done.topics, done.left_out) == ({"other": 1}, {"no-topic": 1, "internal": 2, "delicate": 3})
        assert done.samples["delicate"] == (f"{TOPIC}/0/5", f"{TOPIC}/0/6", f"{TOPIC}/0/7")
        assert {name: len(await records_of(bus, name)) for name in before} == before
        done = await letters.redrive(Selection(), whole_topic=True, allow=[TOPIC])
        assert done.topics == {TOPIC: 1}
        for to, message in [
            ("absent", "does not exist"),
            (TOPIC, "allow="),
            ("__consumer_offsets", "own"),
            ("_dlq_state", "own"),
        ]:
            with pytest.raises(ConfigError, match=message):
                await letters.redrive(Selection(), to=to)
        with pytest.raises(ConfigError, match="not in allow"):
            await letters.redrive(Selection(), to="orders", allow=["other"])
        assert (await letters.redrive(Selection(), to="dlq.else", allow=["dlq.else"])).topics == {"dlq.else": 6}


async def test_topic_that_is_deleted_waits_for_another_of_the_name(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, "orders", "other")
        await put(bus, letter(0, source=TopicPartition("other", 0)), letter(1))
        letters = letters_of(bus)
        await bus.admin.delete_topics("other")
        done = await letters.redrive(Selection(), whole_topic=True)
        assert (done.redriven, done.left_out) == (1, {"no-topic": 1})
        await topics(bus, "other")
        assert (await letters.redrive(Selection(), whole_topic=True)).topics == {"other": 1}


async def test_loop_is_ended_by_counting_hops(bus: TestBus) -> None:
    """A letter that returns each time is sent three times, then waits for a decision."""
    async with bus:
        await topics(bus, TOPIC, "orders")
        await put(bus, letter(0))
        letters = letters_of(bus)
        for hop in (1, 2, 3):
            assert (await letters.redrive(Selection(), whole_topic=True)).redriven == 1
            record = (await records_of(bus, "orders"))[-1]
            assert record.header("eb-redrive-hops") == b"%d" % hop
            await put(bus, letter(record.offset, headers=record.headers))  # it fails again
        (case,) = await letters.groups(selection=Selection(status=None))
        assert (case.count, case.statuses) == (4, {"redriven": 3, "open": 1})
        done = await letters.redrive(Selection(), whole_topic=True)
        assert (done.redriven, done.left_out) == (0, {"hops": 1})
        assert (await letters.redrive(Selection(), whole_topic=True, max_hops=4)).redriven == 1
        await put(bus, letter(9, headers=(("eb-redrive-hops", b"1000"),)))
        assert (await letters.redrive(Selection(), whole_topic=True, max_hops=None)).redriven == 1


async def test_dry_run_sends_nothing(bus: TestBus) -> None:
    async with bus:
        letters = await started(bus, 5)
        await put(bus, letter(0, source=TopicPartition("absent", 0)))
        done = await letters.redrive(Selection(), whole_topic=True, dry_run=True)
        assert (done.redriven, done.topics, done.left_out, done.dry_run) == (5, {"orders": 5}, {"no-topic": 1}, True)
        assert await records_of(bus, "orders") == []
        assert (await letters.groups())[0].statuses == {"open": 6}
        assert "_dlq_state" not in await bus.admin.list_topics()


async def test_audit_says_who_sent_what_and_where(bus: TestBus, clock: FakeClock) -> None:
    async with bus:
        letters = await started(bus, 2)
        await letters.park(Selection(), by="ann", note="wait")
        assert (await letters.redrive(Selection(), whole_topic=True)).total == 0  # parked is not open
        await letters.redrive(Selection(status={"parked"}), whole_topic=True, by="bob", note="go", run_id="r")
        parked, sent = await letters.history(f"{TOPIC}/0/1")
        assert (parked.status, parked.by, parked.note) == ("parked", "ann", "wait")
        assert (sent.status, sent.by, sent.note, sent.to, sent.run) == ("redriven", "bob", "go", "orders", "r")
        assert sent.at_ms == clock()


# each once -----------------------------------------------------------------------------------------------------------


async def test_second_redrive_sends_nothing(bus: TestBus) -> None:
    async with bus:
        letters = await started(bus, 10)
        ids = {f"{TOPIC}/0/{n}" for n in range(10)}
        assert (await letters.redrive(Selection(ids=ids), whole_topic=True)).redriven == 10
        for one in (letters, letters_of(bus)):
            done = await one.redrive(Selection(ids=ids), whole_topic=True)
            assert (done.total, done.redriven) == (0, 0)
        assert Counter(await linked(bus)) == links(10)
        # Redriven letters may be selected again, but a run sends each only once.
        again = Selection(status={"redriven"})
        assert (await letters.redrive(again, whole_topic=True, run_id="again")).redriven == 10
        assert (await letters.redrive(again, whole_topic=True, run_id="again")).left_out == {"status": 10}


async def test_two_at_once_send_each_once(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "_BATCH", 10)
    async with bus:
        letters = await started(bus, 200)
        done: list[Redriven] = []

        async def run(which: DeadLetters) -> None:
            done.append(await which.redrive(Selection(), whole_topic=True))

        async with anyio.create_task_group() as tasks:
            for which in (letters, letters, letters_of(bus)):  # two that share a pen, and one that takes it from them
                tasks.start_soon(run, which)
        assert sum(one.redriven for one in done) == 200
        assert Counter(await linked(bus)) == links(200)


async def test_view_beside_a_redrive_is_always_whole(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = Admin.describe_topics

    async def answers_late(self: Admin, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """Return descriptions that are outdated, because others have written since."""
        found = await describe(self, names)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        return found

    monkeypatch.setattr(Admin, "describe_topics", answers_late)
    monkeypatch.setattr(redrive, "_BATCH", 2)
    async with bus:
        letters = await started(bus, 100)
        await letters.groups()
        monkeypatch.setattr("dlq.following.TopicIndex", lambda *_: pytest.fail("the index is made anew"))
        redriven: list[int] = []
        async with letters.start_redrive(Selection(), whole_topic=True) as run:
            while run.done.redriven < 100:
                (case,) = await letters.groups()
                assert sum(case.statuses.values()) == case.count == 100
                redriven.append(case.statuses.get("redriven", 0))
        assert redriven == sorted(redriven)
        assert len(set(redriven)) > 2
        assert (await letters.groups())[0].statuses == {"redriven": 100}


async def test_letters_dealt_with_meanwhile_are_left_out(bus: TestBus) -> None:
    """Seen by an operator whose view is old: what counts is what holds when they are sent."""
    async with bus:
        letters = await started(bus, 6)
        other = letters_of(bus)

        async def resolve_some() -> None:
            await other.resolve(Selection(ids={f"{TOPIC}/0/4", f"{TOPIC}/0/5"}))

        run = letters.start_redrive(Selection(), whole_topic=True)
        run.pause()
        async with run:
            await others_wait()
            await resolve_some()
            run.resume()
        assert (run.done.redriven, run.done.left_out) == (4, {"status": 2})
        assert Counter(await linked(bus)) == links(4)


@pytest.mark.parametrize("was_stored", [True, False])
async def test_commit_whose_outcome_is_unknown(bus: TestBus, monkeypatch: pytest.MonkeyPatch, was_stored: bool) -> None:
    commit, lost = Producer.commit, [True]

    async def answer_is_lost(self: Producer) -> None:
        if lost.pop() if lost else False:
            if was_stored:
                await commit(self)
            raise TransactionOutcomeUnknown("nobody answered")
        await commit(self)

    async with bus:
        letters = await started(bus, 5)
        monkeypatch.setattr(Producer, "commit", answer_is_lost)
        done = await letters.redrive(Selection(), whole_topic=True, run_id="r")
        assert (done.redriven, done.topics, done.left_out) == (5, {"orders": 5}, {})
        assert Counter(await linked(bus)) == links(5)
        lost.append(True)
        assert await letters.reopen(Selection(status={"redriven"})) == 5
        lost.append(True)
        sent = await letters.edit(f"{TOPIC}/0/0", value=b"new", whole_topic=True)
        assert sent.topic == "orders"
        assert len(await records_of(bus, "orders")) == 6
        assert lost == []


async def test_log_that_does_not_answer_is_asked_again_then_told(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, failures = Producer.commit, 3
    monkeypatch.setattr(ledger_writer, "LONGEST_PAUSE_SECONDS", 0.0001)

    async def answers_late(self: Producer) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise RequestTimedOut("no answer")
        await commit(self)

    async with bus:
        letters = await started(bus, 5)
        monkeypatch.setattr(Producer, "commit", answers_late)
        assert (await letters.redrive(Selection(limit=2), whole_topic=True)).redriven == 2
        failures = 1_000
        with pytest.raises(RequestTimedOut):
            await letters.redrive(Selection(), whole_topic=True)
        failures = 0
        assert (await letters.redrive(Selection(), whole_topic=True)).redriven == 3
        assert Counter(await linked(bus)) == links(5)


async def test_record_that_its_topic_refuses_does_not_keep_the_others(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await bus.admin.create_topic("orders", 1, configs={"max.message.bytes": 2_000})
        large = {3, 8}
        await put(bus, *[letter(n, value=b"x" * (5_000 if n in large else 10)) for n in range(10)])
        letters = letters_of(bus)
        done = await letters.redrive(Selection(), whole_topic=True)
        assert (done.redriven, done.left_out) == (8, {"refused": 2})
        assert done.errors.keys() == {f"{TOPIC}/0/{n}" for n in large}
        assert "max.message.bytes" in done.errors[f"{TOPIC}/0/3"]
        assert (await letters.groups())[0].statuses == {"redriven": 8, "open": 2}


async def test_full_disk_is_told(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(self: Producer) -> None:
        raise StorageFull("no room")

    async with bus:
        letters = await started(bus, 3)
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "commit", refuses)
            with pytest.raises(StorageFull):
                await letters.redrive(Selection(), whole_topic=True)
        assert (await letters.redrive(Selection(), whole_topic=True)).redriven == 3
        assert Counter(await linked(bus)) == links(3)


# in its own time -----------------------------------------------------------------------------------------------------


async def test_cancelled_run_is_gone_on_with(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "_BATCH", 10)
    async with bus:
        letters = await started(bus, 100)
        seen: list[int] = []

        def stop_at_third(done: Redriven) -> None:
            seen.append(done.redriven)
            if len(seen) == 3:
                run.cancel()

        async with letters.start_redrive(Selection(), whole_topic=True, on_progress=stop_at_third) as run:
            done = await run.wait()
        assert (seen, done.redriven, done.cancelled) == ([10, 20, 30], 30, True)
        assert Counter(await linked(bus)) == links(30)
        done = await letters_of(bus).redrive(Selection(), whole_topic=True)
        assert (done.total, done.redriven, done.cancelled) == (70, 70, False)
        assert Counter(await linked(bus)) == links(100)


@pytest.mark.parametrize("is_paused", [True, False])
async def test_cancel_ends_every_wait(bus: TestBus, is_paused: bool) -> None:
    async with bus:
        letters = await started(bus, 10)
        async with letters.start_redrive(Selection(), whole_topic=True, rate=0.001) as run:
            while not run.done.redriven:
                await anyio.lowlevel.checkpoint()
            if is_paused:
                run.pause()
                assert run.is_paused
            run.cancel()
        assert (run.done.redriven, run.done.cancelled) == (1, True)


async def test_cancel_interrupts_a_log_that_hangs(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(self: Producer) -> None:
        run.cancel()
        await anyio.sleep_forever()

    monkeypatch.setattr(redrive, "_HARD_SECONDS", 0.01)
    async with bus:
        letters = await started(bus, 10)
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "commit", hangs)
            async with letters.start_redrive(Selection(), whole_topic=True) as run:
                pass
        assert (run.done.redriven, run.done.cancelled) == (0, True)
        assert (await letters.redrive(Selection(), whole_topic=True)).redriven == 10
        assert Counter(await linked(bus)) == links(10)


async def test_caller_who_is_cancelled_leaves_nothing_half_done(bus: TestBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "_BATCH", 10)
    async with bus:
        letters = await started(bus, 50)

        def stop(done: Redriven) -> None:
            if done.redriven == 20:
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            await letters.redrive(Selection(), whole_topic=True, on_progress=stop)
        assert Counter(await linked(bus)) == links(20)
        assert (await letters.redrive(Selection(), whole_topic=True)).redriven == 30
        assert Counter(await linked(bus)) == links(50)


async def test_error_in_the_block_ends_the_run(bus: TestBus) -> None:
    async with bus:
        letters = await started(bus, 5)
        with pytest.raises(KeyError):
            async with letters.start_redrive(Selection(), whole_topic=True, rate=0.001):
                raise KeyError
        assert (await letters.redrive(Selection(), whole_topic=True)).redriven >= 4


def test_pace_is_kept() -> None:
    pace, now, sent = Pace(100), 0.0, 0
    assert pace.batch == 25
    for _ in range(40):
        now += pace.wait(now)
        sent += pace.batch
        now += 0.05  # what the sending took
        pace.went(pace.batch, now)
    assert sent / now == pytest.approx(100, rel=0.25)
    now += 60  # a pause is not made up for
    assert pace.wait(now) == 0
    pace.went(25, now)
    assert pace.wait(now) == pytest.approx(0.25)
    assert Pace(None).wait(0) == 0
    assert Pace(0.5).batch == 1


@pytest.mark.parametrize(
    "wrong", [{"rate": 0}, {"rate": -1}, {"rate": float("nan")}, {"max_hops": 0}, {"note": "x" * 1_001}]
)
async def test_options_that_mean_nothing(bus: TestBus, wrong: dict[str, object]) -> None:
    async with bus:
        with pytest.raises(ConfigError):
            letters_of(bus).start_redrive(Selection(), whole_topic=True, **wrong)


# those who read ------------------------------------------------------------------------------------------------------


async def test_consumers_that_are_down_find_what_was_sent_when_they_come_back(bus: TestBus) -> None:
    handled: list[ConsumerRecord] = []

    @bus.consumer("orders", group="billing", start="earliest")
    def bill(order: bytes, record: ConsumerRecord) -> None:
        handled.append(record)

    with bus.context.in_group(bill, "another"):  # the group that failed does not run
        async with bus:
            await topics(bus, TOPIC)
            await put(bus, *[letter(n) for n in range(3)])
            assert (await letters_of(bus).redrive(Selection(), whole_topic=True)).redriven == 3
    handled.clear()
    async with bus:
        await bus.log.drain()
        assert [record.header("eb-redrive-hops") for record in handled] == [b"1"] * 3

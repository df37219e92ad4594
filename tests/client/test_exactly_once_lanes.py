"""A lane handles each outcome of a transaction, with a log whose outcomes the test chooses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from eventbus import Transaction, consumer, producer
from eventbus.client.handling.handlers import Handler
from eventbus.errors import (
    ConfigError,
    CoordinatorNotAvailable,
    HandlerError,
    IllegalGeneration,
    ProducerFenced,
    RebalanceInProgress,
    RecordTooLarge,
    RequestTimedOut,
    StorageFull,
    TransactionAborted,
    TransactionOutcomeUnknown,
    UnknownMemberId,
)
from eventbus.testing import FakeClock
from eventbus.types import GroupMetadata, OffsetAndMetadata
from tests.client.fakes import T0, Running, on_both, others_run, records, running


def doubling(bad: set[int], **options: Any) -> Handler[..., Any]:
    """Publishes twice what it gets, in two halves; in the middle of the bad ones it raises."""

    @consumer("t", group="g", exactly_once=True, **options)
    @producer("out")
    async def handle(value: bytes) -> AsyncIterator[str]:
        yield f"{int(value)}a"
        if int(value) in bad:
            raise ValueError(value.decode())
        yield f"{int(value)}b"

    return handle


def waiting(**options: Any) -> tuple[Handler[..., Any], anyio.Event, anyio.Event]:
    """Return a handler, an event that it sets in record 1, and the one that it waits for there."""
    at, go = anyio.Event(), anyio.Event()

    @consumer("t", group="g", exactly_once=True, **options)
    @producer("out")
    async def handle(value: bytes) -> bytes:
        if value == b"1":
            at.set()
            await go.wait()
        return value

    return handle, at, go


def both(*offsets: int) -> list[str]:
    return [f"{offset}{half}" for offset in offsets for half in "ab"]


async def finished(run: Running) -> None:
    await run.idle()
    await others_run()


async def test_slices_share_a_transaction_and_the_offset_belongs_to_it() -> None:
    async with running(doubling(set(), transaction_records=4)) as run:
        run.consumer.deliver(records(T0, range(10)))
        await finished(run)
        assert run.transactions.visible == both(*range(10))
        assert run.transactions.sizes == [8, 8, 4]
        assert run.consumer.offsets[T0].offset == 10
        assert run.consumer.commits == []
        assert run.transactions.ids == ["g.handle.t-0"]
        assert set(run.transactions.groups) == {GroupMetadata("g", 1, "me")}
    assert run.transactions.closed == 1


async def test_gaps_and_the_end_of_a_fetch_are_committed_over() -> None:
    chunk = records(T0, [3, 4, 9, 20])
    chunk.next_offset = 25
    async with running(doubling(set(), transaction_records=3)) as run:
        run.consumer.deliver(chunk)
        await finished(run)
        assert run.consumer.offsets[T0].offset == 25


async def test_stop_commits_everything_before_the_record_at_fault_once() -> None:
    async with running(doubling({6}, transaction_records=4)) as run:
        run.consumer.deliver(records(T0, range(10)))
        await finished(run)
        assert run.transactions.visible == both(*range(6))
        assert run.transactions.aborts == 1
        assert run.consumer.offsets[T0].offset == 6
        assert "t-0 offset 6" in str(run.runner.error) and "ValueError: 6" in str(run.runner.error)
        assert T0 in run.consumer.paused


async def test_a_record_that_published_nothing_costs_no_abort() -> None:
    calls: list[int] = []

    @consumer("t", group="g", exactly_once=True)
    @producer("out")
    async def handle(value: bytes) -> bytes:
        calls.append(int(value))
        if value == b"2":
            raise ValueError
        return value

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(5)))
        await finished(run)
        assert run.transactions.visible == [b"0", b"1"] and run.transactions.aborts == 0
        assert calls == [0, 1, 2]
        assert run.consumer.offsets[T0].offset == 2 and run.runner.error is not None


async def test_the_very_first_record_at_fault_leaves_nothing() -> None:
    async with running(doubling({0})) as run:
        run.consumer.deliver(records(T0, range(3)))
        await finished(run)
        assert run.transactions.visible == [] and T0 not in run.consumer.offsets


async def test_skip_runs_the_slice_again_without_the_record(caplog: pytest.LogCaptureFixture) -> None:
    async with running(doubling({2, 3, 7}, transaction_records=5, on_error="skip")) as run:
        run.consumer.deliver(records(T0, range(10)))
        await finished(run)
        assert run.transactions.visible == both(0, 1, 4, 5, 6, 8, 9)
        assert run.consumer.offsets[T0].offset == 10
        assert run.runner.error is None
    assert caplog.text.count("skipped (on_error='skip')") == 3


async def test_records_before_one_that_is_called_again_are_not_handled_each_time() -> None:
    clock, calls = FakeClock(), list[int]()

    @consumer("t", group="g", exactly_once=True)
    @producer("out")
    async def handle(value: bytes) -> AsyncIterator[str]:
        calls.append(int(value))
        yield f"{int(value)}a"
        if int(value) == 3 and calls.count(3) < 8:
            raise ConnectionRefusedError("the database is away")
        yield f"{int(value)}b"

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(6)))
        await clock.advance(seconds=3)
        assert run.transactions.visible == both(0, 1, 2)
        await clock.advance(seconds=100)
        assert run.transactions.visible == both(*range(6))
        assert [calls.count(offset) for offset in range(6)] == [2, 2, 2, 8, 1, 1]


async def test_crash_ends_the_runner_with_the_prefix_committed() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with running(doubling({2}, on_error="crash")) as run:
            run.consumer.deliver(records(T0, range(4)))
            await anyio.sleep_forever()
    assert caught.group_contains(HandlerError, match="t-0 offset 2")
    assert run.transactions.visible == both(0, 1)
    assert run.consumer.offsets[T0].offset == 2


async def test_a_handler_that_fails_elsewhere_the_second_time() -> None:
    calls: list[int] = []

    @consumer("t", group="g", exactly_once=True)
    @producer("out")
    async def handle(value: bytes) -> AsyncIterator[bytes]:
        calls.append(int(value))
        yield value
        if len(calls) in (4, 6):  # record 3 at first, record 1 when the slice is run again up to there
            raise ValueError

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(5)))
        await finished(run)
        assert calls == [0, 1, 2, 3, 0, 1, 0]
        assert run.transactions.visible == [b"0"]
        assert run.consumer.offsets[T0].offset == 1


# handlers of all kinds ------------------------------------------------------------------------------------------------


async def test_plain_functions_too() -> None:
    @consumer("t", group="g", exactly_once=True, on_error="skip")
    @producer("out")
    def handle(value: bytes) -> Any:
        yield value
        if value == b"1":
            raise ValueError
        yield value

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await finished(run)
        assert run.transactions.visible == [b"0", b"0", b"2", b"2"]


@pytest.mark.parametrize("policy", ["stop", "skip"])
async def test_batches_too(policy: Any) -> None:
    sizes: list[int] = []

    @consumer("t", group="g", exactly_once=True, batch=2, transaction_records=6, on_error=policy)
    @producer("out")
    async def handle(values: list[bytes]) -> AsyncIterator[bytes]:
        sizes.append(len(values))
        for value in values:
            yield value
            if value == b"3":
                raise ValueError

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(8)))
        await finished(run)
        if policy == "stop":
            assert run.transactions.visible == [b"0", b"1"]
            assert run.consumer.offsets[T0].offset == 2
            assert "a batch of 2 records" in str(run.runner.error)
        else:
            assert run.transactions.visible == [b"0", b"1", b"4", b"5", b"6", b"7"]
            assert run.consumer.offsets[T0].offset == 8
    assert set(sizes) == {2}


async def test_a_batch_of_a_whole_fetch_is_one_slice_each() -> None:
    sizes: list[int] = []

    @consumer("t", group="g", exactly_once=True, batch=True, transaction_records=4)
    async def handle(values: list[bytes]) -> None:
        sizes.append(len(values))

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(10)))
        await finished(run)
    assert sizes == [4, 4, 2]


async def test_offsets_alone_without_a_producer() -> None:
    seen: list[bytes] = []

    @consumer("t", group="g", exactly_once=True)
    async def handle(value: bytes) -> None:
        seen.append(value)

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await finished(run)
        assert run.consumer.offsets[T0].offset == 3 and run.consumer.commits == []
    assert seen == [b"0", b"1", b"2"]


@pytest.mark.parametrize("policy", ["stop", "skip"])
async def test_what_a_handler_sends_through_its_transaction_goes_with_it(policy: Any) -> None:
    @consumer("t", group="g", exactly_once=True, on_error=policy)
    async def handle(value: bytes, tx: Transaction) -> None:
        tx.send_nowait("one", value)
        if value == b"1":
            raise ValueError
        tx.send_nowait("two", value)

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await finished(run)
        expected = [b"0", b"0"] if policy == "stop" else [b"0", b"0", b"2", b"2"]
        assert run.transactions.visible == expected


async def test_batches_take_a_transaction() -> None:
    @consumer("t", group="g", exactly_once=True, batch=True)
    async def handle(values: list[bytes], tx: Transaction) -> None:
        for value in values:
            tx.send_nowait("one", value)

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await finished(run)
        assert run.transactions.visible == [b"0", b"1", b"2"]


# the log refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["stop", "skip"])
async def test_an_output_the_log_refuses_is_found_record_by_record(policy: Any) -> None:
    async with running(doubling(set(), transaction_records=4, on_error=policy)) as run:
        run.transactions.refuse = lambda value: RecordTooLarge("too large") if value == "5b" else None
        run.consumer.deliver(records(T0, range(8)))
        await finished(run)
        if policy == "stop":
            assert run.transactions.visible == both(*range(5))
            assert run.consumer.offsets[T0].offset == 5
            assert "t-0 offset 5: what was published for it was not stored" in str(run.runner.error)
        else:
            assert run.transactions.visible == both(0, 1, 2, 3, 4, 6, 7)
            assert run.consumer.offsets[T0].offset == 8


async def test_a_full_disk_stops_the_lane_whatever_the_policy() -> None:
    async with running(doubling(set(), on_error="skip")) as run:
        run.transactions.errors = [("offsets", StorageFull("no room"))] * 20
        run.consumer.deliver(records(T0, range(1)))
        await finished(run)
        assert "no room" in str(run.runner.error)
        assert run.transactions.visible == []


# others end the transaction -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["begin", "send", "offsets", "commit"])
@pytest.mark.parametrize("error", [TransactionAborted("timeout"), ProducerFenced("taken")])
async def test_a_transaction_ended_by_others_is_run_again(call: str, error: Any) -> None:
    async with running(doubling(set(), transaction_records=4)) as run:
        run.transactions.errors = [(call, error)]
        run.consumer.deliver(records(T0, range(6)))
        await finished(run)
        assert run.transactions.visible == both(*range(6))
        assert run.consumer.offsets[T0].offset == 6
        assert len(run.transactions.ids) == 2  # the id was taken anew, and once
        assert run.runner.error is None


async def test_what_was_committed_after_all_is_not_run_again() -> None:
    async with running(doubling(set(), transaction_records=4)) as run:

        def committed() -> None:
            run.consumer.offsets[T0] = OffsetAndMetadata(4)
            run.transactions.visible += both(0, 1, 2, 3)
            del run.transactions.before["commit"]

        run.transactions.before["commit"] = committed
        run.transactions.errors = [("commit", ProducerFenced("taken"))]
        run.consumer.deliver(records(T0, range(6)))
        await finished(run)
        assert run.transactions.visible == both(*range(6))


async def test_a_transaction_that_never_ends_stops_the_lane_and_says_what_to_do() -> None:
    async with running(doubling(set(), transaction_timeout_ms=7_000)) as run:
        run.transactions.errors = [("commit", TransactionAborted("open for too long"))] * 20
        run.consumer.deliver(records(T0, range(2)))
        await finished(run)
        assert "raise transaction_timeout_ms=7,000" in str(run.runner.error)
        assert run.transactions.visible == []


def lost_with_the_brokers() -> TransactionOutcomeUnknown:
    error = TransactionOutcomeUnknown("no answer")
    error.__cause__ = RequestTimedOut("the brokers are away")
    return error


@pytest.mark.system
async def test_brokers_that_do_not_answer_are_waited_for_and_no_record_is_blamed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster whose group's coordinator was cut off, the first record of the slice was taken for the cause."""
    monkeypatch.setattr("eventbus.client.handling.exactly_once._AWAY_SECONDS", 0.01)
    async with running(doubling(set())) as run:
        run.transactions.errors = [
            ("offsets", RequestTimedOut("the coordinator is cut off")),
            ("commit", lost_with_the_brokers()),
            *[("offsets", CoordinatorNotAvailable("it moves"))] * 20,
        ]
        run.consumer.deliver(records(T0, range(6)))
        with anyio.fail_after(10):
            while not re.search("it moves .*, tried [1-9]", run.runner.waiting_for.get(T0, "")):  # noqa: ASYNC110 - nobody is notified
                await anyio.sleep(0.01)
        await finished(run)
        assert run.transactions.visible == both(*range(6))
        assert run.consumer.offsets[T0].offset == 6
        assert run.runner.error is None
        assert run.runner.waiting_for == {}
    assert caplog.text.count("waits at offset 0 for brokers that do not answer") == 1


async def test_an_unknown_outcome_stops_the_lane_even_where_errors_are_skipped() -> None:
    async with running(doubling(set(), on_error="skip")) as run:
        run.transactions.errors = [("commit", TransactionOutcomeUnknown("no answer"))]
        run.consumer.deliver(records(T0, range(2)))
        await finished(run)
        assert "t-0: whether the transaction from offset 0 on was committed is unknown" in str(run.runner.error)


@pytest.mark.parametrize("error", [IllegalGeneration("old"), RebalanceInProgress("wait"), UnknownMemberId("who")])
async def test_a_generation_that_passed_waits_for_the_next_and_goes_on(error: Any) -> None:
    async with running(doubling(set())) as run:
        run.consumer.group_generation = 2
        run.transactions.errors = [("offsets", error)]
        run.consumer.deliver(records(T0, range(3)))
        await others_run()
        assert run.transactions.visible == [] and run.transactions.aborts == 1
        run.consumer.generation = 2
        await finished(run)
        assert run.transactions.visible == both(0, 1, 2)
        assert run.transactions.groups[-1].generation_id == 2


async def test_a_fenced_lane_whose_partition_moved_never_takes_the_id_back() -> None:
    async with running(doubling(set())) as run:
        run.consumer.group_generation = 2
        run.transactions.errors = [("commit", ProducerFenced("the new owner"))]
        run.consumer.deliver(records(T0, range(3)))
        await others_run()
        await run.consumer.lose(T0)
        await others_run()
        assert run.transactions.ids == ["g.handle.t-0"]
        assert run.transactions.visible == [] and run.runner.error is None
        assert run.transactions.closed == 1


async def test_a_lane_lost_in_the_middle_commits_nothing() -> None:
    handle, at, go = waiting()
    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await at.wait()
        await run.consumer.lose(T0)
        go.set()
        await others_run()
        assert run.transactions.visible == [] and run.transactions.aborts == 1
        assert T0 not in run.consumer.offsets


async def test_a_lane_that_moves_commits_what_is_handled() -> None:
    handle, at, go = waiting()
    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await at.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await others_run()
            go.set()
        assert run.transactions.visible == [b"0", b"1"]
        assert run.consumer.offsets[T0].offset == 2
        assert run.transactions.closed == 1


async def test_a_handler_cancelled_as_its_lane_moves_aborts() -> None:
    handle, at, _ = waiting(drain_timeout_ms=1)
    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await at.wait()
        await run.consumer.revoke(T0)
        assert run.transactions.visible == [] and run.transactions.aborts == 1


async def test_a_new_lane_begins_at_the_committed_offset_whatever_was_fetched() -> None:
    async with running(doubling(set())) as run:
        run.consumer.offsets[T0] = OffsetAndMetadata(2)  # the owner before finished a transaction after our fetch
        run.consumer.deliver(records(T0, range(4)))
        await finished(run)
        assert run.transactions.visible == both(2, 3)


async def test_a_long_slice_is_cut_before_its_transaction_times_out() -> None:
    handle, at, go = waiting(transaction_timeout_ms=40)
    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(4)))
        await at.wait()
        driver = run.runner.drivers[T0]
        with anyio.fail_after(10):
            while not all(call.end < len(call) for call in driver.work._calls):
                await anyio.lowlevel.checkpoint()
        go.set()
        await finished(run)
        assert run.transactions.sizes == [2, 2]
        assert run.transactions.visible == [b"0", b"1", b"2", b"3"]


# bad input ------------------------------------------------------------------------------------------------------------


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="leave isolation_level out"):
        consumer("t", exactly_once=True, isolation_level="read_uncommitted")
    for option in ("transaction_records", "transaction_timeout_ms"):
        with pytest.raises(ConfigError, match=f"{option}=0: a whole number"):
            consumer("t", exactly_once=True, **{option: 0})
    with pytest.raises(ConfigError, match="drain_timeout_ms=-1"):
        consumer("t", drain_timeout_ms=-1)
    with pytest.raises(ConfigError, match="only with exactly_once=True"):

        @consumer("t")
        async def without(value: bytes, tx: Transaction) -> None: ...

    with pytest.raises(ConfigError, match="`async def`"):

        @consumer("t", exactly_once=True)
        def plain(value: bytes, tx: Transaction) -> None: ...


def test_one_assignor_or_several() -> None:
    for given, taken in (("range", ("range",)), ("range, sticky", ("range", "sticky")), (["range"], ("range",))):
        spec = consumer("t", partition_assignment_strategy=given)(_nothing).spec
        assert spec.partition_assignment_strategy == taken
    options = consumer("t", session_timeout_ms=9_000, group_instance_id="a")(_nothing).spec.consumer_options()
    assert options["session_timeout_ms"] == 9_000 and options["group_instance_id"] == "a"
    assert "max_poll_interval_ms" not in options


async def _nothing(value: bytes) -> None: ...


@on_both
async def test_a_transaction_that_timed_out_names_the_slow_record() -> None:
    clock = FakeClock()

    @consumer("t", group="g", exactly_once=True, transaction_timeout_ms=1_000, transaction_records=4)
    @producer("out")
    async def handle(value: bytes) -> str:
        await clock.sleep(1.5 if int(value) == 2 else 0.01)
        return value.decode()

    async with running(handle, clock) as run:
        begun_at: list[float] = []

        def begin() -> None:
            begun_at[:] = [clock.current_time()]

        def commit() -> None:
            if clock.current_time() - begun_at[0] > 1:
                run.transactions.errors.append(("commit", TransactionAborted("timed out, or another producer")))

        run.transactions.before = {"begin": begin, "commit": commit}
        run.consumer.deliver(records(T0, range(6)))
        await clock.advance(seconds=30)
        error = str(run.runner.error)
        assert "t-0 offset 2: the record takes longer than its transaction may be open: 1.5 s" in error
        assert "transaction_timeout_ms=1,000" in error and "producer" not in error
        assert run.consumer.offsets[T0].offset == 2, "those before it are committed"

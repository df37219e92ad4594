"""Functions around a handler: what they see, what they may change, and what becomes of their errors."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus, Transaction, consumer, producer
from eventbus.client.handling.invocation import HandlerCounts
from eventbus.client.handling.middleware import CallNext, check_middleware
from eventbus.errors import ConfigError, SerializationError
from tests.client.dispatching import Outputs, chunk_of, dispatch_of, dispatched, driver_of, finished, run


class Order(msgspec.Struct):
    amount: int


async def passing(record: Any, call_next: CallNext) -> Any:
    return await call_next(record)


# order and shapes -----------------------------------------------------------------------------------------------------

KINDS = ["async", "with record", "record alone", "sync", "batch", "sync batch", "batch of records", "producer"]


def handler_of(kind: str, seen: list[Any], **options: Any) -> Any:
    """A handler of any kind that notes the amounts it sees."""

    async def alone(order: Order) -> None:
        seen.append(order.amount)

    async def with_record(order: Order, record: ConsumerRecord) -> None:
        seen.append(order.amount)

    async def record_alone(record: ConsumerRecord) -> None:
        seen.append(msgspec.json.decode(record.value)["amount"])

    def sync(order: Order) -> None:
        seen.append(order.amount)

    async def batch(orders: list[Order]) -> None:
        seen.extend(order.amount for order in orders)

    def sync_batch(orders: list[Order]) -> None:
        seen.extend(order.amount for order in orders)

    async def batch_of_records(records: list[ConsumerRecord]) -> None:
        seen.extend(msgspec.json.decode(record.value)["amount"] for record in records)

    functions: list[Any] = [alone, with_record, record_alone, sync, batch, sync_batch, batch_of_records]
    if kind == "producer":
        return consumer("t", **options)(producer("out")(alone))
    return consumer("t", batch="batch" in kind, **options)(functions[KINDS.index(kind)])


VALUES = [b'{"amount":%d}' % amount for amount in range(3)]


@pytest.mark.parametrize("kind", KINDS)
async def test_outermost_first_and_the_buses_before_the_handlers(kind: str) -> None:
    steps: list[Any] = []

    class Step:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __call__(self, record: Any, call_next: CallNext) -> Any:
            steps.append(f"{self.name} in")
            result = await call_next(record)
            steps.append(f"{self.name} out")
            return result

    handler = handler_of(kind, steps, middleware=[Step("a"), Step("b")])
    publish = Outputs().publish if kind == "producer" else None
    driver, dispatch = driver_of(), dispatch_of(handler, publish, {}, [Step("bus")])
    await run(dispatch, driver, chunk_of(*VALUES))
    groups = [[0, 1, 2]] if "batch" in kind else [[0], [1], [2]]
    expected: list[Any] = []
    for group in groups:
        expected += ["bus in", "a in", "b in", *group, "b out", "a out", "bus out"]
    assert steps == expected
    assert await finished(driver) == 3
    assert dispatch.counts == HandlerCounts(handled=3)


@pytest.mark.parametrize("kind", KINDS)
async def test_it_gets_the_record_as_it_was_read(kind: str) -> None:
    given: list[Any] = []

    async def note(record: Any, call_next: CallNext) -> Any:
        given.append(record)
        await anyio.lowlevel.checkpoint()
        return await call_next(record)

    publish = Outputs() if kind == "producer" else None
    await dispatched(handler_of(kind, [], middleware=[note]), *VALUES, outputs=publish)
    records = given[0] if "batch" in kind else given
    assert len(given) == (1 if "batch" in kind else 3)
    assert [(record.offset, record.value) for record in records] == list(enumerate(VALUES))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "producer"])
async def test_it_may_change_the_bytes(kind: str) -> None:
    """Middleware may decrypt values, for example."""
    seen: list[int] = []

    async def decrypt(record: Any, call_next: CallNext) -> Any:
        for one in record if isinstance(record, list) else [record]:
            one.value = bytes(byte ^ 1 for byte in one.value)
        return await call_next(record)

    hidden = [bytes(byte ^ 1 for byte in value) for value in VALUES]
    driver = await dispatched(handler_of(kind, seen, middleware=[decrypt]), *hidden)
    assert seen == [0, 1, 2]
    assert driver.work.finished == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_does_not_call_further_has_handled_the_record(kind: str) -> None:
    seen: list[int] = []

    async def odd_ones(record: Any, call_next: CallNext) -> Any:
        if isinstance(record, list):
            return await call_next([one for one in record if one.offset % 2])
        return await call_next(record) if record.offset % 2 else None

    outputs = Outputs() if kind == "producer" else None
    driver = await dispatched(handler_of(kind, seen, middleware=[odd_ones]), *VALUES, outputs=outputs)
    assert seen == [1]
    assert await finished(driver) == 3


@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
async def test_an_error_it_swallows_is_none(kind: str) -> None:
    errors: list[str] = []

    async def lenient(record: Any, call_next: CallNext) -> Any:
        try:
            return await call_next(record)
        except ZeroDivisionError as error:
            errors.append(str(error))

    def divide(amount: int) -> float:
        return 1 / amount

    async def handle(order: Order) -> None:
        divide(order.amount)

    def handle_sync(order: Order) -> None:
        divide(order.amount)

    async def handle_batch(orders: list[Order]) -> None:
        for order in orders:
            divide(order.amount)

    function: Any = {"async": handle, "sync": handle_sync, "batch": handle_batch}[kind]
    handler = consumer("t", middleware=[lenient], batch=kind == "batch")(function)
    driver = await dispatched(handler, *VALUES)
    assert errors == ["division by zero"]
    assert (driver.work.finished, driver.error) == (3, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["stop", "skip"])
async def test_an_error_of_its_own_is_the_handlers(kind: str, policy: str) -> None:
    async def refuse(record: Any, call_next: CallNext) -> Any:
        await call_next(record)
        raise PermissionError("not yours")

    outputs = Outputs() if kind == "producer" else None
    driver = await dispatched(handler_of(kind, [], middleware=[refuse], on_error=policy), *VALUES, outputs=outputs)
    if policy == "skip":
        assert (driver.work.finished, driver.error) == (3, None)
    else:
        assert driver.work.finished == 0
        assert "made it raise PermissionError: not yours" in str(driver.error)


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_forgets_to_await_loses_nothing(kind: str) -> None:
    seen: list[Any] = []

    async def forgetful(record: Any, call_next: CallNext) -> Any:
        return call_next(record)

    outputs = Outputs() if kind == "producer" else None
    driver = await dispatched(
        handler_of(kind, seen, middleware=[forgetful, passing, forgetful]), *VALUES, outputs=outputs
    )
    assert (seen, await finished(driver)) == ([0, 1, 2], 3)


@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
async def test_a_result_that_it_drops_is_told_of_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """``await call_next(record)`` without ``return``: the handler ran, and what it returned was published nowhere."""

    async def forgetful(record: Any, call_next: CallNext) -> Any:
        await call_next(record)

    async def later(payload: str) -> str | None:
        return payload or None

    def at_once(payload: str) -> str | None:
        return payload or None

    async def of_many(payload: list[str]) -> str | None:
        return payload[0] or None

    function: Any = {"async": later, "sync": at_once, "batch": of_many}[kind]
    options: dict[str, Any] = {"middleware": [forgetful], "batch": 1 if kind == "batch" else False}
    outputs = Outputs()
    await dispatched(consumer("t", **options)(producer("out")(function)), b"", outputs=outputs)
    assert caplog.messages == [], "the handler itself returned nothing"
    await dispatched(consumer("t", **options)(producer("out")(function)), b"a", b"b", outputs=outputs)
    [told] = caplog.messages
    assert "middleware (forgetful) returns None" in told and "return await call_next(record)" in told
    assert set(outputs.values) == {None}


@pytest.mark.system
async def test_python_says_what_was_not_awaited() -> None:
    async def forgetful(record: Any, call_next: CallNext) -> Any:
        call_next(record)  # pyright: ignore[reportUnusedCoroutine] - that is the slip

    with pytest.warns(RuntimeWarning, match="coroutine 'call_next' was never awaited"):
        await dispatched(handler_of("async", [], middleware=[forgetful]), *VALUES)
        gc.collect()


# payloads that cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "with record", "sync"])
async def test_it_sees_values_that_cannot_be_read(kind: str) -> None:
    errors: list[SerializationError] = []

    async def note(record: Any, call_next: CallNext) -> Any:
        try:
            return await call_next(record)
        except SerializationError as error:
            errors.append(error)
            raise

    seen: list[int] = []
    handler = handler_of(kind, seen, middleware=[note], on_error="skip")
    driver = await dispatched(handler, b"no json", VALUES[1], None)
    assert [str(error)[:22] for error in errors] == ["the value is no Order:", "the value is null (a t"]
    assert seen == [1]
    assert driver.work.finished == 3


async def test_an_error_behind_decrypted_bytes_is_the_handlers() -> None:
    """The cause is not guessed from the stored bytes, which may be unreadable on purpose."""

    async def decrypt(record: ConsumerRecord, call_next: CallNext) -> Any:
        record.value = VALUES[0]
        return await call_next(record)

    @consumer("t", middleware=[decrypt])
    async def handle(order: Order) -> None:
        raise KeyError("customer")

    driver = await dispatched(handle, b"\x00secret")
    assert "made it raise KeyError: 'customer'" in str(driver.error)


@pytest.mark.parametrize("policy", ["stop", "skip"])
async def test_a_batch_leaves_out_what_cannot_be_read(policy: str) -> None:
    seen: list[Any] = []
    handler = handler_of("batch", seen, middleware=[passing], on_error=policy)
    driver = await dispatched(handler, VALUES[0], b"no json", VALUES[2])
    if policy == "skip":
        assert (seen, driver.work.finished, driver.error) == ([0, 2], 3, None)
    else:
        assert (seen, driver.work.finished) == ([], 0)
        assert "offset 1" in str(driver.error)


async def test_a_batch_that_stops_publishes_nothing() -> None:
    outputs = Outputs()

    async def instead(record: Any, call_next: CallNext) -> Any:
        return await call_next(record) or "instead"

    @consumer("t", batch=True, middleware=[instead])
    @producer("out")
    async def handle(orders: list[Order]) -> str:
        return "handled"

    driver = await dispatched(handle, b"no json", VALUES[1], outputs=outputs)
    assert (outputs.values, driver.work.finished) == ([], 0)


async def test_a_null_for_a_handler_that_takes_nulls() -> None:
    seen: list[Order | None] = []

    @consumer("t", middleware=[passing])
    async def handle(order: Order | None) -> None:
        seen.append(order)

    await dispatched(handle, None, VALUES[1])
    assert seen == [None, Order(1)]


# results --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_results_go_through_it_and_are_published_outside(is_async: bool) -> None:
    order: list[str] = []
    outputs = Outputs()

    async def louder(record: ConsumerRecord, call_next: CallNext) -> Any:
        result = await call_next(record)
        order.append(f"{result!r} with {len(outputs.values)} published")
        return result.upper()

    def handle(payload: str) -> str:
        return payload

    async def handle_later(payload: str) -> str:
        return payload

    handler = consumer("t", middleware=[louder])(producer("out")(handle_later if is_async else handle))
    await dispatched(handler, b"a", b"b", outputs=outputs)
    assert outputs.values == ["A", "B"]
    assert order == ["'a' with 0 published", "'b' with 1 published"]


@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
async def test_what_a_generator_yields_has_run_inside(kind: str) -> None:
    outputs, results = Outputs(), list[Any]()

    async def note(record: Any, call_next: CallNext) -> Any:
        result = await call_next(record)
        results.append(list(result))
        return result

    async def later(payload: str) -> AsyncIterator[str]:
        yield payload
        yield payload * 2

    def at_once(payload: str) -> Iterator[str]:
        yield payload
        yield payload * 2

    async def of_many(payload: list[str]) -> AsyncIterator[str]:
        for one in payload:
            yield one
            yield one * 2

    function: Any = {"async": later, "sync": at_once, "batch": of_many}[kind]
    handler = consumer("t", middleware=[note], batch=1 if kind == "batch" else False)(producer("out")(function))
    await dispatched(handler, b"a", b"b", outputs=outputs)
    assert results == [["a", "aa"], ["b", "bb"]]
    assert outputs.values == ["a", "aa", "b", "bb"]


async def test_a_list_that_is_returned_is_one_output() -> None:
    outputs = Outputs()

    @consumer("t", middleware=[passing])
    @producer("out")
    async def handle(payload: str) -> list[str]:
        return [payload, payload]

    await dispatched(handle, b"a", outputs=outputs)
    assert outputs.values == [["a", "a"]]


# plain functions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_chain_runs_on_the_loop_and_a_plain_function_in_its_thread(backend: str, batch: bool) -> None:
    threads: list[tuple[str, bool]] = []
    main_thread = threading.current_thread()

    async def note(record: Any, call_next: CallNext) -> Any:
        threads.append(("middleware", threading.current_thread() is main_thread))
        return await call_next(record)

    def handle(payload: Any) -> None:
        threads.append(("handler", threading.current_thread() is main_thread))

    handle.__annotations__["payload"] = list[bytes] if batch else bytes
    handler = consumer("t", middleware=[note], batch=batch)(handle)

    async def main() -> None:
        await dispatched(handler, b"x")

    anyio.run(main, backend=backend)
    assert threads == [("middleware", True), ("handler", False)]


# filters --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_middleware", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_that_the_filter_drops_is_finished_without_the_handler(kind: str, with_middleware: bool) -> None:
    seen: list[int] = []
    asked: list[int] = []

    def keep(record: ConsumerRecord) -> bool:
        asked.append(record.offset)
        return record.value == VALUES[1]  # what is dropped is not even decoded

    middleware = [passing] if with_middleware else []
    handler = handler_of(kind, seen, filter=keep, middleware=middleware)
    outputs = Outputs()
    driver, dispatch = driver_of(), dispatch_of(handler, outputs.publish if kind == "producer" else None, {})
    await run(dispatch, driver, chunk_of(b"no json", VALUES[1], b"nor this"))
    assert (seen, asked) == ([1], [0, 1, 2])
    driver.settle()
    assert dispatch.counts == HandlerCounts(handled=3, filtered=2)
    for batch in outputs.batches:
        batch.resolve(0, -1)
    driver.settle()
    assert driver.work.finished == 3


async def test_a_batch_of_which_the_filter_leaves_nothing_is_not_handed_over() -> None:
    calls: list[Any] = []

    @consumer("t", batch=2, filter=lambda record: record.offset > 1)
    async def handle(payload: list[bytes]) -> None:
        calls.append(payload)

    assert (await dispatched(handle, b"1", b"2", b"3")).work.finished == 3
    assert calls == [[b"3"]]


async def test_a_filter_that_raises_is_a_failure() -> None:
    @consumer("t", filter=lambda record: record.value[9] > 0)
    async def handle(payload: bytes) -> None: ...

    assert "made it raise IndexError" in str((await dispatched(handle, b"1")).error)


async def test_a_filter_sees_what_a_middleware_changed() -> None:
    seen: list[bytes] = []

    async def decrypt(record: ConsumerRecord, call_next: CallNext) -> Any:
        record.value = b"clear"
        return await call_next(record)

    @consumer("t", middleware=[decrypt], filter=lambda record: record.value == b"clear")
    async def handle(payload: bytes) -> None:
        seen.append(payload)

    await dispatched(handle, b"secret")
    assert seen == [b"clear"]


# what is refused ------------------------------------------------------------------------------------------------------


def test_what_is_no_middleware() -> None:
    def plain(record: Any, call_next: CallNext) -> Any: ...

    class Timing:
        async def __call__(self, record: Any, call_next: CallNext) -> Any: ...

    async def alone(record: Any) -> None: ...

    for given, message in [
        ([plain], r"@consumer\('t'\): middleware 'plain' is a plain function: async def middleware"),
        ([alone], "middleware 'alone' takes other arguments: async def middleware"),
        ([Timing], r"middleware Timing is a class: pass an object of it, middleware=\[Timing\(\)\]"),
        (["timing"], "middleware 'timing' is not a function"),
        (passing, r"middleware=passing: a list, outermost first"),
        ("timing", r"middleware='timing': a list"),
        (None, r"middleware=None: a list"),
    ]:
        with pytest.raises(ConfigError, match=message):
            consumer("t", middleware=given)
    assert check_middleware([Timing(), passing], "EventBus")[1] is passing


# on a bus -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("options", [{}, {"exactly_once": True}, {"batch": True}])
def test_on_a_bus(options: dict[str, Any], backend: str) -> None:
    seen: list[Any] = []

    async def main() -> None:
        bus = EventBus("memory://")
        bus.topic("t")
        bus.topic("out")

        async def upper(record: Any, call_next: CallNext) -> Any:
            result = await call_next(record)
            return result.upper()

        async def handle(payload: Any) -> str:
            return "+".join(payload) if isinstance(payload, list) else payload

        handle.__annotations__["payload"] = list[str] if "batch" in options else str
        bus.consumer("t", middleware=[upper], **options)(bus.producer("out")(handle))

        @bus.consumer("out")
        async def out(payload: str) -> None:
            seen.append(payload)

        async with bus:
            await bus.send("t", "a")
            await bus.drain()

    anyio.run(main, backend=backend)
    assert seen == ["A"]


async def test_each_lane_of_an_exactly_once_handler_passes_its_own_transaction() -> None:
    seen: list[Any] = []

    @consumer("t", exactly_once=True, middleware=[passing])
    async def handle(payload: bytes, tx: Transaction) -> None:
        seen.append(tx)

    dispatch = dispatch_of(handle, None, {})
    transactions: list[Any] = [object(), object()]
    for transaction in transactions:
        driver, bound = driver_of(), dispatch.bound(None, lambda driver, call, failure: False)
        bound.calls.transaction = transaction
        await run(bound, driver, chunk_of(b"x"))
        assert driver.work.finished == 1
    assert seen == transactions

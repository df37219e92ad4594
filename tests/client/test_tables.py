"""Tables: filled before the handlers start, right while the bus runs, and clear about what they cannot tell."""

from __future__ import annotations

import logging
import random
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from eventbus import EventBus, RecordMetadata, TopicPartition
from eventbus.errors import ConfigError, SerializationError, TableError
from eventbus.testing import FakeClock, TestBus, in_memory
from serdes import Json
from tests.client.conftest import MakeBus
from tests.client.fakes import on_both
from tests.support import others_wait


class Account(msgspec.Struct, frozen=True):
    owner: str
    balance: int = 0


class Money(msgspec.Struct):
    amount: int


def added(state: int, event: Money) -> int:
    return state + event.amount


async def test_it_is_filled_before_the_handlers_start(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("accounts", 3, configs={"cleanup.policy": "compact"})
        for number in range(50):
            await bus.send("accounts", Account("old", number), key=f"a-{number % 10}")
        await bus.send("accounts", None, key="a-3")

    bus = EventBus(file_url)
    bus.topic("orders")
    accounts = bus.table("accounts", key=str, value=Account)
    seen: list[Any] = []

    @bus.on_startup
    def look() -> None:
        seen.append(len(accounts))

    @bus.consumer("orders", group="shop")
    async def order(account: str) -> None:
        seen.append((account, accounts.get(account), account in accounts))

    async with bus:
        await bus.send("orders", "a-4")
        await bus.send("orders", "a-3")
        await bus.drain()
        assert sorted(accounts) == sorted(f"a-{number}" for number in range(10) if number != 3)
        assert accounts["a-9"] == Account("old", 49)
    assert seen == [9, ("a-4", Account("old", 44), True), ("a-3", None, False)]


@on_both
async def test_it_looks_like_a_mapping_and_follows_the_topic() -> None:
    bus = EventBus("memory://")
    accounts = bus.table("accounts", key=str, value=Account)
    async with bus:
        assert (len(accounts), list(accounts), dict(accounts)) == (0, [], {})
        first = await accounts.put("ada", Account("Ada"))
        await accounts.put("bob", Account("Bob"))
        await accounts.until(await accounts.put("ada", Account("Ada", 5)))
        await accounts.until(first)
        assert accounts == {"ada": Account("Ada", 5), "bob": Account("Bob")}
        assert accounts.get("eve") is None
        with pytest.raises(KeyError):
            accounts["eve"]
        for key in accounts:  # a copy: what comes meanwhile changes nothing
            await accounts.until(await accounts.delete(key))
        assert accounts.snapshot() == {}
        [described] = await bus.admin.describe_topics(["accounts"])
        assert described.configs["cleanup.policy"].value == "compact"
    with pytest.raises(ConfigError, match="'accounts' is not filled"):
        accounts.get("ada")


async def test_a_restart_begins_anew_with_the_topic(make_bus: MakeBus) -> None:
    bus = make_bus()
    accounts = bus.table("accounts", key=str, value=Account)
    async with bus:
        await accounts.put("ada", Account("Ada"))
    expected = {} if bus.url == "memory://" else {"ada": Account("Ada")}
    async with bus:
        assert accounts == expected


async def test_a_folded_table_is_made_of_all_events(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("payments", 2, configs={"retention.ms": -1})
        for number in range(100):
            await bus.send("payments", Money(number), key=f"a-{number % 3}")
        await bus.send("payments", None, key="a-1")  # no event
        await bus.send("payments", Money(1_000_000))

    bus = EventBus(file_url)
    balances = bus.table("balances", of="payments", key=str, value=Money, fold=added, initial=int)
    async with bus:
        assert balances == {f"a-{rest}": sum(range(rest, 100, 3)) for rest in range(3)}
        await balances.until(await bus.send("payments", Money(5), key="a-0"))
        assert balances["a-0"] == sum(range(0, 100, 3)) + 5
        with pytest.raises(ConfigError, match="send an event there"):
            await balances.put("a-0", 1)


async def test_a_fold_without_an_initial_state_begins_with_none_and_ends_with_it() -> None:
    def fold(state: str | None, event: str) -> str | None:
        return None if event == "closed" else f"{state}+{event}"

    bus = TestBus(auto_create_topics=True)
    table = bus.table("t", key=str, value=str, fold=fold)
    async with bus:
        await bus.send("t", "a", key="k")
        await bus.send("t", "b", key="k")
        await bus.send("t", "x", key="gone")
        await bus.send("t", "closed", key="gone")
        await bus.log.drain()
        assert table == {"k": "None+a+b"}
        [described] = await bus.admin.describe_topics(["t"])
        assert described.configs["retention.ms"].value == "-1"


async def test_what_a_transaction_writes_is_there_when_it_is_committed() -> None:
    bus = EventBus("memory://")
    accounts = bus.table("accounts", key=str, value=Account)
    async with bus:
        with pytest.raises(RuntimeError):
            async with bus.transaction("writer") as tx:
                await accounts.put("ada", Account("Ada"), tx=tx)
                raise RuntimeError
        async with bus.transaction("writer") as tx:
            await accounts.put("bob", Account("Bob"), tx=tx)
            await accounts.delete("eve", tx=tx)
            await bus.drain()
            assert accounts == {}
        await bus.drain()
        assert accounts == {"bob": Account("Bob")}


async def test_drain_waits_for_it_and_for_what_its_changes_publish() -> None:
    bus = TestBus(auto_create_topics=True)
    accounts = bus.table("accounts", key=str, value=Account)
    told: list[Any] = []
    told_late: list[str] = []

    @accounts.on_change
    async def publish(change: Any) -> None:
        told.append(tuple(change))
        await bus.send("changes", change.key)

    @accounts.on_change
    def broken(change: Any) -> None:
        raise OSError("no")

    @bus.consumer("changes", group="g")
    async def hear(key: str) -> None:
        told_late.append(key)

    async with bus:
        await accounts.put("ada", Account("Ada"))
        await bus.log.drain()
        await accounts.delete("ada")
        await accounts.delete("nobody")
        await bus.log.drain()
    assert told == [("ada", None, Account("Ada")), ("ada", Account("Ada"), None)]
    assert told_late == ["ada", "ada"]


async def test_plain_handlers_look_up_in_their_threads() -> None:
    bus = EventBus("memory://")
    accounts = bus.table("accounts", key=str, value=Account)
    bus.topic("orders", temporary=True)
    seen: list[Any] = []

    @bus.consumer("orders", group="shop")
    def order(account: str) -> None:
        seen.append([accounts[account], len(accounts.items())])

    async with bus:
        await accounts.until(await accounts.put("ada", Account("Ada")))
        await bus.send("orders", "ada")
        await bus.drain()
    assert seen == [[Account("Ada"), 1]]


async def test_a_record_that_cannot_be_read_keeps_the_bus_from_starting(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("accounts", configs={"cleanup.policy": "compact"})
        await bus.send("accounts", Account("Ada"), key="ada")
        await bus.send("accounts", b"{not", key="bob")
    with pytest.raises(TableError, match=r"accounts-0 offset 1: its value cannot be read.*on_error='skip'"):
        async with tables_of(file_url):
            pass
    async with tables_of(file_url, on_error="skip") as bus:
        assert bus.context.tables["accounts"] == {"ada": Account("Ada")}
        assert samples(bus)["eventbus_table_skipped_records_total"] == 1
    async with EventBus(file_url) as bus:
        await bus.send("accounts", Account("Bob"), key="bob")  # what is mended is no trouble any more
    async with tables_of(file_url) as bus:
        assert set(bus.context.tables["accounts"]) == {"ada", "bob"}


def tables_of(url: str, **options: Any) -> EventBus:
    bus = EventBus(url)
    bus.table("accounts", key=str, value=Account, **options)
    return bus


def samples(bus: EventBus) -> dict[str, float]:
    return {one.name: one.value for one in bus.metrics().parts}


async def test_an_entry_whose_record_cannot_be_read_is_not_known_until_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = EventBus("memory://")
    accounts = bus.table("accounts", key=str, value=Account)
    async with bus:
        await accounts.put("ada", Account("Ada"))
        await accounts.put("bob", Account("Bob"))
        bad = await bus.send("accounts", b"[]", key="ada")
        await accounts.until(bad)
        with pytest.raises(TableError, match=r"accounts-0 offset 2: its value cannot be read"):
            accounts.get("ada")
        assert accounts["bob"] == Account("Bob")
        health = await bus.health()
        assert (health.status, "1 entries are not known" in health.reason) == ("degraded", True)
        await accounts.until(await accounts.put("ada", Account("Ada", 2)))
        assert accounts["ada"] == Account("Ada", 2)
        assert (await bus.health()).status == "ok"
    assert "accounts-0 offset 2" in caplog.text


async def test_what_cannot_be_folded_breaks_that_state_alone() -> None:
    def fold(state: int, event: Money) -> int:
        if event.amount < 0:
            raise ValueError("negative")
        return state + event.amount

    bus = TestBus(auto_create_topics=True)
    balances = bus.table("balances", of="payments", key=str, value=Money, fold=fold, initial=int)
    lenient = bus.table("lenient", of="payments", key=str, value=Money, fold=fold, initial=int, on_error="skip")
    async with bus:
        for amount in (1, -1, 2):
            await bus.send("payments", Money(amount), key="ada")
        await bus.send("payments", b"nothing", key="bob")
        await bus.send("payments", Money(3), key="bob")
        await bus.send("payments", Money(4), key="cleo")
        await bus.log.drain()
        assert lenient == {"ada": 3, "bob": 3, "cleo": 4}
        with pytest.raises(TableError, match="offset 1: the event could not be folded: ValueError"):
            balances["ada"]
        with pytest.raises(TableError, match="offset 3: the event cannot be read"):
            balances["bob"]
        assert balances.snapshot() == {"cleo": 4}


async def test_keys_that_cannot_be_read_are_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    bus = TestBus(auto_create_topics=True)
    by_number = bus.table("numbers", key=int, value=str)
    lists = bus.table("lists", key=Annotated[Any, Json(list[int])], value=str)
    async with bus:
        await bus.send("numbers", "one", key=1)
        await bus.send("numbers", "?", key="two")
        await bus.send("lists", "?", key=b"[1]")
        await bus.log.drain()
        assert by_number == {1: "one"}
        assert len(lists) == 0
        reasons = [part.reason for part in (await bus.health()).parts]
        assert all("its key cannot be read" in reason for reason in reasons)


async def test_events_without_a_key_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    bus = TestBus(auto_create_topics=True)
    balances = bus.table("balances", of="payments", key=str, value=Money, fold=added, initial=int)
    async with bus:
        await bus.send("payments", Money(1))
        await bus.send("payments", Money(1))
        await bus.send("payments", Money(2), key="ada")
        await bus.log.drain()
        assert balances == {"ada": 2}
        assert samples(bus)["eventbus_table_skipped_records_total"] == 2
    assert caplog.text.count("records without a key") == 1


async def test_put_refuses_what_the_table_could_not_read() -> None:
    bus = EventBus("memory://")
    accounts = bus.table("accounts", key=str, value=Account)
    wrong: Any = {"owner": 3}
    nothing: Any = None
    number: Any = 3
    async with bus:
        with pytest.raises(SerializationError, match="is not one that is read as Account"):
            await accounts.put("ada", wrong)
        with pytest.raises(SerializationError, match="the key None"):
            await accounts.put(nothing, Account("Ada"))
        with pytest.raises(SerializationError, match=r"the key 3 is not one that is read as str: .* read as '\\x00"):
            await accounts.put(number, Account("Ada"))
        with pytest.raises(ConfigError, match=r"delete\(key\)"):
            await accounts.put("ada", nothing)
        with pytest.raises(ConfigError, match="a record of its topic"):
            await accounts.until(RecordMetadata("orders", 0, 1, 0))
        [described] = await bus.admin.describe_topics(["accounts"])
        assert described.partitions[0].high_watermark == 0


async def test_a_topic_that_forgets_is_no_table(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("accounts")
        await bus.admin.create_topic("compacted", configs={"cleanup.policy": "compact"})
    with pytest.raises(ConfigError, match=r"cleanup.policy=delete.*eventbus topics alter accounts"):
        async with tables_of(file_url):
            pass
    bus = EventBus(file_url)
    bus.table("folded", of="compacted", key=str, value=Money, fold=added, initial=int)
    with pytest.raises(ConfigError, match="only the last one is kept"):
        await bus.start()


async def test_events_that_are_gone_are_missed(file_url: str, caplog: pytest.LogCaptureFixture) -> None:
    def balances_of(**options: Any) -> EventBus:
        bus = EventBus(file_url)
        bus.table("balances", of="payments", key=str, value=Money, fold=added, initial=int, **options)
        return bus

    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("payments")
        for amount in (1, 2, 4):
            await bus.send("payments", Money(amount), key="ada")
    async with balances_of():
        assert "deletes old events (retention.ms=604800000)" in caplog.text
    async with EventBus(file_url) as bus:
        await bus.admin.delete_records({TopicPartition("payments", 0): 1})
    with pytest.raises(TableError, match="payments-0 begins at offset 1"):
        async with balances_of():
            pass
    async with balances_of(history="partial") as bus:
        assert bus.context.tables["balances"] == {"ada": 6}


@on_both
async def test_a_topic_made_anew_is_another_table() -> None:
    bus = EventBus("memory://")
    accounts = bus.table("accounts", key=str, value=Account)
    async with bus:
        await accounts.until(await accounts.put("ada", Account("Ada")))
        later = await bus.send("accounts", Account("Bob"), key="bob")
        failed: list[TableError] = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                try:
                    await accounts.until(later._replace(offset=99))
                except TableError as error:
                    failed.append(error)

            tasks.start_soon(wait)
            await others_wait()
            await bus.admin.delete_topics("accounts")
            await bus.admin.create_topic("accounts", configs={"cleanup.policy": "compact"})
        await bus.drain()
        assert accounts == {}
        await accounts.until(await accounts.put("eve", Account("Eve")))
        assert accounts == {"eve": Account("Eve")}
    assert "was deleted meanwhile" in str(failed[0])


async def test_new_partitions_are_read_too() -> None:
    bus = EventBus("memory://")
    accounts = bus.table("accounts", key=str, value=Account)
    async with bus:
        await bus.admin.add_partitions("accounts", 3)
        for partition in range(3):
            await bus.send("accounts", Account("x"), key=f"of {partition}", partition=partition)
        await bus.drain()
        assert len(accounts) == 3


async def test_declared_settings_of_the_topic_stay() -> None:
    bus = EventBus("memory://")
    bus.table("accounts", key=str, value=Account)
    bus.topic("accounts", partitions=4, configs={"cleanup.policy": "compact,delete", "retention.ms": 1000})
    async with bus:
        [topic] = await bus.admin.describe_topics(["accounts"])
        assert (len(topic.partitions), topic.configs["cleanup.policy"].value) == (4, "compact,delete")


async def test_numbers_and_health() -> None:
    bus = TestBus(auto_create_topics=True)
    accounts = bus.table("accounts", key=str, value=Account)

    @bus.consumer("t", group="g")
    async def handle(value: str) -> None: ...

    async with bus:
        await accounts.put("ada", Account("Ada"))
        await accounts.put("ada", Account("Ada", 1))
        await bus.log.drain()
        await bus.clock.advance(seconds=20)
        found = samples(bus)
        assert found["eventbus_table_entries"] == 1
        assert found["eventbus_table_applied_records_total"] == 2
        assert found["eventbus_table_lag_records"] == 0
        assert 20 < found["eventbus_table_size_bytes"] < 40
        [part] = (await bus.health()).parts
        assert (part.part, part.status, part.reason) == ("table accounts", "ok", "1 entries, 0 records behind")


async def test_it_goes_on_when_the_log_does(caplog: pytest.LogCaptureFixture) -> None:
    bus = TestBus(auto_create_topics=True)
    accounts = bus.table("accounts", key=str, value=Account)
    async with bus:
        await accounts.put("ada", Account("Ada"))
        await bus.log.drain()
        with bus.log.faults.outage():
            await bus.clock.advance(seconds=10)
            assert (await bus.health()).status == "degraded"
        await accounts.put("bob", Account("Bob"))
        await bus.clock.advance(seconds=10)
        assert set(accounts) == {"ada", "bob"}
        assert (await bus.health()).status == "ok"
    assert caplog.text.count("is tried again") == 1


async def test_an_applications_bus_has_its_tables_in_memory_too() -> None:
    bus = EventBus("file:///nowhere/at/all")
    accounts = bus.table("accounts", key=str, value=Account)
    async with in_memory(bus) as log:
        await accounts.put("ada", Account("Ada"))
        await log.drain()
        assert accounts["ada"] == Account("Ada")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": list, "value": str}, "cannot be looked up"),
        ({"key": Money, "value": str}, "frozen"),
        ({"key": str, "value": str, "initial": int}, "go with fold="),
        ({"key": str, "value": str, "fold": len}, "a plain function of two"),
        ({"key": str, "value": str, "fold": added, "initial": 0}, "initial=int"),
        ({"key": str, "value": str, "fold": added, "history": "all"}, "'whole' or 'partial'"),
        ({"key": str, "value": str, "on_error": "crash"}, "'stop' or 'skip'"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_declared(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EventBus("memory://").table("t", **options)


async def test_twice_and_late_are_refused() -> None:
    bus = EventBus("memory://")
    table = bus.table("t", key=str, value=str)
    with pytest.raises(ConfigError, match="declared twice"):
        bus.table("t", key=str, value=str)
    with pytest.raises(ConfigError, match="called with the TableChange alone"):
        table.on_change(lambda: None)
    async with bus:
        with pytest.raises(ConfigError, match="before the bus starts"):
            bus.table("late", key=str, value=str)


class LateClock(FakeClock):
    """Time passes while a function runs."""

    late_seconds = 0.0

    def current_time(self) -> float:
        return super().current_time() + self.late_seconds


async def test_a_long_start_tells_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventbus.tables")
    clock = LateClock()

    def slow(state: int | None, event: bytes) -> int:
        clock.late_seconds += 1
        return len(event)

    bus = TestBus(auto_create_topics=True, clock=clock, max_partition_fetch_bytes=1_000)
    async with bus:
        for _ in range(20):
            await bus.send("t", b"x" * 500, key="k")
    bus.table("t", key=str, value=bytes, fold=slow)
    async with bus:
        pass
    assert "table 't': 15 of 20 offsets of topic 't' to go, 1 records/s so far" in caplog.text
    assert "20 records were read in 20.0 s" in caplog.text


class Labels(msgspec.Struct, frozen=True):
    names: list[str] | None = None


async def test_a_key_that_is_in_no_dict_spoils_no_other() -> None:
    bus = TestBus(auto_create_topics=True)
    table = bus.table("t", key=Labels, value=str)
    async with bus:
        with anyio.fail_after(30):
            async with bus.transaction("one") as tx:  # so that one fetch has them all, the good ones on both sides
                await tx.send("t", "before", key=Labels())
                await tx.send("t", "bad", key=Labels(["x"]))
                await tx.send("t", "after", key=Labels())
            await bus.drain()
        assert table.snapshot() == {Labels(): "after"}
        health = await bus.health()
        assert health.status == "degraded"
        assert "offset 1: its key cannot be read" in health.reason


async def test_a_function_of_on_change_cannot_wait_for_its_own_table() -> None:
    bus = TestBus(auto_create_topics=True)
    table = bus.table("t", key=str, value=int)
    problems: list[str] = []

    @table.on_change
    async def again(change: Any) -> None:
        if change.key == "a":
            stored = await table.put("b", 2)
            try:
                await table.until(stored)
            except ConfigError as error:
                problems.append(str(error))

    async with bus:
        with anyio.fail_after(30):
            await table.until(await table.put("a", 1))
            await bus.drain()
        assert table.snapshot() == {"a": 1, "b": 2}
    assert len(problems) == 1
    assert "waits for that function" in problems[0]


async def test_waiting_for_a_record_of_a_topic_that_was_deleted_is_refused() -> None:
    bus = TestBus(auto_create_topics=True)
    table = bus.table("t", key=str, value=int)
    async with bus:
        stored = [await table.put("a", number) for number in range(5)][-1]
        await table.until(stored)
        await bus.admin.delete_topics(["t"])
        with anyio.fail_after(30):
            while "a" in table:
                await bus.clock.advance(seconds=1)
            with pytest.raises(TableError, match="was deleted since"):
                await table.until(stored)
            await bus.admin.create_topic("t", 1, configs={"cleanup.policy": "compact"})
            with pytest.raises(TableError, match="was deleted since"):
                await table.until(stored)


@pytest.mark.parametrize("seed", range(12))
async def test_of_several_that_drain_each_waits_for_what_on_change_publishes(seed: int) -> None:
    chosen, bus, got = random.Random(seed), TestBus(auto_create_topics=True), list[str]()
    table = bus.table("t", key=str, value=int)

    async def pause(most: int) -> None:
        for _ in range(chosen.randrange(most)):
            await anyio.lowlevel.checkpoint()

    @table.on_change
    async def publish(change: Any) -> None:
        await pause(4)
        await bus.send("out", change.key)

    @bus.consumer("out", group="g")
    async def handle(key: str) -> None:
        await pause(4)
        got.append(key)
        if key == "a":
            await table.put("b", 1)

    async def drain() -> None:
        await pause(30)
        await bus.drain()
        assert got == ["a", "b"]

    async with bus:
        await table.put("a", 1)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(drain)

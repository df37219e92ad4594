"""Avro on a bus: by annotation, on keys and values, in each way a handler can be run."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict, cast

import anyio
import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus
from eventbus.errors import ConfigError, SchemaNotReady, SchemaUnavailable, SerializationError
from serdes import Avro, SchemaRegistryError
from serdes.avro.from_types import schema_of
from serdes.avro.text import to_text
from tests.client.fakes import on_both
from tests.serdes.avro_codec.fake_registry import FakeRegistry


class Flight(msgspec.Struct):
    number: str
    seats: int = 0


class Baggage(msgspec.Struct):
    tag: int


class Plain(msgspec.Struct):
    text: str


FLIGHTS = [Flight(f"BA{n}", n) for n in range(5)]


@pytest.mark.parametrize("id_in", ["prefix", "header"])
@on_both
async def test_keys_and_values_by_annotation(make_bus: Any, id_in: str) -> None:
    registry = FakeRegistry()
    avro = Avro(registry, id_in=id_in)
    bus: EventBus = make_bus(serde=avro)
    seen: list[Any] = []

    @bus.consumer("flights")
    async def handle(flight: Flight) -> None:
        seen.append(flight)

    bus.topic("flights")
    async with bus:
        assert registry.calls == ["latest flights-value"]
        await bus.send("flights", FLIGHTS[0], key=Baggage(1), headers={"a": b"1"})
        bus.send_nowait("flights", FLIGHTS[1])
        await bus.send_many("flights", FLIGHTS[2:], key=lambda flight: Baggage(flight.seats))
        await bus.drain()
        assert seen == FLIGHTS
        async with bus.new_consumer("flights", group="audit", key=Baggage, value=Any) as consumer:
            records = [record async for record in _some(consumer, 5)]
    assert [record.key for record in records] == [Baggage(1), None, Baggage(2), Baggage(3), Baggage(4)]
    assert records[0].value == {"number": "BA0", "seats": 0}
    names = [name for name, _ in records[0].headers]
    assert names == (["a"] if id_in == "prefix" else ["a", "__key_schema_id", "__value_schema_id"])
    assert sorted(registry.subjects) == ["flights-key", "flights-value"]


async def _some(consumer: Any, count: int) -> AsyncIterator[ConsumerRecord]:
    async for record in consumer:
        yield record
        count -= 1
        if not count:
            return


@pytest.mark.parametrize("id_in", ["prefix", "header"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch": 2},
        {"order": "key", "concurrency": 3},
        {"exactly_once": True},
        {"delivery": "at-most-once"},
        {"filter": lambda record: True},
    ],
    ids=["in order", "batch", "by key", "exactly once", "at most once", "filter"],
)
async def test_every_way_of_handling(options: dict[str, Any], id_in: str) -> None:
    bus = EventBus("memory://", serde=Avro(FakeRegistry(), id_in=id_in))
    seen: list[Any] = []
    in_threads: list[Any] = []

    if "batch" in options:

        @bus.consumer("flights", name="one", **options)
        async def handle_batch(flights: list[Flight]) -> None:
            seen.extend(flights)
    else:

        @bus.consumer("flights", name="one", **options)
        async def handle(flight: Flight, record: ConsumerRecord) -> None:
            assert record.topic == "flights"
            seen.append(flight)

        @bus.consumer("flights", name="two", **options)
        async def handle_alone(flight: Flight) -> None:
            in_threads.append(flight)

    bus.topic("flights")
    async with bus:
        await bus.send_many("flights", FLIGHTS)
        await bus.drain()
    assert sorted(seen, key=lambda flight: flight.seats) == FLIGHTS
    assert "batch" in options or sorted(in_threads, key=lambda flight: flight.seats) == FLIGHTS


async def test_a_plain_function_and_a_middleware() -> None:
    bus = EventBus("memory://", serde=Avro(FakeRegistry(), id_in="header"))
    seen: list[Any] = []

    async def around(record: ConsumerRecord, call_next: Any) -> Any:
        seen.append(bytes(record.value)[:1])
        return await call_next(record)

    @bus.consumer("flights", middleware=[around])
    def handle(flight: Flight) -> None:
        seen.append(flight)

    bus.topic("flights")
    async with bus:
        await bus.send("flights", FLIGHTS[1])
        await bus.drain()
    assert seen == [b"\x06", FLIGHTS[1]]


async def test_types_and_annotations_say_it_one_by_one() -> None:
    """A serde is given by type for the bus, by a handler's annotation, and by a return annotation; others stay JSON."""
    mapped, named, returned = FakeRegistry(), FakeRegistry(), FakeRegistry()
    bus = EventBus("memory://", serdes={Flight: Avro(mapped)})
    seen: list[Any] = []

    @bus.consumer("plain")
    async def plain(value: Plain) -> None:
        seen.append(value)

    @bus.consumer("flights")
    @bus.producer("baggage")
    async def flights(flight: Flight) -> Annotated[Baggage, Avro(returned)]:
        return Baggage(flight.seats)

    @bus.consumer("baggage")
    async def baggage(one: Annotated[Baggage, Avro(returned)]) -> None:
        seen.append(one)

    for topic in ("plain", "flights", "baggage"):
        bus.topic(topic)
    async with bus:
        assert returned.calls[0] == "register baggage-value"
        await bus.send("plain", Plain("x"))
        await bus.send("flights", FLIGHTS[3])
        await bus.drain()
    assert sorted(seen, key=repr) == [Baggage(3), Plain("x")]
    assert (list(mapped.subjects), list(named.subjects), list(returned.subjects)) == (
        ["flights-value"],
        [],
        ["baggage-value"],
    )


class Ticket(TypedDict):
    seat: int


@pytest.mark.parametrize("says", ["serde=", "serdes=", "annotation"])
async def test_what_a_producer_returns_may_say_more_than_the_class_of_its_values(says: str) -> None:
    """The values are dicts and lists: only the annotation shows a TypedDict and the type of items."""
    registry = FakeRegistry()
    avro = Avro(registry)
    bus = EventBus("memory://", serde=avro, serdes={dict: avro, list: avro} if says == "serdes=" else None)
    seen: list[Any] = []

    @bus.producer("tickets")
    async def sell(seat: int) -> Annotated[Ticket, avro if says == "annotation" else None]:
        return {"seat": seat}

    @bus.consumer("tickets")
    @bus.producer("seats")
    async def ticket(one: Ticket) -> list[int]:
        seen.append(one)
        return [one["seat"]]

    @bus.consumer("seats")
    async def seats(one: list[int]) -> None:
        seen.append(one)

    written = [use.serde for use in bus.context.schema_uses() if use.direction == "writes" and use.topic is not None]
    assert [to_text(cast("Any", serde).schema) for serde in written] == [
        to_text(schema_of(Ticket)),
        to_text(schema_of(list[int])),
    ]
    async with bus:
        await sell(3)
        await bus.drain()
    assert seen == [{"seat": 3}, [3]]
    assert {"tickets-value", "seats-value"} <= set(registry.subjects)


async def test_records_of_several_types_in_one_topic() -> None:
    registry = FakeRegistry()
    bus = EventBus("memory://", serde=Avro(registry, subject="record_name"))
    seen: list[Any] = []

    @bus.consumer("events")
    async def handle(event: Flight | Baggage) -> None:
        seen.append(event)

    @bus.consumer("numbers")
    @bus.producer("events")
    async def make(number: int) -> AsyncIterator[Flight | Baggage | None]:
        yield Flight("x", number)
        yield Baggage(number)

    bus.topic("numbers")
    async with bus:
        assert [call for call in registry.calls if call.startswith("register")] == [
            "register Flight",
            "register Baggage",
        ]
        await bus.send("numbers", 7)
        await bus.send("events", Baggage(8))
        await bus.drain()
    assert sorted(seen, key=repr) == [Baggage(7), Baggage(8), Flight("x", 7)]


async def test_an_older_writers_records_are_read_as_the_handlers_type() -> None:
    registry = FakeRegistry()
    old = registry.add(
        '{"type":"record","name":"Flight","fields":[{"name":"number","type":"string"}]}', "flights-value"
    )
    bus = EventBus("memory://", serde=Avro(registry))
    seen: list[Any] = []

    @bus.consumer("flights")
    async def handle(flight: Flight) -> None:
        seen.append(flight)

    bus.topic("flights")
    async with bus:
        await bus.send("flights", b"\0" + old.to_bytes(4, "big") + b"\x06BA1")
        await bus.send("flights", FLIGHTS[2])
        await bus.drain()
    assert seen == [Flight("BA1", 0), FLIGHTS[2]]


# what a start says ----------------------------------------------------------------------------------------------------


def declared(registry: FakeRegistry) -> EventBus:
    """A bus with something to read and something to write."""
    bus = EventBus("memory://", serde=Avro(registry))

    @bus.consumer("flights")
    @bus.producer("baggage")
    async def handle(flight: Flight) -> Baggage:
        return Baggage(flight.seats)

    bus.topic("flights")
    return bus


@on_both
async def test_a_registry_that_is_down_at_the_start() -> None:
    registry = FakeRegistry()
    registry.down = True
    bus = declared(registry)
    with pytest.raises(SchemaUnavailable, match=r"'handle' writes Baggage to topic 'baggage': http://registry:8081"):
        await bus.start()
    registry.down = False
    async with bus:
        assert bus.is_running


async def test_a_schema_that_the_registry_refuses() -> None:
    registry = FakeRegistry()
    registry.refuses = SchemaRegistryError("Schema being registered is incompatible", status=409, error_code=409)
    with pytest.raises(ConfigError, match="'handle' writes Baggage to topic 'baggage': the schema registry refuses it"):
        await declared(registry).start()


async def test_a_latest_schema_that_the_handler_cannot_read() -> None:
    registry = FakeRegistry()
    registry.add(to_text(schema_of(Baggage)), "flights-value")
    with pytest.raises(ConfigError, match=r"'handle' reads Flight from topic 'flights': the latest schema .*'number'"):
        await declared(registry).start()


async def test_what_is_declared_can_be_asked_for_without_a_start() -> None:
    registry = FakeRegistry()
    uses = declared(registry).context.schema_uses()
    assert [(one.topic, one.part, one.direction, one.type, one.name) for one in uses] == [
        ("flights", "value", "reads", Flight, "handle"),
        ("baggage", "value", "writes", Baggage, "handle"),
    ]
    assert registry.calls == []


async def test_the_types_of_topics_and_tables_are_declared_too() -> None:
    bus = EventBus("memory://", serde=Avro(FakeRegistry()))
    bus.topic("flights", value=Flight)
    bus.table("bags", key=str, value=Baggage)
    uses = bus.context.schema_uses()
    assert [(one.topic, one.part, one.direction, one.type) for one in uses if one.part == "value"] == [
        ("flights", "value", "writes", Flight),
        ("bags", "value", "reads", Baggage),
    ]


def test_a_type_without_a_schema_is_said_at_the_declaration_of_its_bus() -> None:
    bus = EventBus("memory://", serde=Avro(FakeRegistry()))
    with pytest.raises(ConfigError, match=r"payload type complex cannot be read: complex: complex has no Avro type"):

        @bus.consumer("flights")
        async def handle(flight: complex) -> None: ...


# a registry that does not answer --------------------------------------------------------------------------------------


@pytest.mark.system
@on_both
async def test_a_handler_waits_for_a_schema_and_skips_nothing(caplog: pytest.LogCaptureFixture) -> None:
    registry = FakeRegistry()
    known, other = (registry.add(to_text(schema_of(kind))) for kind in (Flight, Baggage))
    bus = EventBus("memory://", serde=Avro(registry))
    seen: list[Any] = []

    @bus.consumer("events")
    async def handle(event: Any) -> None:
        seen.append(event)

    bus.topic("events")
    async with bus:
        await bus.send("events", b"\0" + known.to_bytes(4, "big") + b"\x02a\0")
        await bus.drain()
        registry.down = True
        # What is in the cache goes on.
        await bus.send("events", b"\0" + known.to_bytes(4, "big") + b"\x02b\0")
        await bus.drain()
        assert [one["number"] for one in seen] == ["a", "b"]
        await bus.send("events", b"\0" + other.to_bytes(4, "big") + b"\x0e")
        await bus.send("events", b"\0" + known.to_bytes(4, "big") + b"\x02c\0")
        while len([call for call in registry.calls if call == f"by_id {other}"]) < 2:
            await anyio.lowlevel.checkpoint()
        assert len(seen) == 2
        health = await bus.health()
        assert health.status == "degraded"
        assert f"events-0 waits: schema {other} has not been fetched yet: SchemaRegistryError: " in health.reason
        registry.down = False
        await bus.drain()
    assert seen[2:] == [{"tag": 7}, {"number": "c", "seats": 0}]
    warnings = [record.getMessage() for record in caplog.records if "waits for a schema" in record.getMessage()]
    assert warnings == [
        "handler 'handle': events-0 waits for a schema, and the registry is asked again: "
        f"schema {other} has not been fetched yet: http://registry:8081 does not answer: connection refused"
    ]


async def test_a_registry_that_hangs_holds_up_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the threads of the program, nor a bus that is closed."""
    answer = threading.Event()

    class Hanging(FakeRegistry):
        def by_id(self, schema_id: int, subject: str | None = None) -> Any:
            self.calls.append("by_id")
            answer.wait()
            return super().by_id(schema_id, subject)

    registry = Hanging()
    bus = EventBus("memory://", serde=Avro(registry))

    @bus.consumer("flights")
    async def handle(flight: Flight) -> None:
        raise AssertionError("it was never readable")

    bus.topic("flights", partitions=8)
    try:
        async with bus:
            for partition in range(8):
                await bus.send("flights", b"\0\0\0\0\1\x02a\0", partition=partition)
            while registry.calls.count("by_id") < 4:
                await anyio.lowlevel.checkpoint()
            assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        assert registry.calls.count("by_id") == 4
        assert not caplog.records, "nothing had to be given up on"
    finally:
        answer.set()


TROUBLES = [
    SchemaRegistryError("Unauthorized", status=401, error_code=401),
    SchemaRegistryError("a proxy's: there is no such page", status=404, error_code=404),
    ConnectionError("of a client that somebody wrote"),
]


@pytest.mark.system
@pytest.mark.parametrize("trouble", TROUBLES, ids=["password", "proxy", "another error"])
async def test_trouble_of_any_kind_makes_no_record_wrong(trouble: Any) -> None:
    """A password that has changed, an address that leads to a proxy: with on_error="skip" each record would be lost."""
    registry = FakeRegistry()
    one = registry.add(to_text(schema_of(Flight)))
    data = b"\0" + one.to_bytes(4, "big") + b"\x02a\0"
    bus = EventBus("memory://", serde=Avro(registry))
    seen: list[Any] = []

    @bus.consumer("flights", on_error="skip")
    async def handle(flight: Flight) -> None:
        seen.append(flight)

    bus.topic("flights")
    async with bus:
        registry.refuses, registry.calls = trouble, []
        await bus.send("flights", data)
        async with bus.new_consumer("flights", group="g", value=Flight, start="earliest") as consumer:
            with pytest.raises(SchemaUnavailable, match=str(trouble)):
                await anext(consumer)
            while len(registry.calls) < 3:
                await anyio.lowlevel.checkpoint()
            assert not seen
            registry.refuses = None
            assert (await anext(consumer)).value == Flight("a")
        await bus.drain()
    assert seen == [Flight("a")]


async def test_an_address_without_a_registry_is_said_at_the_start() -> None:
    registry = FakeRegistry()
    registry.refuses = SchemaRegistryError("Not Found", status=404, error_code=404)
    bus = EventBus("memory://", serde=Avro(registry))

    @bus.consumer("flights")
    async def handle(flight: Flight) -> None: ...

    bus.topic("flights")
    with pytest.raises(ConfigError, match=r"'handle' reads Flight from topic 'flights': .*Not Found"):
        await bus.start()


async def test_a_bus_closes_while_a_handler_waits_for_a_schema() -> None:
    registry = FakeRegistry()
    registry.down = True
    bus = EventBus("memory://", serde=Avro(registry))

    @bus.consumer("events")
    async def handle(event: Any) -> None:
        raise AssertionError("it was never readable")

    bus.topic("events")
    async with bus:
        await bus.send("events", b"\0\0\0\0\1\0")
        while not registry.calls:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("on_error", ["stop", "skip"])
async def test_a_record_with_an_unknown_schema_is_the_records_error(on_error: str) -> None:
    bus = EventBus("memory://", serde=Avro(FakeRegistry()))
    seen: list[Any] = []

    @bus.consumer("flights", on_error=on_error)
    async def handle(flight: Flight) -> None:
        seen.append(flight)

    bus.topic("flights")
    async with bus:
        await bus.send("flights", FLIGHTS[0])
        await bus.send("flights", b"\0\0\0\0\x63\0")
        await bus.send("flights", FLIGHTS[1])
        if on_error == "skip":
            await bus.drain()
            assert seen == FLIGHTS[:2]
        else:
            with pytest.raises(Exception, match=r"flights-0 offset 1.*schema id 99 \(subject flights-value\)"):
                await bus.drain()
            assert seen == FLIGHTS[:1]


@on_both
async def test_a_consumer_polls_on_when_the_registry_is_back() -> None:
    registry = FakeRegistry()
    one = registry.add(to_text(schema_of(Flight)))
    registry.down = True
    bus = EventBus("memory://", serde=Avro(registry))
    bus.topic("flights")
    async with bus:
        await bus.send("flights", b"\0" + one.to_bytes(4, "big") + b"\x02a\0")
        await bus.send("flights", b"\0\0\0\0\x63\0")
        async with bus.new_consumer("flights", group="g", value=Flight, start="earliest") as consumer:
            for _ in range(2):
                with pytest.raises(SchemaUnavailable, match="does not answer"):
                    await anext(consumer)
            registry.down = False
            assert (await anext(consumer)).value == Flight("a")
            with pytest.raises(SerializationError, match=r"flights-0 offset 1 cannot be read: schema id 99"):
                await anext(consumer)


@on_both
async def test_a_producer_is_told_that_the_registry_is_down() -> None:
    registry = FakeRegistry()
    bus = EventBus("memory://", serde=Avro(registry))
    bus.topic("flights")
    async with bus:
        registry.down = True
        with pytest.raises(SchemaUnavailable, match=r"Flight.*'flights'.*does not answer"):
            await bus.send("flights", FLIGHTS[0])
        with pytest.raises(SchemaUnavailable):
            await bus.send_many("flights", FLIGHTS)
        with pytest.raises(SchemaNotReady, match=r"await bus.prepare\(topic, Type\)"):
            bus.send_nowait("flights", FLIGHTS[0])
        with pytest.raises(SchemaUnavailable):
            await bus.prepare("flights", Flight, key=Baggage)
        registry.down = False
        await bus.prepare("flights", Flight, key=Baggage)
        registry.down = True
        await bus.send_nowait("flights", FLIGHTS[0], key=Baggage(1))
        await bus.send("flights", FLIGHTS[0])


async def test_a_registry_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds, here a moment."""
    answer = threading.Event()

    class Hanging(FakeRegistry):
        def register(self, *arguments: Any, **options: Any) -> Any:
            answer.wait()
            return super().register(*arguments, **options)

    monkeypatch.setattr("eventbus.client.schemas._LONGEST_SECONDS", 0.01)
    bus = EventBus("memory://", serde=Avro(Hanging()))
    bus.topic("flights")
    async with bus:
        try:
            with pytest.raises(SchemaUnavailable, match=r"did not answer within 0.01 s"):
                await bus.send("flights", FLIGHTS[0])
        finally:
            answer.set()


@on_both
async def test_the_event_loop_waits_for_no_registry() -> None:
    threads: set[int] = set()

    class Watched(FakeRegistry):
        def _asked(self, what: str) -> None:
            super()._asked(what)
            threads.add(threading.get_ident())

    registry = Watched()
    other = registry.add(to_text(schema_of(Baggage)))
    bus = declared(registry)
    seen: list[Any] = []

    @bus.consumer("baggage")
    async def handle(baggage: Baggage) -> None:
        seen.append(baggage)

    async with bus:
        await bus.send("flights", FLIGHTS[2], key=Baggage(1))
        await bus.send("baggage", b"\0" + other.to_bytes(4, "big") + b"\x0e")
        await bus.drain()
    assert sorted(seen, key=repr) == [Baggage(2), Baggage(7)]
    assert threads
    assert threading.get_ident() not in threads


# parts ----------------------------------------------------------------------------------------------------------------


class Recorder:
    """A part that writes down what happens to it."""

    def __init__(self, said: list[str], name: str) -> None:
        self.said = said
        self.name = name

    async def start(self, bus: EventBus) -> None:
        self.said.append(f"{self.name} starts")
        await bus.send("parts", b"hello")
        self.bus = bus

    async def aclose(self) -> None:
        await self.bus.send("parts", b"bye")
        self.said.append(f"{self.name} ends")


class SelfMade(FakeRegistry, Recorder):
    """A client that is a part too, as the one of the registry in the log."""

    def __init__(self, said: list[str]) -> None:
        FakeRegistry.__init__(self)
        Recorder.__init__(self, said, "registry")


@on_both
async def test_parts_live_as_long_as_the_bus_runs() -> None:
    said: list[str] = []
    registry = SelfMade(said)
    bus = EventBus("memory://", serde=Avro(registry))
    bus.include(Recorder(said, "first"))
    bus.include(registry)
    bus.topic("parts")

    @bus.consumer("parts")
    async def handle(value: bytes) -> None:
        said.append(value.decode())

    async with bus:
        await bus.drain()
        with pytest.raises(ConfigError, match="include: declare handlers, and include parts, before the bus starts"):
            bus.include(Recorder(said, "late"))
    assert said == ["first starts", "registry starts", "hello", "hello", "registry ends", "first ends"]


async def test_a_part_that_does_not_start_ends_the_start() -> None:
    said: list[str] = []

    class Broken(Recorder):
        async def start(self, bus: EventBus) -> None:
            raise ConfigError("no")

        async def aclose(self) -> None:
            said.append("broken ends")

    bus = EventBus("memory://")
    bus.topic("parts")
    bus.include(Recorder(said, "first"))
    bus.include(Broken(said, "broken"))
    with pytest.raises(ConfigError, match="no"):
        await bus.start()
    assert said == ["first starts", "broken ends", "first ends"]
    assert not bus.is_running


async def test_a_parts_task_runs_until_the_bus_closes() -> None:
    bus = EventBus("memory://")
    ended: list[str] = []

    async def task() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("task")

    with pytest.raises(ConfigError, match="start_soon: the bus is not running"):
        bus.context.start_soon(task)
    async with bus:
        bus.context.start_soon(task)
        await anyio.lowlevel.checkpoint()
    assert ended == ["task"]

"""``Avro("log")``: the same program on memory://, file:// and kafka://, with its schemas stored in the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError
from eventbus.testing import in_memory
from schema_registry import Registry
from serdes import Avro
from serdes.avro import AvroType
from tests.clients.serving import Served


class Flight(msgspec.Struct):
    """Of an airline."""

    number: str
    seats: int


class Later(msgspec.Struct):
    """The same, some releases later."""

    __avro__ = AvroType(name="Flight")

    number: str
    seats: int
    gate: str | None = None


class Broken(msgspec.Struct):
    """The same, with a field that older records do not have."""

    __avro__ = AvroType(name="Flight")

    number: str
    seats: int
    gate: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served") / "log") as server:
        yield server


@pytest.fixture(params=["memory", "file", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        return f"kafka://{request.getfixturevalue('served').bootstrap}"
    return f"file://{tmp_path / 'log'}" if request.param == "file" else "memory://avro-in-the-log"


@pytest.mark.system
async def test_a_class_evolves_and_a_break_is_refused_at_the_start(url: str) -> None:
    avro = Avro("log")
    seen: list[Any] = []
    first = EventBus(url, serde=avro)
    first.topic("flights")
    later = EventBus(url, serde=Avro("log", id_in="header"))

    @first.consumer("flights", group="first")
    async def read(flight: Flight) -> None:
        seen.append(flight)

    @later.consumer("flights", group="later")
    async def read_later(flight: Later) -> None:
        seen.append(flight)

    async with first:
        await first.send("flights", Flight("BA1", 180), key="BA1")
        await first.drain()
        async with later:  # two buses with the same log and registry
            await later.send("flights", Later("BA2", 90, "A1"))
            await later.drain()
            await first.drain()
        broken = EventBus(url, serde=Avro("log"))

        @broken.producer("flights")
        async def publish() -> Broken:
            return Broken("BA3", 1, "B2")

        with pytest.raises(ConfigError, match=r"'publish' writes Broken to topic 'flights': .*gate"):
            await broken.start()
    assert sorted(seen, key=repr) == [
        Flight("BA1", 180),
        Flight("BA2", 90),
        Later("BA1", 180, None),
        Later("BA2", 90, "A1"),
    ]


class Baggage(msgspec.Struct):
    tag: int


async def test_each_log_has_its_own_ids() -> None:
    """An application in two tests, each with a separate log: the first id is used for different schemas."""
    app = EventBus("memory://", serde=Avro("log"), auto_create_topics=True)
    seen: list[Any] = []

    @app.consumer("flights")
    async def flight(one: Flight) -> None:
        seen.append(one)

    @app.consumer("baggage")
    async def baggage(one: Baggage) -> None:
        seen.append(one)

    async with in_memory(app) as log:
        await app.send("flights", Flight("BA1", 1))
        await log.drain()
    async with in_memory(app) as log:
        await app.send("baggage", Baggage(7))
        await app.send("flights", Flight("BA2", 2))
        await log.drain()
        async with app.new_consumer("flights", value=bytes, start="earliest") as consumer:
            assert (await anext(consumer)).value[:5] == b"\0\0\0\0\2"
    assert sorted(seen, key=repr) == [Baggage(7), Flight("BA1", 1), Flight("BA2", 2)]


async def test_two_buses_at_once_have_a_serde_each() -> None:
    avro = Avro("log")
    async with EventBus("memory://one", serde=avro) as first:
        with pytest.raises(ConfigError, match=r"make one Avro\(\"log\"\) for each bus"):
            await EventBus("memory://two", serde=avro).start()
        await first.prepare("flights", Flight)


@pytest.mark.system
async def test_a_registry_that_is_given_stays_the_one() -> None:
    async with EventBus("memory://one") as elsewhere, Registry(elsewhere) as registry:
        bus = EventBus("memory://two", serde=Avro(registry.client()))
        bus.topic("flights")
        async with bus:
            await bus.send("flights", Flight("BA1", 1))
        assert registry.subjects() == ["flights-value"]

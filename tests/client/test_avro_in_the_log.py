"""``Avro("log")``: one program on memory://, file:// and kafka://, its schemas kept beside its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError
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
        async with later:  # beside each other: one log, one registry
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

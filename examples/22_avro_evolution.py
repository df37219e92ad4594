"""A schema evolves: old and new programs read each other after a nullable field is added. A required field is refused.

The classes are the schemas, and the log keeps them in the topic `_schemas`.
"""

from __future__ import annotations

import anyio
import msgspec

from eventbus import EventBus, log_url
from eventbus.errors import ConfigError
from serdes import Avro
from serdes.avro.marks import AvroType

URL = log_url("memory://flights")


class Flight(msgspec.Struct):
    carrier: str
    number: int


class NewFlight(Flight):
    __avro__ = AvroType(name="Flight")  # the same record, a year later
    gate: str | None = None  # old records lack it, and old programs ignore it


class StrictFlight(NewFlight, kw_only=True):
    __avro__ = AvroType(name="Flight")
    pilot: str  # a required field: old records do not have it


old, new, strict = (EventBus(URL, client_id=name, serde=Avro("log")) for name in ("old", "new", "strict"))
seen: list[Flight | NewFlight] = []


@old.consumer("flights", group="board")
async def board(flight: Flight) -> None:
    seen.append(flight)


@new.producer("flights")
async def take_off(carrier: str, number: int, gate: str) -> NewFlight:
    return NewFlight(carrier, number, gate)


@new.consumer("flights", group="gates")
async def gates(flight: NewFlight) -> None:
    seen.append(flight)


@strict.producer("flights")
async def take_off_with(pilot: str) -> StrictFlight:
    return StrictFlight("LH", 3, pilot=pilot)


async def main() -> None:
    airport = EventBus(URL)
    airport.topic("flights", partitions=1, temporary=True)
    async with airport, old:
        await old.send("flights", Flight("AA", 1))
        async with new:
            await take_off("BA", 2, "B7")
            await old.drain()
            await new.drain()
        print(*sorted(map(str, seen)), sep="\n")
        assert [sum(type(flight) is kind for flight in seen) for kind in (Flight, NewFlight)] == [2, 2]
        try:
            async with strict:
                raise AssertionError("it may start")
        except ConfigError as error:
            print(error)


if __name__ == "__main__":
    anyio.run(main)

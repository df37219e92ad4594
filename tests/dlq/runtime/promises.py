"""Promises about failing records, each a function of a log and the form of a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import anyio

from tests.dlq.runtime.logs import Log
from tests.dlq.runtime.shapes import IN_ORDER, Shape

Keep = Callable[[Log, Shape], Awaitable[None]]

PROMISES: list[Promise] = []


class Promise(NamedTuple):
    name: str
    keep: Keep
    shape: Shape
    on_kafka: bool
    """Also check it on Apache Kafka, in real time."""

    def __repr__(self) -> str:
        return self.name

    def check(self, log: Log) -> None:
        async def check() -> None:
            async with log.opened():
                await self.keep(log, self.shape)

        anyio.run(check)


def promise(
    shapes: Iterable[Shape] = (IN_ORDER,), *, on_kafka: Iterable[Shape] | None = None
) -> Callable[[Keep], Keep]:
    """Register a promise for these forms. ``on_kafka`` limits the forms that are checked there."""
    given = tuple(shapes)
    there = given if on_kafka is None else tuple(on_kafka)

    def add(keep: Keep) -> Keep:
        for shape in given:
            name = keep.__name__ if given == (IN_ORDER,) else f"{keep.__name__} ({shape})"
            PROMISES.append(Promise(name, keep, shape, shape in there))
        return keep

    return add

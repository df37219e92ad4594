"""A generator that a function returns is closed with the call, also if an output is refused in the middle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from eventbus import EventBus
from eventbus.errors import RecordTooLarge

TOO_LARGE = b"x" * 2_000_000
OPTIONS = [{}, {"order": "key", "concurrency": 2}, {"exactly_once": True}]


def generator_function(ends: list[str], *, is_async: bool) -> Callable[[str], Any]:
    async def async_outputs(value: str) -> AsyncIterator[bytes]:
        try:
            yield b"small"
            yield TOO_LARGE
        finally:
            await anyio.lowlevel.checkpoint()
            ends.append(value)

    def outputs(value: str) -> Iterator[bytes]:
        try:
            yield b"small"
            yield TOO_LARGE
        finally:
            ends.append(value)

    return async_outputs if is_async else outputs


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_generator_of_a_handler_is_closed(backend: str, options: dict[str, Any]) -> None:
    ends: list[str] = []
    bus = EventBus("memory://")
    bus.topic("in", partitions=1)
    bus.topic("out")
    handle = bus.producer("out")(generator_function(ends, is_async=True))
    bus.consumer("in", group="g", on_error="skip", **options)(handle)

    async def run() -> None:
        async with bus:
            await bus.send_many("in", ["a", "b"])
            await bus.drain()
            assert sorted(set(ends)) == ["a", "b"]  # order "key" calls both at once

    anyio.run(run, backend=backend)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_generator_of_a_producer_function_is_closed(backend: str, is_async: bool) -> None:
    ends: list[str] = []
    bus = EventBus("memory://")
    bus.topic("out")
    publish = bus.producer("out")(generator_function(ends, is_async=is_async))

    async def run() -> None:
        async with bus:
            with pytest.raises(RecordTooLarge) as caught:
                await publish("a")
            assert caught.traceback  # refers to the frames, so that no garbage collection closes the generator
            assert ends == ["a"]

    anyio.run(run, backend=backend)

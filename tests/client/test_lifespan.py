"""Startup and shutdown of a bus, alone and inside a web application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from eventbus import EventBus, ProducerInterceptor, ProducerRecord
from eventbus.errors import ConfigError

pytestmark = pytest.mark.system


def telling(story: list[Any]) -> EventBus:
    """Return a bus whose handler records what it gets."""
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t", group="g")
    async def handle(value: str) -> None:
        story.append(value)

    return bus


async def test_in_their_order_around_the_handlers() -> None:
    story: list[Any] = []
    bus = telling(story)

    @bus.on_startup
    async def first(bus: EventBus) -> None:
        story.append("first")
        await bus.send("t", "sent at the start")

    @bus.on_startup
    async def pool() -> AsyncIterator[None]:
        story.append("opened")
        yield
        story.append("closed")

    @bus.on_startup
    def plain() -> Iterator[None]:
        story.append("plain")
        yield
        story.append("plain closed")

    @bus.on_shutdown
    def goodbye() -> None:
        story.append("goodbye")

    @bus.on_shutdown
    async def last(bus: EventBus) -> None:
        story.append("last")
        await bus.send("t", "sent at the end")

    async with bus:
        assert story == ["first", "opened", "plain"]
        await bus.drain()
    begin, end = ["first", "opened", "plain"], ["goodbye", "last", "plain closed", "closed"]
    assert story == [*begin, "sent at the start", *end]
    assert first.__name__ == "first"  # the decorator gives it back
    async with bus:
        await bus.drain()
    assert story[8:] == [*begin, "sent at the start", *end]  # memory:// begins anew


def traced(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


async def test_decorated_generators_run_to_their_yield_and_after_it() -> None:
    story: list[Any] = []
    bus = telling(story)

    async def stream(bus: EventBus) -> AsyncIterator[None]:
        story.append(f"opened with {type(bus).__name__}")
        yield
        story.append("closed")

    def plain() -> Iterator[None]:
        story.append("plain")
        yield
        story.append("plain closed")

    for decorate in (asynccontextmanager, traced):
        bus.on_startup(decorate(stream))
    for decorate in (contextmanager, traced):
        bus.on_startup(decorate(plain))
    async with bus:
        assert story == ["opened with EventBus"] * 2 + ["plain"] * 2
    assert story[4:] == ["plain closed"] * 2 + ["closed"] * 2
    with pytest.raises(ConfigError, match="leave out the parentheses"):
        bus.on_startup(asynccontextmanager(stream)(bus))
    for function in (asynccontextmanager(stream), traced(plain)):
        with pytest.raises(ConfigError, match="yields: decorate it with"):
            bus.on_shutdown(function)


async def test_what_a_start_raises_ends_it_and_closes_what_was_open() -> None:
    story: list[Any] = []
    bus = telling(story)

    @bus.on_startup
    async def pool() -> AsyncIterator[None]:
        try:
            yield
        finally:
            story.append("closed")

    @bus.on_startup
    def broken() -> None:
        raise OSError("no database")

    @bus.on_shutdown
    def goodbye() -> None:
        story.append("goodbye")

    with pytest.raises(OSError, match="no database"):
        await bus.start()
    assert story == ["closed"]
    assert not bus.is_running


async def test_what_an_end_raises_comes_when_all_is_closed() -> None:
    story: list[Any] = []
    bus = telling(story)

    @bus.on_shutdown
    def broken() -> None:
        raise OSError("no")

    @bus.on_shutdown
    def goodbye() -> None:
        story.append("goodbye")

    with pytest.raises(OSError, match="no"):
        async with bus:
            pass
    assert story == ["goodbye"]
    assert not bus.is_running


async def test_an_end_that_hangs_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus("memory://", drain_timeout_ms=20)

    @bus.on_shutdown
    async def hanging() -> None:
        await anyio.sleep_forever()

    with caplog.at_level(logging.WARNING, "eventbus.bus_run"):
        async with bus:
            pass
    assert "on_shutdown: not through after 0.02 s (drain_timeout_ms)" in caplog.text


async def test_mistakes_are_told_at_decoration() -> None:
    bus = EventBus("memory://")

    def two(a: int, b: int) -> None: ...

    def stream() -> Iterator[None]:
        yield

    mistakes: list[tuple[Callable[[Any], Any], Any, str]] = [
        (bus.on_startup, two, r"@bus.on_startup two: it is called without arguments, or with the bus alone"),
        (bus.on_startup, None, r"without parentheses"),
        (bus.on_shutdown, stream, r"decorate it with @bus.on_startup, and the code after the yield"),
    ]
    for decorate, function, says in mistakes:
        with pytest.raises(ConfigError, match=says):
            decorate(function)
    async with bus:
        with pytest.raises(ConfigError, match="declare it before the bus starts"):
            bus.on_startup(print)


# inside a web application ---------------------------------------------------------------------------------------------


def test_bus_lives_as_long_as_a_fastapi_application() -> None:
    story: list[Any] = []
    bus = telling(story)
    app = FastAPI(lifespan=bus.lifespan)

    @app.post("/orders/{name}")
    async def order(name: str) -> dict[str, int]:
        metadata = await bus.send("t", name)
        await bus.drain()
        return {"offset": metadata.offset}

    with TestClient(app) as client:
        assert client.post("/orders/a").json() == {"offset": 0}
        assert client.post("/orders/b").json() == {"offset": 1}
        assert bus.is_running
    assert story == ["a", "b"]
    assert not bus.is_running


def test_several_buses_in_a_lifespan_of_ones_own() -> None:
    first: list[Any] = []
    second: list[Any] = []
    buses = [telling(first), telling(second)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with buses[0], buses[1]:
            yield

    async def send(request: Request) -> JSONResponse:
        for bus in buses:
            await bus.send("t", "both")
            await bus.drain()
        return JSONResponse({})

    with TestClient(Starlette(routes=[Route("/", send)], lifespan=lifespan)) as client:
        assert client.get("/").status_code == 200
    assert first == second == ["both"]


async def test_what_surrounds_goes_around_all_in_the_order_it_was_included() -> None:
    story: list[str] = []

    class Around:
        """A part that is not started: it only has middleware and interceptors."""

        def __init__(self, name: str) -> None:
            self.name = name
            self.middleware = [self.handled]
            self.interceptors = [Sends(name)]

        async def handled(self, record: Any, call_next: Any) -> Any:
            story.append(f"{self.name} handles")
            return await call_next(record)

    class Sends(ProducerInterceptor):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            story.append(f"{self.name} sends")
            return record

    own = Around("the bus")
    bus = EventBus("memory://", middleware=own.middleware, interceptors=own.interceptors)
    bus.topic("t")
    bus.include(Around("first"), Around("second"))

    @bus.consumer("t", group="g")
    async def handle(value: str) -> None:
        story.append(value)

    for _ in range(2):  # read at each start
        async with bus:
            await bus.send("t", "x")
            await bus.drain()
        assert story == [
            *("first sends", "second sends", "the bus sends"),
            *("first handles", "second handles", "the bus handles", "x"),
        ]
        story.clear()


async def test_a_middleware_of_what_surrounds_that_is_none_ends_the_start() -> None:
    class Around:
        middleware = (print,)
        interceptors = ()

        def __repr__(self) -> str:
            return "<Around>"

    bus = EventBus("memory://")
    bus.include(Around())
    with pytest.raises(ConfigError, match="<Around>: middleware 'print' is a plain function"):
        await bus.start()
    assert not bus.is_running

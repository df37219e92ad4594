"""The ASGI app over a real bus: by itself, mounted, and asked from another thread."""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.telemetry.prometheus import CONTENT_TYPE
from eventbus.testing import FakeClock
from eventbus.web import health_app
from eventbus.web.app import App


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def get(app: App, path: str, method: str = "GET", **scope: Any) -> Got:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": [], **scope}, receive, send)
    head, body = sent
    return Got(head["status"], {name.decode(): value.decode() for name, value in head["headers"]}, body["body"])


async def statuses(app: App) -> list[int]:
    return [(await get(app, f"/health/{probe}")).status for probe in ("live", "ready", "startup")]


def with_handler(bus: EventBus) -> EventBus:
    bus.topic("orders")

    @bus.consumer("orders", group="billing")
    async def bill(order: str) -> None:
        if order == "bad":
            raise ValueError("no such customer")

    return bus


async def test_a_bus_is_asked_through_its_life() -> None:
    bus = with_handler(EventBus("memory://"))
    app = health_app(bus)
    while_starting: list[int] = []
    while_closing: list[int] = []

    @bus.on_startup
    async def look() -> None:
        while_starting.extend(await statuses(app))

    @bus.on_shutdown
    async def look_again() -> None:
        while_closing.extend(await statuses(app))

    assert await statuses(app) == [503, 503, 503]
    async with bus:
        await bus.send("orders", "one")
        await bus.drain()
        assert await statuses(app) == [200, 200, 200]
        said = (await get(app, "/health/ready")).json
        assert said["probe"] == "ready" and said["passed"] and said["status"] == "ok"
        assert [(one["handler"], one["group"]) for one in said["handlers"]] == [("bill", "billing")]
    assert while_starting == [200, 503, 503]
    assert while_closing == [200, 503, 200]
    assert await statuses(app) == [503, 503, 503]


async def test_a_stopped_handler_fails_live_with_its_reason() -> None:
    bus = with_handler(EventBus("memory://"))
    async with bus:
        await bus.send("orders", "bad")
        with pytest.raises(Exception, match="no such customer"):
            await bus.drain()
        live = await get(health_app(bus), "/health/live")
        assert live.status == 503 and live.json["status"] == "failed"
        [handler] = live.json["handlers"]
        assert handler["status"] == "stopped" and "no such customer" in handler["reason"]


async def test_metrics_are_prometheuss_text() -> None:
    bus = with_handler(EventBus("memory://"))
    app = health_app(bus)
    stopped = await get(app, "/metrics")
    assert (stopped.status, stopped.body) == (200, b"")
    async with bus:
        await bus.send("orders", "one")
        await bus.drain()
        got = await get(app, "/metrics")
    assert (got.status, got.headers["content-type"]) == (200, CONTENT_TYPE)
    assert 'eventbus_topic_records{topic="orders"} 1' in got.body.decode().splitlines()


async def test_what_is_not_there_and_what_is_not_taken() -> None:
    app = health_app(EventBus("memory://"))
    missing = await get(app, "/health")
    assert missing.status == 404
    assert missing.json["error"].startswith("there is no /health here; there are /health/live")
    for path in ("/health/live", "/metrics"):
        posted = await get(app, path, "POST")
        assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/nothing"])
async def test_head_has_the_headers_of_get_and_no_body(path: str) -> None:
    async with with_handler(EventBus("memory://", slow_loop_ms=None)) as bus:
        app = health_app(bus)
        await bus.drain()
        whole, head = await get(app, path), await get(app, path, "HEAD")
    assert head.body == b"" and whole.body
    assert head.status == whole.status and head.headers.keys() == whole.headers.keys()
    assert int(whole.headers["content-length"]) == len(whole.body)


@pytest.mark.parametrize(
    ("path", "root_path"),
    [("/bus/health/startup", "/bus"), ("/health/startup", "/bus"), ("/bus/health/startup/", "/bus/"),
     ("/health/startup", "")],
)  # fmt: skip
async def test_it_may_be_mounted(path: str, root_path: str) -> None:
    """Starlette leaves the prefix in the path, others take it away."""
    async with EventBus("memory://") as bus:
        assert (await get(health_app(bus), path, root_path=root_path)).status == 200


@pytest.mark.system
async def test_fastapi_mounts_it() -> None:
    fastapi = pytest.importorskip("fastapi", reason="needs fastapi, which is no base dependency")
    async with EventBus("memory://") as bus:
        app = fastapi.FastAPI()
        app.mount("/bus", health_app(bus))
        got = await get(app, "/bus/health/ready", query_string=b"", http_version="1.1", scheme="http", server=None)
        assert (got.status, got.json["probe"]) == (200, "ready")


async def test_the_other_kinds_of_scope_are_answered() -> None:
    app = health_app(EventBus("memory://"))
    sent: list[str] = []
    asked = iter(["lifespan.startup", "lifespan.shutdown", "websocket.connect"])

    async def receive() -> MutableMapping[str, Any]:
        return {"type": next(asked)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket", "path": "/"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def in_trio(ask: Callable[[], Any]) -> Any:
    return anyio.run(ask, backend="trio")


async def test_it_answers_in_another_loop_of_another_kind() -> None:
    """A web server in a thread, under trio at that: what is of the bus is asked in the bus's loop."""
    async with with_handler(EventBus("memory://")) as bus:
        await bus.drain()
        app = health_app(bus)

        async def ask() -> list[int]:
            return [*(await statuses(app)), (await get(app, "/metrics")).status]

        assert await anyio.to_thread.run_sync(in_trio, ask) == [200, 200, 200, 200]


def test_a_bus_under_trio_is_asked() -> None:
    async def main() -> None:
        async with with_handler(EventBus("memory://")) as bus:
            await bus.drain()
            assert await statuses(health_app(bus)) == [200, 200, 200]

    anyio.run(main, backend="trio")


@pytest.mark.system
async def test_a_log_that_does_not_answer_does_not_hold_a_probe_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes waits for a second. The last that was heard counts, until nothing was heard for too long."""
    clock = FakeClock()
    async with with_handler(EventBus("memory://", clock=clock)) as bus:
        await bus.drain()
        app = health_app(bus)
        assert await statuses(app) == [200, 200, 200]
        answers = anyio.Event()
        ask = bus.health

        async def late() -> Any:
            await answers.wait()
            return await ask()

        monkeypatch.setattr(bus, "health", late)
        ready = await get(app, "/health/ready")
        assert ready.status == 200 and "the bus has not answered for" in ready.json["reason"]
        bus.context.wedged_after_ms = 1
        assert (await get(app, "/health/live")).status == 503
        answers.set()
        assert await statuses(app) == [200, 200, 200]

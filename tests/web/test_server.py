"""The server of its own: in a thread, before the bus starts, beside a blocked loop, until all is drained."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError
from eventbus.web import HealthServer

pytest.importorskip("uvicorn", reason="needs uvicorn, which is no base dependency")

pytestmark = pytest.mark.system


def asked(server: HealthServer, path: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    request = Request(server.url + path, method=method)
    try:
        with urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def status(server: HealthServer, probe: str) -> int:
    return asked(server, f"/health/{probe}")[0]


async def in_thread(server: HealthServer, probe: str) -> int:
    return await anyio.to_thread.run_sync(status, server, probe)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_part_of_a_bus_serves_while_it_runs(backend: str) -> None:
    server = HealthServer(port=0)
    bus = EventBus("memory://")
    bus.include(server)
    closing: list[int] = []

    @bus.on_shutdown
    async def look() -> None:
        closing.append(await in_thread(server, "ready"))

    async def main() -> None:
        for _ in range(2):  # it may be started again
            async with bus:
                assert await in_thread(server, "ready") == 200

    anyio.run(main, backend=backend)
    assert closing == [503, 503]
    with pytest.raises(OSError):
        socket.create_connection((server.host, server.port), timeout=1)


def test_around_a_bus_it_says_starting_and_closing() -> None:
    """Opening a log blocks the event loop: the answers come from another thread."""
    server = HealthServer(port=0)
    bus = EventBus("memory://")
    seen: dict[str, tuple[int, int]] = {}

    @bus.on_startup
    def recovery() -> None:  # it does not yield to the loop
        seen["starting"] = status(server, "live"), status(server, "startup")

    @bus.on_shutdown
    def last() -> None:
        seen["closing"] = status(server, "live"), status(server, "ready")

    async def main() -> None:
        async with bus:
            seen["running"] = await in_thread(server, "live"), await in_thread(server, "ready")

    with server.around(bus):
        seen["before"] = status(server, "live"), status(server, "startup")
        anyio.run(main)
        seen["after"] = status(server, "live"), status(server, "ready")
    assert seen == {"before": (200, 503), "starting": (200, 503), "running": (200, 200), "closing": (200, 503),
                    "after": (503, 503)}  # fmt: skip


def test_a_blocked_event_loop_is_told_of() -> None:
    server = HealthServer(port=0)
    bus = EventBus("memory://", slow_loop_ms=None)
    bus.context.wedged_after_ms = 1

    async def main() -> Any:
        async with bus:
            assert await in_thread(server, "live") == 200
            return asked(server, "/health/live")  # in the loop's own thread: it is blocked by this very question

    with server.around(bus):
        code, body, _ = anyio.run(main)
    assert code == 503
    assert "its event loop is blocked" in json.loads(body)["reason"]


def test_http_as_it_should_be() -> None:
    server = HealthServer(port=0)
    with server.around(EventBus("memory://")):
        code, body, headers = asked(server, "/metrics", "HEAD")
        assert (code, body) == (200, b"") and headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "date" in {name.lower() for name in headers}
        assert asked(server, "/nothing")[0] == 404
        assert asked(server, "/metrics", "DELETE")[0] == 405


def test_a_port_in_use_and_one_that_is_none() -> None:
    bus = EventBus("memory://")
    with HealthServer(port=0).around(bus) as first:
        with pytest.raises(ConfigError, match=f"port {first.port} of 127.0.0.1 is in use"):
            HealthServer(port=first.port).open(None)  # pyright: ignore[reportArgumentType] - it is not asked
        with pytest.raises(ConfigError, match="listens already"):
            first.open(None)  # pyright: ignore[reportArgumentType] - it is not asked
    with pytest.raises(ConfigError, match="ports end at 65535"):
        HealthServer(port=65_536)


async def test_a_port_in_use_ends_the_start_of_the_bus() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bus = EventBus("memory://")
        bus.include(HealthServer(port=taken.getsockname()[1]))
        with pytest.raises(ConfigError, match="is in use, by another service perhaps"):
            await bus.start()
    assert not bus.is_running


def test_without_uvicorn_the_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "eventbus-log\[web\]"'):
        HealthServer(port=0).open(None)  # pyright: ignore[reportArgumentType] - it is not asked


def test_no_thread_stays() -> None:
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    with HealthServer(port=0).around(EventBus("memory://")):
        assert len(set(threading.enumerate()) - before) == 1
    assert set(threading.enumerate()) <= before

"""The schema registry: over HTTP beside the same routes in plain Starlette and beside bare ASGI, and in the process.

Every server is a process of its own on one core with the same uvicorn underneath; the client is on another core. Rates
"cpu" are requests per second of the server's CPU time, which another program on the machine hardly moves.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from harness import Figure, Meter, Numbers, case, resident_bytes, scratch

SCHEMAS = 1_000
CONNECTIONS = 100
_TICKS = os.sysconf("SC_CLK_TCK")


def schema_text(number: int, fields: int = 20) -> str:
    """A record of 20 fields that no other number has."""
    shape = [{"name": f"field_{place}", "type": ["null", "string"], "default": None} for place in range(fields)]
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "doc": f"v{number}", "fields": shape})


# -- servers, each in a process of its own: python bench_registry.py WHAT FOLDER PORT-FILE ----------------------------


async def serve(what: str, folder: str, told: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with APPS[what](folder) as app:
        from schema_registry.http import HttpServer

        async with HttpServer(app, port=0) as server:
            Path(told).write_text(str(server.port), "ascii")
            await stop.wait()


@asynccontextmanager
async def ours(folder: str, schemas: int = SCHEMAS) -> AsyncGenerator[Any]:
    from eventbus import EventBus
    from schema_registry import Registry
    from schema_registry.entities import SchemaRequest
    from schema_registry.http import create_app

    async with EventBus(f"file://{folder}", fsync="commit") as bus, Registry(bus) as registry:
        for number in range(schemas):
            await registry.register(f"subject-{number}", SchemaRequest(schema=schema_text(number)))
        yield create_app(registry)


class Served:
    """What `HttpServer` wants of an app."""

    asks_who = False

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


@asynccontextmanager
async def plain(folder: str) -> AsyncGenerator[Any]:
    """The same routes as anybody would write them: a dictionary, Starlette, json."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from schema_registry.http.endpoints import ENDPOINTS

    found = {number + 1: {"guid": "0" * 36, "schema": schema_text(number)} for number in range(SCHEMAS)}

    class Answer(JSONResponse):
        media_type = "application/vnd.schemaregistry.v1+json"

    async def by_id(request: Request) -> Response:
        schema = found.get(int(request.path_params["id"]))
        if schema is None:
            return Answer({"error_code": 40403, "message": "Schema not found"}, 404)
        return Answer(schema)

    async def other(request: Request) -> Response:
        return Answer({})

    routes = [
        Route(each.path, by_id if each.path == "/schemas/ids/{id}" else other, methods=[each.method])
        for each in ENDPOINTS
    ]
    yield Served(Starlette(routes=routes))


@asynccontextmanager
async def bare(folder: str) -> AsyncGenerator[Any]:
    """One answer to everything: what the server underneath can do."""
    body = json.dumps({"guid": "0" * 36, "schema": schema_text(0)}).encode()
    headers = [(b"content-type", b"application/vnd.schemaregistry.v1+json"), (b"content-length", b"%d" % len(body))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    yield Served(app)


@asynccontextmanager
async def empty(folder: str) -> AsyncGenerator[Any]:
    async with ours(folder, 0) as app:
        yield app


APPS: dict[str, Callable[[str], Any]] = {"ours": ours, "plain": plain, "bare": bare, "empty": empty}


class Running:
    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def running(what: str) -> Iterator[Running]:
    with scratch() as folder:
        told = folder / "port"
        process = subprocess.Popen([sys.executable, __file__, what, str(folder / "log"), str(told)])
        try:
            while not told.exists() or not told.read_text("ascii"):
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with {process.returncode}")
                time.sleep(0.01)  # until it listens; not measured
            if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
                os.sched_setaffinity(process.pid, {0})
                os.sched_setaffinity(0, {1})
            yield Running(int(told.read_text("ascii")), process.pid)
        finally:
            process.terminate()
            process.wait(30)


# -- the client --------------------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """Asks the next request as soon as the last one is answered."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.ask()

    def ask(self) -> None:
        request = self._load.next()
        if request is None:
            self._load.end()
            self._transport.close()
            return
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._data.index(b"content-length: ") + 16
        if len(self._data) < end + 4 + int(self._data[at : self._data.index(b"\r", at)]):
            return
        if not self._data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(self._data.decode())
        self._data = b""
        self._load.took.append(time.perf_counter() - self._began)
        self.ask()


class Load:
    """``n`` requests over some connections."""

    def __init__(self, n: int, make: Callable[[int], bytes]) -> None:
        self._numbers = iter(range(n))
        self._make = make
        self._open = 0
        self.took: list[float] = []
        self._done = asyncio.Event()

    def next(self) -> bytes | None:
        number = next(self._numbers, None)
        return None if number is None else self._make(number)

    def end(self) -> None:
        self._open -= 1
        if not self._open:
            self._done.set()

    async def run(self, port: int, connections: int) -> None:
        self._open = connections
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            await loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
        await self._done.wait()


def loaded(server: Running, n: int, make: Callable[[int], bytes], connections: int = CONNECTIONS) -> Numbers:
    """Rates by wall and by the server's CPU time, and the 99th percentile in ms."""

    async def main() -> Numbers:
        await Load(max(n // 10, connections), lambda number: make(-1 - number)).run(server.port, connections)  # warm-up
        load = Load(n, make)
        cpu, wall = server.cpu_s(), time.perf_counter()
        await load.run(server.port, connections)
        wall, cpu = time.perf_counter() - wall, server.cpu_s() - cpu
        slowest = sorted(load.took)[int(0.99 * n)]
        return {"rate": n / wall, "rate cpu": n / max(cpu, 1 / _TICKS), "p99": 1000 * slowest}

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main())


def loop_factory() -> Any:
    from eventbus.cli.serve import loop_factory

    return loop_factory()


HEADERS = "Host: registry\r\nAccept: application/vnd.schemaregistry.v1+json\r\nUser-Agent: bench\r\n"


def get(number: int) -> bytes:
    return f"GET /schemas/ids/{number % SCHEMAS + 1} HTTP/1.1\r\n{HEADERS}\r\n".encode()


def post(path: str, text: str) -> bytes:
    body = json.dumps({"schema": text})
    kind = "Content-Type: application/vnd.schemaregistry.v1+json"
    return f"POST {path} HTTP/1.1\r\n{HEADERS}{kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


# -- cases -------------------------------------------------------------------------------------------------------------


@case("registry get", n=40_000, quick=2_000)
def registry_get(n: int) -> Numbers:
    with running("ours") as server:
        few = loaded(server, n, get, 8)
        return loaded(server, n, get) | {f"{name} of 8": value for name, value in few.items()}


@case("plain get", n=20_000, quick=2_000)
def plain_get(n: int) -> Numbers:
    with running("plain") as server:
        return loaded(server, n, get)


@case("bare get", n=40_000, quick=2_000)
def bare_get(n: int) -> Numbers:
    with running("bare") as server:
        return loaded(server, n, get, 8)


@case("registry register", n=5_000, quick=500)
def registry_register(n: int) -> Numbers:
    """New versions of 500 subjects with a compatibility check each, flushed before they are answered."""
    with running("empty") as server:
        numbers = count()
        return loaded(server, n, lambda _: _register(next(numbers)))


def _register(number: int) -> bytes:
    return post(f"/subjects/subject-{number % 500}/versions", schema_text(number))


@case("registry again", n=20_000, quick=1_000)
def registry_again(n: int) -> Numbers:
    with running("ours") as server:
        requests = [post(f"/subjects/subject-{number}/versions", schema_text(number)) for number in range(SCHEMAS)]
        return loaded(server, n, lambda number: requests[number % SCHEMAS])


@case("registry embedded", n=200_000, quick=20_000)
def registry_embedded(n: int) -> Numbers:
    from eventbus import EventBus
    from schema_registry import Registry
    from schema_registry.entities import SchemaRequest

    async def main() -> Numbers:
        async with EventBus("memory://") as bus, Registry(bus) as registry:
            for number in range(100):
                await registry.register(f"s{number}", SchemaRequest(schema=schema_text(number)))
            client = registry.client()
            with Meter() as by_id:
                for number in range(n):
                    registry.schema_by_id(number % 100 + 1)
            with Meter() as known:
                for number in range(n):
                    client.known(number % 100 + 1)
            return {"by id": 1e6 * by_id.cpu_s / n, "known": 1e6 * known.cpu_s / n}

    return asyncio.run(main())


@case("registry cold", n=10_000, quick=500, rounds=3)
def registry_cold(n: int) -> Numbers:
    """From nothing to an answer, on a log of so many schemas, in a process of its own."""
    with scratch() as folder:
        asyncio.run(_fill(str(folder / "log"), n))
        command = [sys.executable, __file__, "cold", str(folder / "log"), str(n)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def _fill(folder: str, n: int) -> None:
    from eventbus import EventBus
    from schema_registry import Registry
    from schema_registry.entities import SchemaRequest

    async with EventBus(f"file://{folder}") as bus, Registry(bus) as registry:
        for start in range(0, n, 500):
            await asyncio.gather(
                *(registry.register(f"subject-{number}", SchemaRequest(schema=schema_text(number)))
                  for number in range(start, min(start + 500, n)))
            )  # fmt: skip


async def _cold(folder: str, n: int) -> Numbers:
    from eventbus import EventBus
    from schema_registry import Registry

    began = time.perf_counter()
    async with EventBus(f"file://{folder}") as bus:
        opened = time.perf_counter()
        async with Registry(bus) as registry:
            assert registry.schema_by_id(n).schema
            return {
                "start": time.perf_counter() - opened,
                "all": time.perf_counter() - began,
                "memory": resident_bytes() / 2**20,
            }


REGISTRY_FIGURES = [
    Figure("R0", "GET by id / plain Starlette + json", "registry get:rate cpu", "plain get:rate cpu", 1, 1.5),
    Figure("R0a", "GET by id, 100 connections, one core", "registry get:rate", None, None, 10_000),
    Figure("R0b", "its 99th percentile", "registry get:p99", None, None, 30, True, "ms"),
    Figure("R1", "GET by id, 8 connections / bare ASGI", "registry get:rate cpu of 8", "bare get:rate cpu", 0.4, 0.7),
    Figure("R3", "a new schema / GET by id", "registry register:rate cpu", "registry get:rate cpu", 0.05, 0.1),
    Figure("R3a", "new schemas, 100 writers, flushed", "registry register:rate", None, None, 1_000),
    Figure("R3b", "the same schemas again, one core", "registry again:rate cpu", None, None, 4_000),
    Figure("R4", "a call in the process", "registry embedded:by id", None, None, 2, True, "us"),
    Figure("R4a", "a client's look at what it knows", "registry embedded:known", None, None, 2, True, "us"),
    Figure("R5", "start on 10,000 schemas", "registry cold:start", None, None, 2, True, "s"),
    Figure("R5a", "memory with 10,000 schemas", "registry cold:memory", None, None, 120, True, "MiB"),
]  # fmt: skip


if __name__ == "__main__":
    what, folder, last = sys.argv[1:]
    if what == "cold":
        print(json.dumps(asyncio.run(_cold(folder, int(last)))))
    else:
        with asyncio.Runner(loop_factory=loop_factory()) as main_runner:
            main_runner.run(serve(what, folder, last))

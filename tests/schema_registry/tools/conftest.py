"""``eventbus schema ...`` in this process, on the registry of a log and on one behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.from_thread
import pytest

from eventbus import EventBus
from schema_registry.http.app import create_app
from schema_registry.http.server import HttpServer
from tests.cli.conftest import Cli, Result, cli, spawn
from tests.tiers import quick

__all__ = ["cli", "spawn"]

ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}'
ORDER_2 = """{"type": "record", "name": "Order", "fields": [
  {"name": "id", "type": "string"},
  {"name": "note", "type": ["null", "string"], "default": null}
]}"""
ORDER_BROKEN = """{"type": "record", "name": "Order", "fields": [
  {"name": "id", "type": "string"},
  {"name": "amount", "type": "double"}
]}"""

Schema = Callable[..., Result]


@asynccontextmanager
async def serving() -> AsyncGenerator[str]:
    async with EventBus("memory://") as bus:
        app = create_app(bus)
        await app.start()
        try:
            async with HttpServer(app, port=0) as server:
                yield server.url
        finally:
            await app.aclose()


@pytest.fixture
def served() -> Iterator[str]:
    """The URL of a registry behind HTTP, empty."""
    with anyio.from_thread.start_blocking_portal() as portal, portal.wrap_async_context_manager(serving()) as url:
        yield url


@pytest.fixture(params=quick(["http", "log"], 1))
def where(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return the options that select a registry: both answer alike, and more can go wrong between a client and HTTP."""
    if request.param == "log":
        return ("--url", "file://./data")
    return ("--registry", request.getfixturevalue("served"))


@pytest.fixture
def schema(cli: Cli, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Schema:
    """``schema("list")`` runs ``eventbus schema list`` in a folder of its own that has three versions of an order."""
    monkeypatch.delenv("EVENTBUS_REGISTRY", raising=False)
    for name, text in (("order", ORDER), ("order2", ORDER_2), ("broken", ORDER_BROKEN)):
        Path(f"{name}.avsc").write_text(text, "utf-8")

    def run(*args: str, stdin: bytes = b"") -> Result:
        return cli("schema", *args, *where, stdin=stdin)

    return run


@pytest.fixture
def orders(schema: Schema) -> Schema:
    """With two versions of ``orders-value``, ids 1 and 2."""
    for number, name in enumerate(("order", "order2"), 1):
        result = schema("register", "orders-value", f"{name}.avsc")
        assert (result.code, result.out) == (0, f"orders-value version {number}, id {number}\n"), result.err
    return schema

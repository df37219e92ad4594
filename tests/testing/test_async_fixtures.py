"""A bus that an async fixture starts: pytest-asyncio sets it up in one task and tears it down in another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.test_plugin import run_pytest
from tests.tiers import quick

pytestmark = pytest.mark.system

TESTS = """
import pytest
from eventbus import EventBus
from eventbus.testing import TestBus, in_memory

app = EventBus("file:///nowhere")

@app.consumer("orders", group="billing")
@app.producer("bills")
async def bill(order: int) -> int:
    return -order

@pytest.fixture
async def log():
    async with in_memory(app) as log:
        yield log

@pytest.fixture
async def running(bus):
    async with bus:
        yield bus

@pytest.mark.anyio
@pytest.mark.parametrize("again", [1, 2])
async def test_an_application(log, again):
    await app.send("orders", again)
    await log.drain()
    log.assert_published("bills", -again)

@pytest.mark.anyio
async def test_two_buses(running, log, clock):
    await running.send("t", "x")
    await app.send("orders", 1)
    await log.drain()
    await clock.advance(seconds=1)
    running.log.assert_published("t", "x")
"""


@pytest.mark.parametrize("mode", quick(["auto", "anyio"], ["anyio"]))  # the next test is of the other one
def test_fixtures_may_start_buses(tmp_path: Path, mode: str) -> None:
    if mode == "auto":
        result = run_pytest(tmp_path, TESTS, "-p", "no:anyio", config="asyncio_mode = auto\nmarkers = anyio\n")
    else:
        backends = "@pytest.fixture(params=['asyncio', 'trio'])\ndef anyio_backend(request): return request.param\n"
        config = "addopts = -W ignore::pytest.PytestConfigWarning\n"
        result = run_pytest(tmp_path, TESTS + backends, "-p", "no:asyncio", config=config)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{3 if mode == 'auto' else 6} passed" in result.stdout


def test_what_goes_wrong_with_such_a_bus_is_said(tmp_path: Path) -> None:
    """Its handler ends it, or it does not start at all, or it is a bus that the kit knows nothing of."""
    source = """
import pytest
from eventbus import EventBus
from eventbus.testing import in_memory

@pytest.fixture
async def crashing(bus):
    @bus.consumer("t", group="g", on_error="crash")
    async def handle(value: str) -> None:
        raise ValueError("no good")
    async with bus:
        yield bus

async def test_it_crashes(crashing):
    await crashing.send("t", "x")
    await crashing.clock.settle()

@pytest.fixture
async def refused():
    bus = EventBus("memory://")
    for _ in range(2):
        @bus.consumer("t", group="g")
        async def handle(value: str) -> None: ...
    async with in_memory(bus) as log:
        yield log

async def test_it_does_not_start(refused): ...

@pytest.fixture
async def unknown():
    async with EventBus("memory://") as bus:
        yield bus

async def test_it_is_no_test_bus(unknown): ...
"""
    result = run_pytest(tmp_path, source, "-p", "no:anyio", config="asyncio_mode = auto\n")
    assert "1 failed" not in result.stdout and "2 passed, 3 errors" in result.stdout, result.stdout
    for said in ("no good", "both read 't'", "use eventbus.testing.in_memory(bus)"):
        assert said in result.stdout, said

"""The fixtures, as a project of its own sees them: pytest finds the plugin by its entry point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

TESTS = """
import anyio, pytest
from eventbus.testing import FakeClock, TestBus

{marks}

{mark}
async def test_time_is_the_tests(bus, clock):
    assert isinstance(bus, TestBus) and isinstance(clock, FakeClock) and bus.clock is clock
    assert not bus.is_running
    handled = []
    bus.topic("jobs")

    @bus.consumer("jobs", group="workers")
    async def work(name: str) -> None:
        await clock.sleep(60)
        handled.append(name)

    async with bus:
        await bus.send("jobs", "a")
        await clock.advance(seconds=59)
        assert handled == []
        await clock.advance(seconds=1)
        assert handled == ["a"]

{mark}
async def test_each_test_has_a_log_of_its_own(bus):
    async with bus:
        assert bus.log.topics() == []
        bus.log.assert_nothing_published("jobs")

def test_a_plain_test_may_declare(bus, clock):
    bus.topic("t")
    assert clock() == bus.clock() == 1_700_000_000_000
"""


LONG_NAMES = """
from eventbus.testing import FakeClock, TestBus

def test_the_long_names_are_the_same_objects(eventbus_bus, eventbus_clock, bus, clock):
    assert isinstance(eventbus_bus, TestBus) and eventbus_bus is bus
    assert isinstance(eventbus_clock, FakeClock) and eventbus_clock is clock and bus.clock is clock
"""
OWN_CLOCK = """
import pytest

@pytest.fixture
def clock():
    return "the project's own"

def test_own_clock(bus, clock):
    assert clock == "the project's own"
    assert bus.clock() == 1_700_000_000_000
"""
UNRELATED = """
import sys
import pytest

@pytest.fixture
def names(pytestconfig):
    return [hook.plugin_name for hook in pytestconfig.hook.pytest_fixture_setup.get_hookimpls()]

def test_no_hook_of_eventbus_runs_around_a_fixture(names):
    assert not [name for name in names if "eventbus" in name]

def test_only_the_plugin_is_imported():
    ours = ("eventbus", "serdes", "outbox", "dlq", "schema_registry", "spark_sinks")
    loaded = {name for name in sys.modules if name.split(".")[0] in ours}
    needed = {"eventbus", "eventbus.version", "eventbus.testing", "eventbus.testing.plugin", "serdes", "serdes.lazy"}
    assert loaded <= needed

@pytest.mark.parametrize("name", ["bus", "clock"])
def test_the_short_names_are_free(request, name):
    with pytest.raises(pytest.FixtureLookupError):
        request.getfixturevalue(name)
"""
BUS_FIXTURES = """
import pytest
from eventbus import EventBus
from eventbus.testing import TestBus, in_memory

{marks}

app = EventBus("file:///nowhere")
app.topic("orders")

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
    bus.topic("t")
    async with bus:
        yield bus

{mark}
@pytest.mark.parametrize("again", [1, 2])
async def test_an_application(log, again):
    await app.send("orders", again)
    await log.drain()
    log.assert_published("bills", -again)

{mark}
async def test_two_buses(running, log, clock):
    await running.send("t", "x")
    await app.send("orders", 1)
    await log.drain()
    await clock.advance(seconds=1)
    running.log.assert_published("t", "x")
"""
WRONG_FIXTURES = """
import pytest
from eventbus import EventBus
from eventbus.testing import in_memory

@pytest.fixture
async def crashing(bus):
    bus.topic("t")

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
SHORT = "eventbus_short_fixtures = true\n"


def run_pytest(directory: Path, sources: dict[str, str], *options: str, config: str = "") -> str:
    """Run these test files in a child process. Return its output, in which a line names each test and its outcome."""
    for name, source in sources.items():
        (directory / f"test_{name}.py").write_text(source)
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n" + config
    )
    # Without bytecode files, pytest would rewrite the assertions of all of our modules in each of these processes.
    left_out = ("PYTEST_", "COV_", "PYTHONDONTWRITEBYTECODE")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    plugins = ("cacheprovider", "hypothesispytest", "schemathesis", "faker", "xdist")
    command = [sys.executable, "-m", "pytest", "-rA", *(f"-pno:{each}" for each in plugins), *options]
    result = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    return result.stdout + result.stderr


def outcomes(output: str, name: str) -> Counter[str]:
    """Count the outcomes (PASSED, ERROR, ...) of the tests of one file."""
    return Counter(re.findall(rf"^([A-Z]+) test_{name}\.py::", output, re.MULTILINE))


@pytest.fixture(scope="module")
def in_auto_mode(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of pytest-asyncio in its auto mode. Starting pytest takes longer than all of these tests."""
    sources = {
        "styles": TESTS, "bus_fixtures": BUS_FIXTURES, "own_clock": OWN_CLOCK, "wrong": WRONG_FIXTURES,
        "long_names": LONG_NAMES,
    }  # fmt: skip
    sources = {name: source.replace("{marks}", "").replace("{mark}", "") for name, source in sources.items()}
    return run_pytest(
        tmp_path_factory.mktemp("auto"), sources, "-p", "no:anyio", config="asyncio_mode = auto\n" + SHORT
    )


def test_the_fixtures_work_in_auto_mode(in_auto_mode: str) -> None:
    assert outcomes(in_auto_mode, "styles") == {"PASSED": 3}, in_auto_mode
    assert outcomes(in_auto_mode, "bus_fixtures") == {"PASSED": 3}, in_auto_mode
    assert outcomes(in_auto_mode, "long_names") == {"PASSED": 1}, in_auto_mode


def test_a_project_that_does_not_use_the_plugin_is_not_changed_by_it(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, {"unrelated": UNRELATED}, "-p", "no:anyio")
    assert outcomes(output, "unrelated") == {"PASSED": 4}, output
    listed = run_pytest(tmp_path, {"unrelated": UNRELATED}, "-p", "no:anyio", "--fixtures")
    names = set(re.findall(r"^(\w+)(?: \[.*\])? -- .*eventbus/testing/", listed, re.MULTILINE))
    assert names == {"eventbus_bus", "eventbus_clock", "kafka_server"}, listed


@pytest.mark.slow  # of the same plugin as auto mode
def test_the_fixtures_work_in_strict_mode(tmp_path: Path) -> None:
    source = TESTS.format(marks="", mark="@pytest.mark.asyncio")
    output = run_pytest(tmp_path, {"styles": source}, "-p", "no:anyio", config="asyncio_mode = strict\n" + SHORT)
    assert outcomes(output, "styles") == {"PASSED": 3}, output


def test_the_fixtures_work_with_anyio(tmp_path: Path) -> None:
    """A bus that an async fixture starts is set up in one task and torn down in another."""
    backends = "@pytest.fixture(params=['asyncio', 'trio'])\ndef anyio_backend(request): return request.param"
    sources = {
        name: source.format(marks=backends, mark="@pytest.mark.anyio")
        for name, source in {"styles": TESTS, "bus_fixtures": BUS_FIXTURES}.items()
    }
    # Without pytest-asyncio, its own setting in the configuration would be an unknown one.
    config = "addopts = -W ignore::pytest.PytestConfigWarning\n" + SHORT
    output = run_pytest(tmp_path, sources, "-p", "no:asyncio", config=config)
    assert outcomes(output, "styles") == {"PASSED": 5}, output
    assert outcomes(output, "bus_fixtures") == {"PASSED": 6}, output


def test_fixtures_of_a_project_take_precedence(in_auto_mode: str) -> None:
    assert outcomes(in_auto_mode, "own_clock") == {"PASSED": 1}, in_auto_mode


def test_errors_of_buses_that_fixtures_start_are_reported(in_auto_mode: str) -> None:
    """A bus whose handler raises, a bus that does not start, and a bus that the kit does not know."""
    assert outcomes(in_auto_mode, "wrong") == {"PASSED": 2, "ERROR": 3}, in_auto_mode
    for message in ("no good", "both read 't'", "use eventbus.testing.in_memory(bus)"):
        assert message in in_auto_mode


def test_the_plugin_is_named_where_pytest_looks() -> None:
    (point,) = [point for point in entry_points(group="pytest11") if point.value.startswith("eventbus")]
    assert (point.name, point.value) == ("eventbus", "eventbus.testing.plugin")


@pytest.mark.parametrize(
    ("imports", "forbidden"),
    [
        ("eventbus.testing.plugin", ["anyio", "msgspec", "eventbus.client.bus", "eventbus.testing.clock"]),
        ("eventbus.testing", ["pytest", "anyio", "msgspec"]),
    ],
)
def test_nothing_is_loaded_before_it_is_asked_for(imports: str, forbidden: list[str]) -> None:
    program = f"import sys, {imports}; print([name for name in {forbidden!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"


def test_the_kit_needs_no_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "from eventbus.testing import *\n"
        "import eventbus.testing as kit\n"
        "print(set(kit.__all__) <= set(dir()))\n"
        "TestBus().log.faults"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "True"), result.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    import eventbus.testing

    with pytest.raises(AttributeError, match="no attribute 'FakeClok'"):
        attrgetter("FakeClok")(eventbus.testing)
    assert set(eventbus.testing.__all__) <= set(dir(eventbus.testing))

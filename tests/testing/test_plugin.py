"""The fixtures, as a project of its own sees them: pytest finds the plugin by its entry point."""

from __future__ import annotations

import os
import subprocess
import sys
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
        bus.log.assert_nothing_published("jobs")

def test_a_plain_test_may_declare(bus, clock):
    bus.topic("t")
    assert clock() == bus.clock() == 1_700_000_000_000
"""


def run_pytest(directory: Path, source: str, *options: str, config: str = "") -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(source)
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n" + config
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    plugins = ("cacheprovider", "hypothesispytest", "schemathesis", "faker", "xdist")
    command = [sys.executable, "-m", "pytest", "-q", *(f"-pno:{each}" for each in plugins), *options]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(
    ("style", "options", "config", "marks", "mark", "passed"),
    [
        ("auto", ["-p", "no:anyio"], "asyncio_mode = auto\n", "", "", 3),
        pytest.param(
            *("strict", ["-p", "no:anyio"], "asyncio_mode = strict\n", "", "@pytest.mark.asyncio", 3),
            marks=pytest.mark.slow,  # of the same plugin as the one before
        ),
        (
            "anyio",
            ["-p", "no:asyncio"],
            "",
            "@pytest.fixture(params=['asyncio', 'trio'])\ndef anyio_backend(request): return request.param",
            "@pytest.mark.anyio",
            5,
        ),
    ],
    ids=["auto", "strict", "anyio"],
)
def test_the_fixtures_work_in_every_style(
    tmp_path: Path, style: str, options: list[str], config: str, marks: str, mark: str, passed: int
) -> None:
    if style == "anyio":  # pytest-asyncio's own setting would be an unknown one
        config += "addopts = -W ignore::pytest.PytestConfigWarning\n"
    result = run_pytest(tmp_path, TESTS.format(marks=marks, mark=mark), *options, config=config)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{passed} passed" in result.stdout


def test_fixtures_of_a_project_go_before_these(tmp_path: Path) -> None:
    source = """
import pytest

@pytest.fixture
def clock():
    return "a project's own"

def test_it(bus, clock):
    assert clock == "a project's own"
    assert bus.clock() == 1_700_000_000_000
"""
    result = run_pytest(tmp_path, source, "-p", "no:anyio")
    assert result.returncode == 0, result.stdout + result.stderr


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

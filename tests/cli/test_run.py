"""``eventbus run module:bus``."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

SERVICE = """
from eventbus import EventBus

bus = EventBus("file://./data")
other = EventBus("memory://")
number = 7

@bus.consumer("orders", group="service")
async def show(value: str) -> None:
    print(value, flush=True)

def make_bus() -> EventBus:
    return bus

def wrong() -> int:
    return 7

def for_a(customer: str) -> EventBus:
    return bus

async def later() -> EventBus:
    return bus

def failing() -> EventBus:
    raise ValueError("no database")
"""


@pytest.fixture
def service(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Modules to run, and an interpreter that forgets them afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "service_app.py").write_text(SERVICE)
    (tmp_path / "broken_app.py").write_text("import service_app\nimport a_module_that_is_not_there\n")
    (tmp_path / "raising_app.py").write_text("\nraise ValueError('no database')\n")
    (tmp_path / "unparsable_app.py").write_text("def f(:\n")
    (tmp_path / "empty_app.py").write_text("")
    before = set(sys.modules)
    yield cli
    for name in set(sys.modules) - before:
        if name.endswith("_app"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("servce_app:bus", "there is no module 'servce_app' in "),
        ("no_package.app:bus", "there is no module 'no_package' in "),
        ("service_app.py:bus", "give the module's name without .py"),
        ("service_app:buss", "has no 'buss'; it holds service_app:bus, service_app:other"),
        ("service_app:number", "is of type int, not an EventBus; it holds service_app:bus"),
        ("service_app:make_bus", "call it: eventbus run 'service_app:make_bus()'"),
        ("service_app:wrong()", "is of type int, not an EventBus"),
        ("service_app:bus()", "calls a EventBus: leave out the parentheses"),
        ("service_app:for_a()", "a plain function without arguments makes the bus"),
        ("service_app:later()", "a plain function without arguments makes the bus"),
        ("service_app:failing()", "service_app.py, line 25: ValueError: no database"),
        ("empty_app:bus", "it holds no EventBus"),
        ("broken_app:bus", "broken_app.py, line 2: No module named 'a_module_that_is_not_there'"),
        ("raising_app:bus", "raising_app.py, line 2: ValueError: no database"),
        ("unparsable_app:bus", "unparsable_app.py, line 1: SyntaxError"),
    ],
)
def test_what_cannot_be_run_is_explained(service: Cli, target: str, told: str) -> None:
    result = service("run", target)
    assert result.code == 1
    assert told in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("target", ["./service_app:bus", "./service_app.py:bus"])
def test_a_file_is_no_module(service: Cli, target: str) -> None:
    result = service("run", target)
    assert (result.code, result.err.strip()) == (
        2, f"{target!r} names a file: a module's name is meant, with dots: service_app:bus",
    )  # fmt: skip


def test_a_hook_that_raises_is_told_as_the_services(service: Cli, tmp_path: Path) -> None:
    (tmp_path / "hooked_app.py").write_text(
        "from eventbus import EventBus\n\nbus = EventBus('memory://')\n\n"
        "@bus.on_startup\nasync def connect() -> None:\n    raise RuntimeError('no database')\n"
    )
    result = service("run", "hooked_app:bus")
    assert result.code == 1
    told, where = result.err.splitlines()
    assert told.startswith("error: RuntimeError: no database (") and told.endswith("hooked_app.py, line 7)")
    assert where == "  @bus.on_startup connect raised it, which ends the start"


def test_a_topic_that_is_missing_is_told_at_start(service: Cli) -> None:
    result = service("run", "service_app:bus")
    assert result.code == 1
    assert "there is no topic 'orders'" in result.err


@pytest.mark.system
@pytest.mark.parametrize(
    ("target", "number"), [("service_app:bus", signal.SIGINT), ("service_app:make_bus()", signal.SIGTERM)]
)
def test_a_service_runs_until_a_signal_and_commits(
    service: Cli, spawn: Spawn, target: str, number: signal.Signals
) -> None:
    service("topics", "create", "orders")
    service("produce", "orders", stdin=b"one\ntwo\n")
    process = spawn("run", target)
    assert process.stdout is not None and process.stderr is not None
    assert process.stderr.readline() == f"running {target} on file://./data; Ctrl-C stops it\n".encode()
    assert [process.stdout.readline(), process.stdout.readline()] == [b"one\n", b"two\n"]
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"")
    assert err.startswith(f"{number.name}: stopping; ".encode()) and err.endswith(b"\nstopped\n")
    [row] = service("offsets", "orders", "--group", "service", "--json").json
    assert (row["committed"], row["lag"]) == (2, 0)

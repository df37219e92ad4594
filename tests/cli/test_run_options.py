"""``eventbus run``: what cannot be is told before anything starts."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import eventbus
from tests.cli.conftest import Cli

pytestmark = pytest.mark.system

for library in ("uvicorn", "watchfiles"):
    pytest.importorskip(library, reason=f"needs {library}, which is no base dependency")

SERVICE = """
from eventbus import EventBus

bus = EventBus("memory://", drain_timeout_ms=1234)

@bus.on_startup
def stop_at_once():
    bus.stop()
    print("drains for", bus.context.drain_timeout_ms)
"""


@pytest.fixture
def ready(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """A service that starts and stops, and an interpreter that forgets it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "ready_app.py").write_text(SERVICE)
    yield cli
    for name in [name for name in sys.modules if name.endswith("_app")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ready_app", "--reload"), 2, "'ready_app' is not of the form module:bus"),
        (("ready_app:bus", "--reload-dir", "src"), 2, "--reload-dir needs --reload"),
        (("ready_app:bus", "--reload", "--workers", "2"), 2, "leave --workers out"),
        (("ready_app:bus", "--reload", "--reload-dir", "nowhere"), 2, "nowhere: there is no such directory"),
        (("ready_app:bus", "--workers", "0"), 2, "0 is less than 1"),
        (("ready_app:bus", "--health-host", "0.0.0.0"), 2, "--health-host needs --health-port"),
        (("ready_app:bus", "--health-port", "65536"), 1, "ports end at 65535"),
        (("ready_app:bus", "--drain-timeout", "soon"), 2, "'soon' is not a number of seconds"),
        (("ready_app:bus", "--drain-timeout", "-1"), 2, "-1 is not at least 0"),
        (("ready_app:bus", "--log-level", "loud"), 2, "invalid choice: 'loud'"),
        (("ready_app:bus", "--relod"), 2, "did you mean '--reload'?"),
    ],
)
def test_what_cannot_be_is_told(ready: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = ready("run", *arguments)
    assert (result.code, message in result.err) == (code, True), result.err


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [("watchfiles", ("--reload",), "reload"), ("uvicorn", ("--health-port", "0"), "web")],
)
def test_a_missing_library_is_named_with_its_install(
    ready: Cli, monkeypatch: pytest.MonkeyPatch, library: str, arguments: tuple[str, ...], extra: str
) -> None:
    find: Callable[..., ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == library else find(name, *more))
    result = ready("run", "ready_app:bus", *arguments)
    assert result.code == 1
    assert f'pip install "eventbus-log[{extra}]"' in result.err


def test_a_port_in_use_is_told(ready: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = ready("run", "ready_app:bus", "--health-port", str(port))
    assert result.code == 1 and f"port {port} of 127.0.0.1 is in use" in result.err


def test_modules_that_import_each_other_are_told_apart(ready: Cli, tmp_path: Path) -> None:
    (tmp_path / "one_app.py").write_text("from two_app import two\none = 1\n")
    (tmp_path / "two_app.py").write_text("from one_app import one\ntwo = 2\n")
    result = ready("run", "one_app:bus")
    assert result.code == 1
    assert "two_app.py, line 1: ImportError: cannot import name 'one'" in result.err
    assert "these modules import each other: move what both need into a third one" in result.err


def test_the_drain_timeout_is_the_command_lines_else_the_buss(ready: Cli) -> None:
    assert ready("run", "ready_app:bus").out == "drains for 1234\n"
    assert ready("run", "ready_app:bus", "--drain-timeout", "2.5").out == "drains for 2500\n"


def test_health_is_served_and_said(ready: Cli) -> None:
    result = ready("run", "ready_app:bus", "--health-port", "0")
    assert (result.code, "health and metrics: http://127.0.0.1:" in result.err) == (0, True)


def in_a_process(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "ready_app.py").write_text(SERVICE + "    print('\\N{RIGHTWARDS ARROW}')\n")
    command = [sys.executable, "-m", "eventbus", *arguments]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_a_stdout_without_utf_8_stops_nobody_and_all_lines_are_json(tmp_path: Path) -> None:
    """And stdin is no terminal."""
    done = in_a_process(tmp_path, "run", "ready_app:bus", "--log-format", "json", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "drains for 1234\n\\u2192\n")
    first, *rest = done.stderr.splitlines()
    assert first.startswith("warning: stdout is in ascii, not in UTF-8") and "PYTHONUTF8=1" in first
    assert [json.loads(line)["message"] for line in rest][-1] == "stopped"


def test_other_commands_say_what_the_encoding_lacks(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        "→".encode("ascii")
        return 0

    monkeypatch.setattr("eventbus.cli.output.Output.table", fail)
    monkeypatch.setattr("eventbus.cli.output.Output.line", fail)
    cli("topics", "create", "orders")
    result = cli("topics", "list")
    assert result.code == 1
    assert "output is in ascii, which lacks '\\u2192': set PYTHONUTF8=1" in result.err


def test_a_python_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    source = Path(eventbus.__file__).read_text()
    with pytest.raises(ImportError, match=r"eventbus needs Python 3\.11 or newer, and .* is 3\.9"):
        exec(compile(source, eventbus.__file__, "exec"), {"__name__": "eventbus"})

"""``eventbus shell module:bus``: Python with ``await`` on a bus that is open."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

Spawn = Callable[..., Any]

SERVICE = """
import msgspec
from eventbus import EventBus

class Order(msgspec.Struct):
    order_id: str

bus = EventBus("file://./data")
bus.topic("orders")

@bus.consumer("orders", group="service")
async def show(order: Order):
    print("handled", order.order_id)

_hidden = 1
"""


@pytest.fixture
def shell(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shell_app.py").write_text(SERVICE)
    yield lambda *args, stdin=b"": cli("shell", "shell_app:bus", *args, stdin=stdin)
    sys.modules.pop("shell_app", None)


def test_stdin_is_a_program_with_await_and_the_names_of_the_module(shell: Cli) -> None:
    result = shell(
        stdin=b"""
metadata = await bus.send("orders", Order("o-1"))
for topic in await bus.admin.list_topics():
    print(topic, metadata.offset, show.__name__)
async with bus.new_consumer("orders", group="look", value=Order) as consumer:
    print((await consumer.poll())[0].value)
print([name for name in globals() if "hidden" in name])
"""
    )
    assert (result.code, result.err) == (0, "")
    assert result.lines == ["orders 0 show", "Order(order_id='o-1')", "[]"]


def test_handlers_run_when_they_are_asked_for(shell: Cli) -> None:
    send = ("-c", 'await bus.send("orders", Order("o-1")); await bus.drain(); print("drained")')
    assert shell(*send).out == "drained\n"
    assert shell(*send, "--handlers").out == "handled o-1\nhandled o-1\ndrained\n"


@pytest.mark.parametrize(
    ("source", "code", "err"),
    [
        ("1 / 0", 1, 'File "<stdin>", line 1, in <module>\n    1 / 0\n'),
        ("def f(:", 1, "SyntaxError: invalid syntax"),
        ("await bus.send('ordrs', 'x')", 1, "there is no topic 'ordrs'"),
        ("exit(3)", 3, ""),
        ("import sys; sys.exit('so it is')", 1, "so it is\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
    ],
)
def test_what_goes_wrong_is_shown_from_the_program_on(shell: Cli, source: str, code: int, err: str) -> None:
    result = shell("-c", source)
    assert (result.code, err in result.err) == (code, True), result.err
    assert "interactive.py" not in result.err


@pytest.mark.system
def test_a_log_that_is_in_use_is_told(shell: Cli, tmp_path: Path) -> None:
    result = shell("-c", "from eventbus import EventBus\nimport subprocess, sys\n"
                   "print(subprocess.run([sys.executable, '-m', 'eventbus', 'shell', 'shell_app:bus', '-c', '1'],"
                   " capture_output=True, text=True).stderr)")  # fmt: skip
    assert "eventbus serve" in result.out


@pytest.mark.system
def test_at_a_terminal_there_is_a_banner_and_values_are_shown(tmp_path: Path, spawn: Spawn) -> None:
    (tmp_path / "shell_app.py").write_text(SERVICE)
    ours, theirs = pty.openpty()
    process = spawn("shell", "shell_app:bus", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(
        ours, b"(await bus.send('orders', Order('o-1'))).offset + 40\n1 / 0\nfor n in [7]:\n  print(n * 6)\n\nexit()\n"
    )
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode().replace("\r\n", "\n")
    assert "bus: file://./data, 1 handler(s), they do not run (--handlers)\nfrom shell_app: Order, show\n" in text
    assert "\n40\n" in text and "\n42\n" in text
    assert "ZeroDivisionError: division by zero" in text

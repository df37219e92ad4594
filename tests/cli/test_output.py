"""Tables for people, columns for pipes, JSON for programs."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus.cli.output import Output, plain_columns, text_or_base64
from tests.named import ROOT

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_columns_set_numbers_to_the_right() -> None:
    assert plain_columns(["name", "count", "mean"], [("a", 1, 2.25), ("long", 1000, None)]) == [
        "NAME  COUNT  MEAN",
        "a         1   2.2",
        "long   1000     -",
    ]
    assert plain_columns(["name", "count"], []) == ["NAME  COUNT"]


@pytest.mark.system  # rich draws, which is an extra
@pytest.mark.parametrize("dense", [False, True])
def test_a_terminal_gets_a_table_and_brackets_survive_it(dense: bool) -> None:
    stream = Terminal()
    Output(stdout=stream).table(["name", "count"], [("[bold]x", 1000)], title="title", dense=dense)
    text = stream.getvalue()
    assert "[bold]x" in text and "title" in text
    assert ("1000" if dense else "1,000") in text


def test_json_is_a_list_of_objects_also_on_a_terminal() -> None:
    stream = Terminal()
    Output(json=True, stdout=stream).table(["Log end", "group-id"], [(1, None)])
    assert stream.getvalue() == '[{"log_end":1,"group_id":null}]\n'


EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b31m \u202eab \ud800 \r"


def test_what_a_terminal_would_obey_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.line(f"tab\t{EVIL}\nnext line")
    out.note(EVIL)
    out.table(["name"], [(f"{EVIL}\n::error::",)])
    shown, beside = capsys.readouterr()
    for text in (shown, beside):
        assert r"\x1b[31mred\x1b]0;title\x07 \x9b31m \u202eab \ud800 \r" in text
        assert all(character.isprintable() or character in "\t\n" for character in text)
    assert "tab\t" in shown and "\nnext line\n" in shown and "\n::error::" not in shown


def test_what_a_terminal_would_obey_is_escaped_in_json() -> None:
    stream, text = io.StringIO(), "\x1b[31m \x9b31m \u202e \u2028 \x7f"
    Output(json=True, stdout=stream).data({"name": text})
    assert stream.getvalue().strip().isprintable()
    assert msgspec.json.decode(stream.getvalue()) == {"name": text}


def test_a_raw_text_is_printable_on_a_terminal_alone() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        Output(stdout=stream).raw("a \x9b31m\n")
    assert (pipe.getvalue(), terminal.getvalue()) == ("a \x9b31m\n", "a \\x9b31m\n")


def test_bytes_in_json() -> None:
    assert text_or_base64("value", b"text") == {"value": "text"}
    assert text_or_base64("value", None) == {"value": None}
    assert text_or_base64("value", b"\xff") == {"value_base64": "/w=="}


SMALL_DEMO = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
from demo import command
command.QUICK_FLIGHTS = 500
sys.exit(command.main(sys.argv[1:]))
"""


def on_a_terminal(spawn: Spawn, *args: str, **options: Any) -> tuple[int, str]:
    master, slave = pty.openpty()
    process = spawn(*args, stdin=slave, stdout=slave, stderr=slave, **options)
    os.close(slave)
    screen = b""
    try:
        while chunk := os.read(master, 65_536):
            screen += chunk
    except OSError:  # Linux's way to say that the other side has gone
        pass
    finally:
        os.close(master)
    return process.wait(timeout=30), screen.decode()


@pytest.mark.system
def test_topics_on_a_terminal_show_their_size(orders: Cli, spawn: Spawn) -> None:
    code, screen = on_a_terminal(spawn, "topics", "list")
    assert code == 0
    assert "partitions" in screen and "records" in screen and "orders" in screen


@pytest.mark.system
def test_the_demo_on_a_terminal_draws_bars(cli: Cli, spawn: Spawn) -> None:
    code, screen = on_a_terminal(spawn, "--quick", program=("-c", SMALL_DEMO))
    assert code == 0
    for step in ("publish flights", "flights -> delays", "delays -> table per carrier"):
        assert step in screen
    assert "500/500" in screen
    assert "Endeavor Air Inc." in screen

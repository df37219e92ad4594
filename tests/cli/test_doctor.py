"""``eventbus doctor module:bus``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

SERVICE = """
import time

from eventbus import EventBus

bus = EventBus("file://./data")
bus.topic("orders", partitions=2)

@bus.consumer("orders", group="billing")
async def bill(order: str) -> None: ...

slow = EventBus("file://./data")
slow.topic("orders")

@slow.consumer("orders", group="billing")
async def sleepy(order: str) -> None:
    time.sleep(1)  # never called: the doctor reads it

twice = EventBus("memory://")
for name in ("one", "two"):
    twice.consumer("orders", group="g", name=name)(bill.undecorated)

lost = EventBus("file://./data")

@lost.consumer("ordres", group="g")
async def reads(order: str) -> None: ...
"""


@pytest.fixture
def doctor(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "doctored_app.py").write_text(SERVICE)
    (tmp_path / "refused_app.py").write_text(
        "from eventbus import EventBus\nbus = EventBus('memory://')\n"
        "@bus.consumer('t', exactly_once=True, isolation_level='read_uncommitted')\nasync def f(x: str) -> None: ...\n"
    )
    yield lambda *args: cli("doctor", *args)
    for name in ("doctored_app", "refused_app"):
        sys.modules.pop(name, None)


def test_a_service_that_is_well(doctor: Cli, tmp_path: Path) -> None:
    result = doctor("doctored_app:bus", "--strict")
    assert (result.code, result.err) == (0, "")
    assert "bill  orders, group billing  (doctored_app.py:" in result.out
    assert "twice         after a crash: what was finished in the last 100 ms" in result.out
    assert result.lines[-1] == "1 handler(s), 0 error(s), 0 warning(s)"
    assert not (tmp_path / "data").exists()  # nothing was opened


@pytest.mark.system
def test_warnings_fail_where_it_is_strict(doctor: Cli) -> None:
    assert doctor("doctored_app:slow").code == 0
    result = doctor("doctored_app:slow", "--strict")
    assert result.code == 1 and "calls time.sleep (line" in result.out and "[blocks-the-loop]" in result.out


def test_errors_fail(doctor: Cli) -> None:
    result = doctor("doctored_app:twice", "--json")
    assert result.code == 1
    (error,) = (one for one in result.json["findings"] if one["severity"] == "error")
    assert (error["code"], error["where"]) == ("shared-group", "one, two")
    assert result.json["handlers"][0]["crash"].keys() == {"before", "in", "after"}


def test_what_python_refuses_is_told_as_it_is(doctor: Cli) -> None:
    result = doctor("refused_app:bus")
    assert result.code == 1 and "refused_app.py, line 3" in result.err and "would publish results" in result.err


def test_the_log_is_asked_when_it_is_wanted(doctor: Cli, orders: Cli) -> None:
    result = doctor("doctored_app:bus", "--connect")
    assert result.code == 0
    assert "warning  orders: declared with 2 partitions, and it has 3" in result.out
    assert doctor("doctored_app:lost").code == 0
    result = doctor("doctored_app:lost", "--connect")
    assert result.code == 1 and "there is no topic ordres; did you mean 'orders'?" in " ".join(result.out.split())

"""Which log a program is on: the command line, the environment, the program's own default, in this order."""

from __future__ import annotations

import sys

import pytest

from eventbus import log_url
from eventbus.errors import ConfigError


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENTBUS_URL", raising=False)
    monkeypatch.setattr(sys, "argv", ["app.py"])


def test_by_itself_the_programs_default() -> None:
    assert log_url() == "file://./data"
    assert log_url("memory://shop") == "memory://shop"


def test_the_command_line_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_URL", "file://./elsewhere")
    assert log_url("memory://") == "file://./elsewhere"
    for words in (["--url", "kafka://h:9092"], ["--quiet", "--url=kafka://h:9092", "rest"]):
        monkeypatch.setattr(sys, "argv", ["app.py", *words])
        assert log_url("memory://") == "kafka://h:9092"


def test_memory_alone_is_the_programs_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bus of a bare ``memory://`` has a log to itself: buses that are to meet would not."""
    monkeypatch.setattr(sys, "argv", ["app.py", "--url", "memory://"])
    assert log_url("memory://shop") == "memory://shop"
    assert log_url() == "memory://"
    monkeypatch.setattr(sys, "argv", ["app.py", "--url", "memory://mine"])
    assert log_url("memory://shop") == "memory://mine"


@pytest.mark.parametrize("words", [["--url"], ["--url="]])
def test_a_flag_without_its_value_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", *words])
    with pytest.raises(ConfigError, match=r"--url needs a log, as in: --url file://\./data"):
        log_url()

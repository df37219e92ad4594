"""``eventbus config``: where values come from; which settings there are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
CANARY = "hunter2-canary"

FILE = f"""\
linger_ms = 5
sasl.password = "{CANARY}"
url = "file://./elsewhere"

[handlers.bill]
concurrency = 8
"""
SERVICE = """
from eventbus import EventBus

bus = EventBus("memory://x?fsync=os", acks="all")

@bus.consumer("orders", group="g")
async def bill(order: str) -> None: ...
"""


@pytest.fixture
def config(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    for name in os.environ:
        if name.startswith("EVENTBUS_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "configured_app.py").write_text(SERVICE)
    (tmp_path / "bus.toml").write_text(FILE)
    yield lambda *args: cli("config", *args)
    sys.modules.pop("configured_app", None)


def rows(result: Any) -> dict[str, tuple[Any, str]]:
    return {row["setting"]: (row["value"], row["source"]) for row in result.json}


def test_nothing_is_set(config: Cli) -> None:
    result = config("show")
    assert (result.code, result.err) == (0, "") and result.out.startswith("nothing is set: ")
    assert config("show", "--json").json == []


def test_the_environment_and_the_file(config: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_CONFIG", "bus.toml")
    monkeypatch.setenv("EVENTBUS_BATCH_SIZE", "1000")
    monkeypatch.setenv("EVENTBUS_LINGR_MS", CANARY)
    monkeypatch.setenv("EVENTBUS_SSL_KEY_PASSWORD", CANARY)
    result = config("show", "--json")
    assert rows(result) == {
        "url": ("file://./elsewhere", "bus.toml, line 3"),
        "batch_size": (1000, "EVENTBUS_BATCH_SIZE"),
        "linger_ms": (5, "bus.toml, line 1"),
        "sasl_password": ("***", "bus.toml, line 2"),
        "ssl_key_password": ("***", "EVENTBUS_SSL_KEY_PASSWORD"),
        "handlers.bill.concurrency": (8, "bus.toml, line 6"),
    }
    assert "did you mean 'EVENTBUS_LINGER_MS'?" in result.err
    text = config("show")
    assert CANARY not in result.out + result.err + text.out + text.err


def test_of_a_service(config: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_CONFIG", "bus.toml")
    monkeypatch.setenv("EVENTBUS_ACKS", "0")
    told = rows(config("show", "configured_app:bus", "--json"))
    assert told["acks"] == ("all", "keyword") and told["url"] == ("memory://x?fsync=os", "keyword")
    assert told["fsync"] == ("os", "url") and told["linger_ms"] == (5, "bus.toml, line 1")
    assert told["batch_size"] == (65_536, "default") and told["sasl_password"] == ("***", "bus.toml, line 2")
    changed = config("show", "configured_app:bus", "--changed")
    assert "batch_size" not in changed.out and "handlers.bill.concurrency" in changed.out
    assert CANARY not in changed.out


def test_what_a_file_says_wrong_of_a_handler_is_told(
    config: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bus.toml").write_text("[handlers.bill]\norder = 'key'\n")
    monkeypatch.setenv("EVENTBUS_CONFIG", "bus.toml")
    result = config("show", "configured_app:bus")
    assert result.code == 1 and "bus.toml, line 2: [handlers.bill]: order: it defines the handler" in result.err


def test_what_is_wrong_is_one_line(cli: Cli, config: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_LINGER_MS", "abc")
    result = config("show")
    assert result.code == 1
    assert (
        result.err
        == "error: environment variable EVENTBUS_LINGER_MS='abc': a whole number of milliseconds, at least 0\n"
    )
    result = cli("topics", "list")
    assert (result.code, result.err) == (
        1,
        "error: environment variable EVENTBUS_LINGER_MS='abc': a whole number of milliseconds, at least 0\n",
    )


def test_the_settings_there_are(config: Cli) -> None:
    told = {row["setting"]: row for row in config("list", "--json").json}
    assert told["linger_ms"] == {"setting": "linger_ms", "of": "producer", "default": "0", "importance": "medium"}
    assert "sasl_password" not in told
    assert "sasl_password" in {row["setting"] for row in config("list", "--kafka", "--json").json}
    high = {row["importance"] for row in config("list", "--importance", "high", "--json").json}
    assert high == {"high"}


@pytest.mark.parametrize("key", ["linger_ms", "linger.ms", "EVENTBUS_LINGER_MS", "queue.buffering.max.ms"])
def test_a_setting_is_explained_under_each_of_its_names(config: Cli, key: str) -> None:
    result = config("explain", key)
    assert result.lines == [
        "linger_ms  (medium; of its producers)",
        "  How long a batch waits for more records before it is sent.",
        "  takes        a whole number of milliseconds, at least 0",
        "  default      0",
        "  keyword      EventBus(linger_ms=...)",
        "  environment  EVENTBUS_LINGER_MS",
        "  Kafka        linger.ms",
    ]


def test_every_setting_of_ours_is_explained(config: Cli) -> None:
    names = [row["setting"] for row in config("list", "--json").json]
    told = config("explain", "--json", *names).json
    assert [one["name"] for one in told] == names
    assert [one["name"] for one in told if not one["meaning"]] == []


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("lingr.ms", "did you mean 'linger.ms'?"),
        ("auto.commit.offset", "the key is enable_auto_commit"),
        ("block.on.buffer.full", "gone since Kafka 0.9, the key is max_block_ms"),
        ("qqqqqqqqqq", "see: eventbus config list --kafka"),
    ],
)
def test_a_key_that_is_none_names_the_right_one(config: Cli, key: str, told: str) -> None:
    result = config("explain", key)
    assert result.code == 2 and told in result.err


def test_commands_go_by_the_file_and_the_environment(
    cli: Cli, config: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTBUS_CONFIG", "bus.toml")
    assert cli("topics", "create", "orders").code == 0
    assert (tmp_path / "elsewhere").is_dir()
    monkeypatch.setenv("EVENTBUS_NUM_PARTITIONS", "7")
    assert cli("topics", "create", "more").code == 0
    told = cli("topics", "describe", "more", "--json").json
    assert len(told[0]["partitions"]) == 7
    monkeypatch.setenv("EVENTBUS_URL", "file://./here")
    assert cli("topics", "create", "orders").code == 0
    assert (tmp_path / "here").is_dir()


@pytest.mark.system
def test_what_a_command_says_of_a_url_hides_its_password(cli: Cli, config: Cli, tmp_path: Path) -> None:
    (tmp_path / "configured_app.py").write_text(
        f"from eventbus import EventBus\nbus = EventBus('memory://me:{CANARY}@x')\n"
        "@bus.consumer('t', group='g')\nasync def h(x: str) -> None: ...\n"
    )
    for command in ("run", "doctor", "replay"):
        result = cli(command, "configured_app:bus")
        assert CANARY not in result.out + result.err
        assert result.out or result.err

"""``eventbus transactions``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage

Cli = Callable[..., Any]


@pytest.fixture
def importer(orders: Cli, tmp_path: Path) -> Cli:
    """The transactional id importer has committed one transaction."""

    async def main() -> None:
        async with EventBus(f"file://{tmp_path}/data") as bus, bus.transaction("importer") as tx:
            await tx.send("orders", b"x")

    anyio.run(main)
    return orders


def test_list_shows_every_id_with_its_state(importer: Cli) -> None:
    result = importer("transactions", "list")
    assert result.lines[0].split() == ["TRANSACTIONAL-ID", "PRODUCER-ID", "STATE"]
    assert result.lines[1].split()[::2] == ["importer", "CompleteCommit"]
    assert importer("transactions", "list", "--state", "ongoing", "--json").json == []
    [row] = importer("transactions", "list", "--json").json
    assert row["transactional_id"] == "importer"


def test_describe_shows_the_producer(importer: Cli) -> None:
    [row] = importer("transactions", "list", "--json").json
    shown = importer("transactions", "describe", "importer", "--json").json
    assert shown["producer_id"] == row["producer_id"] and shown["state"] == "CompleteCommit"
    assert shown["start_ms"] is None and shown["partitions"] == []
    assert "importer" in importer("transactions", "describe", "--transactional-id", "importer").lines[1]


@pytest.mark.parametrize("action", ["describe", "abort"])
def test_an_id_that_is_not_there(importer: Cli, action: str) -> None:
    result = importer("transactions", action, "exporter")
    assert result.code == 1 and "'exporter'" in result.err
    result = importer("transactions", action)
    assert result.code == 2 and "which one? Give its id" in result.err


def test_nothing_to_abort_is_said(importer: Cli) -> None:
    result = importer("transactions", "abort", "importer")
    assert result.code == 1 and "importer" in result.err


def test_an_open_one_is_described_and_aborted(importer: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its own process can have a log open, so the commands are given a bus with a transaction under way."""
    import eventbus.cli.transactions as commands

    class Held:
        """A bus in which a producer has left something open."""

        def __init__(self) -> None:
            self.bus = bus_on(CrashStorage())

        async def __aenter__(self) -> EventBus:
            await self.bus.__aenter__()
            await self.bus.admin.create_topic("t", partitions=2)
            producer = self.bus.new_producer(transactional_id="hangs")
            await producer.begin()
            await producer.send("t", b"x", partition=1)
            return self.bus

        async def __aexit__(self, *error: Any) -> None:
            await self.bus.__aexit__(*error)

    monkeypatch.setattr(commands, "open_bus", lambda args: Held())
    [row] = importer("transactions", "list", "--json").json
    assert row["state"] == "Ongoing"
    shown = importer("transactions", "describe", "hangs", "--json").json
    assert shown["partitions"] == [{"topic": "t", "partition": 1}] and shown["start_ms"] > 1_600_000_000_000
    assert "t-1" in importer("transactions", "describe", "hangs").lines[1]
    result = importer("transactions", "abort", "hangs")
    assert result.out == "Aborted the transaction of hangs; its producer is fenced.\n"

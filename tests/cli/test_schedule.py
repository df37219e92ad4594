"""``eventbus schedule``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus

Cli = Callable[..., Any]


@pytest.fixture
def reminders(orders: Cli, tmp_path: Path) -> Cli:
    async def main() -> None:
        bus = EventBus(f"file://{tmp_path}/data", service="shop")

        @bus.every("0 9 * * *")
        async def report() -> None: ...

        async with bus:
            await bus.send("orders", b"tea", key="k", headers={"h": "1"}, delay=3600, schedule_id="reminder")
            await bus.drain()

    anyio.run(main)
    return orders


@pytest.mark.system
def test_list_show_and_cancel(reminders: Cli) -> None:
    rows = reminders("schedule", "list", "--json").json
    assert {(row["id"], row["topic"], row["what"]) for row in rows} == {
        ("reminder", "orders", "record"),
        ("every:report", "_every.shop.report", "0 9 * * * UTC"),
    }
    assert reminders("schedule", "list", "--dead", "--json").json == []
    assert reminders("schedule", "list", "--service", "bank", "--json").json == []
    shown = reminders("schedule", "show", "reminder", "--json").json
    assert (shown["key"], shown["value"], shown["headers"]) == ("k", "tea", [{"name": "h", "value": "1"}])
    assert reminders("schedule", "cancel", "reminder").lines == ["reminder is cancelled"]
    assert [row["id"] for row in reminders("schedule", "list", "--json").json] == ["every:report"]


def test_an_id_that_is_not_there(reminders: Cli) -> None:
    for action in ("show", "cancel"):
        result = reminders("schedule", action, "nobody")
        assert result.code == 2 and "nothing with the id 'nobody' waits" in result.err

"""``eventbus groups events``: what the log of a group tells of its rebalances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from eventbus import Consumer, EventBus

Cli = Callable[..., Any]


async def settle(*members: Consumer) -> None:
    while sum(len(one.assignment()) for one in members) < 3 or not all(one.assignment() for one in members):
        for one in members:
            await one.poll(timeout_ms=0)


def live(directory: Path, assignor: str) -> None:
    """Two members share ``orders``; the second one goes again."""

    async def main() -> None:
        async with EventBus(f"file://{directory}/data") as bus:
            config: dict[str, Any] = {"group": "billing", "partition_assignment_strategy": assignor}
            async with bus.new_consumer("orders", client_id="one", **config) as first:
                await settle(first)
                async with bus.new_consumer("orders", client_id="two", **config) as second:
                    await settle(first, second)
                await settle(first)

    anyio.run(main)


def test_who_came_who_went_and_what_moved(orders: Cli, tmp_path: Path) -> None:
    live(tmp_path, "range")
    events = orders("groups", "events", "billing", "--json").json
    causes = [event["cause"] for event in events]
    assert [event["generation_id"] for event in events] == [1, 2, 3, 4]
    assert causes[0].startswith("one-") and causes[0].endswith(" came")
    assert causes[1].startswith("two-") and causes[1].endswith(" came")
    assert causes[2].startswith("two-") and causes[2].endswith(" went")
    assert causes[3].startswith("one-") and causes[3].endswith(" went")
    assert [event["members"] for event in events] == [1, 2, 1, 0]
    assert events[0]["moved"] == 3 and events[1]["moved"] in (1, 2) and events[3]["moved"] == 3
    assert events[0]["since_ms"] is None and all(event["since_ms"] >= 0 for event in events[1:])
    shown = orders("groups", "events", "billing")
    assert shown.lines[0].split() == ["AT", "GENERATION", "MEMBERS", "MOVED", "AFTER", "CAUSE"]
    assert len(shown.lines) == 5


def test_a_cooperative_rebalance_has_two_rounds(orders: Cli, tmp_path: Path) -> None:
    live(tmp_path, "cooperative-sticky")
    events = orders("groups", "events", "billing", "--json").json
    assert events[1]["moved"] == 1, "given up, and not given yet"
    assert "second round of a cooperative rebalance" in events[2]["cause"] and events[2]["moved"] == 1


def test_a_group_without_members_and_one_that_is_not_there(orders: Cli) -> None:
    orders("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute")
    result = orders("groups", "events", "billing")
    assert result.code == 0 and "never had members" in result.err
    wrong = orders("groups", "events", "biling")
    assert wrong.code == 1 and "did you mean 'billing'" in wrong.err


def test_a_group_that_was_deleted_begins_anew(orders: Cli, tmp_path: Path) -> None:
    live(tmp_path, "range")
    orders("groups", "delete", "billing")
    live(tmp_path, "range")
    assert len(orders("groups", "events", "billing", "--json").json) == 4

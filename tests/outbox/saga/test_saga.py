"""The saga of examples/26_saga.py: what becomes of an order, whatever comes first, and whoever dies."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.killed import kill
from tests.outbox.saga.kill_saga import OVER, saga

pytestmark = pytest.mark.system

PROGRAM = "tests.outbox.saga.kill_saga"
ANSWERS = {"pay": ("paid", "refused"), "reserve": ("reserved", "sold out"), "refund": (), "release": ()}
"""What a service may say to a command."""


def ends(answers: dict[str, str], time_out_after: int) -> tuple[str, list[str]]:
    """An order's last state and all commands, where services answer so, and the time is over after so many events."""
    state, commands, events = "placed", ["pay"], [answers["pay"]]
    for turn in itertools.count():
        if turn == time_out_after:
            events.insert(0, "timed out")
        if not events:
            if turn > time_out_after:
                return state, commands
            continue
        event = events.pop(0)
        state, command = saga.STEPS.get((state, event), (state, saga.TOO_LATE.get(event)))
        if command is not None:
            commands.append(command)
            if ANSWERS[command]:
                events.append(answers[command])
    raise AssertionError


@pytest.mark.parametrize("pay", ANSWERS["pay"])
@pytest.mark.parametrize("reserve", ANSWERS["reserve"])
@pytest.mark.parametrize("time_out_after", range(4))
def test_what_was_done_for_an_order_stays_or_is_undone(pay: str, reserve: str, time_out_after: int) -> None:
    answers = {"pay": pay, "reserve": reserve}
    state, commands = ends(answers, time_out_after)
    assert state in OVER
    has_paid = pay == "paid" and "refund" not in commands
    has_item = reserve == "reserved" and "reserve" in commands and "release" not in commands
    assert has_paid == has_item == (state == "packed")
    assert len(commands) == len(set(commands)), "nothing is done, or undone, twice"


@pytest.mark.timeout(240)
def test_orders_are_packed_or_undone_when_the_shop_is_killed(tmp_path: Path) -> None:
    assert "2 kills" in kill(PROGRAM, tmp_path / "shop", 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_100_kills(tmp_path: Path) -> None:
    for seed in range(2, 4):
        assert "50 kills" in kill(PROGRAM, tmp_path / f"shop-{seed}", 50, seed)

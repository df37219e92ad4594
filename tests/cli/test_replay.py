"""``eventbus replay``: a service's own handler over old records, in a group that is thrown away."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

SHOP = """
from eventbus import EventBus, Transaction

bus = EventBus("file://./data")
bare = EventBus("file://./data")
memory = EventBus("memory://")
seen: list[str] = []

@bus.consumer("orders", group="billing")
async def bill(value: str) -> None:
    if value == "value 3" and "crash" in seen:
        raise ValueError("still wrong")
    seen.append(value)

@bus.consumer(pattern="ord.*", group="audit")
def audit(value: str) -> None:
    seen.append(value)

@bus.consumer("orders", group="printer")
@bus.producer("invoices")
async def invoice(value: str) -> str:
    return "invoice of " + value

@bus.consumer("orders", group="mover", exactly_once=True)
async def move(value: str, tx: Transaction) -> None:
    pass

@memory.consumer("orders", group="g")
async def lonely(value: str) -> None:
    pass
"""


@pytest.fixture
def shop(orders: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """A service over the six records of ``orders``; its group has them all already."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop_app.py").write_text(SHOP)
    orders("groups", "reset-offsets", "billing", "--topic", "orders", "--to-latest", "--execute")
    yield orders
    sys.modules.pop("shop_app", None)


def seen() -> list[str]:
    return sorted(sys.modules["shop_app"].seen)


EVERYTHING = [f"value {number}" for number in range(6)]


def test_from_the_beginning_leaves_the_services_own_offsets_alone(shop: Cli) -> None:
    before = shop("groups", "describe", "billing", "--json").json
    result = shop("replay", "shop_app:bus", "bill", "--from-beginning")
    assert (result.code, result.out) == (0, "Replayed 6 record(s) through bill.\n"), result.err
    assert seen() == EVERYTHING
    assert shop("groups", "describe", "billing", "--json").json == before
    assert shop("groups", "list").lines == ["billing"], "its own group is gone"


def test_from_an_offset_and_from_a_time(shop: Cli) -> None:
    result = shop("replay", "shop_app:bus", "bill", "--from-offset", "1", "--json")
    counts = [row["count"] for row in shop("offsets", "orders", "--json").json]
    assert result.json["offsets"] == len(seen()) == sum(max(count - 1, 0) for count in counts)
    assert shop("replay", "shop_app:bus", "bill", "--from-datetime", "2999-01-01", "--json").json["offsets"] == 0
    assert shop("replay", "shop_app:bus", "bill", "--from-datetime", "2013-01-01", "--json").json["offsets"] == 6


def test_a_pattern(shop: Cli) -> None:
    assert shop("replay", "shop_app:bus", "audit", "--from-beginning").code == 0
    assert seen() == EVERYTHING


def test_outputs_are_published_again_only_when_that_is_wanted(shop: Cli) -> None:
    for handler in ("invoice", "move"):
        result = shop("replay", "shop_app:bus", handler, "--from-beginning")
        assert result.code == 2 and "--publish" in result.err
    assert shop("replay", "shop_app:bus", "invoice", "--from-beginning", "--publish").code == 0
    assert len(shop("consume", "invoices", "--from-beginning", "--timeout-ms", "50").lines) == 6


def test_a_handler_that_fails_says_where_and_the_group_goes_all_the_same(shop: Cli) -> None:
    shop("replay", "shop_app:bus", "bill", "--from-offset", "1000")
    sys.modules["shop_app"].seen.append("crash")
    result = shop("replay", "shop_app:bus", "bill", "--from-beginning")
    assert result.code == 1 and "still wrong" in result.err and "orders-" in result.err
    assert shop("groups", "list").lines == ["billing"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("shop_app:bus", "bil", "--from-beginning"), 2, "did you mean 'bill'"),
        (("shop_app:bus", "--from-beginning"), 2, "which handler?; shop_app:bus has audit, bill, invoice, move"),
        (("shop_app:bus", "bill"), 2, "--from-beginning"),
        (("shop_app:bare", "bill", "--from-beginning"), 1, "has no handlers"),
        (("shop_app:memory", "--from-beginning"), 1, "empty in every new process"),
        (("shop_app:bus", "bill", "--from-datetime", "soon"), 2, "'soon' is no time"),
    ],
)
def test_what_is_wrong_is_named(shop: Cli, args: tuple[str, ...], code: int, message: str) -> None:
    result = shop("replay", *args)
    assert (result.code, message in result.err) == (code, True), result.err


SLOW = """
import anyio
from eventbus import EventBus

bus = EventBus("file://./data")

@bus.consumer("orders", group="billing", concurrency=1, order="partition")
async def slow(value: str) -> None:
    print("at work", flush=True)
    await anyio.sleep(0.05)
"""


def test_ctrl_c_finishes_the_record_at_work_and_takes_the_group_along(shop: Cli, spawn: Spawn, tmp_path: Path) -> None:
    shop("produce", "orders", "--partition", "0", stdin=b"x\n" * 1000)
    (tmp_path / "slow_app.py").write_text(SLOW)
    process = spawn("replay", "slow_app:bus", "slow", "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"at work\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Interrupted after" in out and out.count(b"at work") < 500
    assert shop("groups", "list").lines == ["billing"]

"""``eventbus replay``: a service's own handler over old records, in a group that is thrown away."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

SHOP = """
from eventbus import ConsumerRecord, EventBus, Transaction, consumer

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

@consumer("elsewhere", group="free", on_error="skip")
async def free(value: str) -> None:
    if value == "value 3":
        raise ValueError("three")
    seen.append(value)

def plain(record: ConsumerRecord) -> None:
    seen.append(record.value.decode())

def vague(value):
    pass

nothing = 5
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


def at(topic_offsets: Cli, when: str) -> int:
    """How many records of ``orders`` are older."""
    return sum(row["offset"] or 0 for row in topic_offsets("offsets", "orders", "--time", when, "--json").json)


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


def test_a_window_of_offsets_ends_before_its_last(shop: Cli) -> None:
    result = shop("replay", "shop_app:bus", "bill", "--from-offset", "1", "--to-offset", "2", "--json")
    counts = [row["count"] for row in shop("offsets", "orders", "--json").json]
    assert result.json["offsets"] == len(seen()) == sum(count > 1 for count in counts)


def test_a_window_of_times(shop: Cli) -> None:
    old, new = 1_000_000_000_000, 4_000_000_000_000
    assert at(shop, str(old)) == 0
    window = shop("replay", "shop_app:bus", "bill", "--from", str(old), "--to", "1h", "--json")
    assert (window.code, window.json["offsets"], seen()) == (0, 0, []), window.err
    assert shop("replay", "shop_app:bus", "bill", "--from", "1h", "--to", str(new), "--json").json["offsets"] == 6
    assert seen() == EVERYTHING


def test_a_window_inside_one_fetch_is_cut_there(shop: Cli) -> None:
    """Of a thousand records of a partition that come in one piece, those of the window."""
    shop("produce", "orders", "--partition", "0", stdin=b"".join(b"more %d\n" % number for number in range(1000)))
    first = next(row["count"] for row in shop("offsets", "orders", "--json").json if row["partition"] == 0)
    ends = ("--from-offset", str(first - 700), "--to-offset", str(first - 200))
    assert shop("replay", "shop_app:bus", "bill", *ends, "--json").json["offsets"] == 500
    assert seen() == sorted(f"more {number}" for number in range(300, 800))


def test_a_batch_handler_a_middleware_and_every_order_see_the_window_alone(shop: Cli, tmp_path: Path) -> None:
    shop("produce", "orders", "--partition", "0", stdin=b"x\n" * 1000)
    (tmp_path / "ways_app.py").write_text(WAYS)
    for handler in ("batch", "keys", "once", "blocking"):
        result = shop("replay", "ways_app:bus", handler, "--from-offset", "10", "--to-offset", "700", "--json")
        assert (result.code, result.json["offsets"]) == (0, 690), result.err
    ways = sys.modules.pop("ways_app")
    assert {name: (len(seen), min(seen), max(seen)) for name, seen in ways.seen.items()} == {
        name: (690, 10, 699) for name in ("batch", "keys", "once", "blocking", "around")
    } | {"around": (4 * 690, 10, 699)}


WAYS = """
from collections import defaultdict
from eventbus import ConsumerRecord, EventBus

seen: dict[str, list[int]] = defaultdict(list)

async def around(record, call_next):
    records = record if isinstance(record, list) else [record]
    seen["around"] += [one.offset for one in records]
    return await call_next(record)

bus = EventBus("file://./data", middleware=[around])

@bus.consumer("orders", group="a", batch=7)
async def batch(records: list[ConsumerRecord]) -> None:
    seen["batch"] += [one.offset for one in records]

@bus.consumer("orders", group="b", order="key", concurrency=5)
async def keys(record: ConsumerRecord) -> None:
    seen["keys"].append(record.offset)

@bus.consumer("orders", group="c", delivery="at-most-once")
async def once(record: ConsumerRecord) -> None:
    seen["once"].append(record.offset)

@bus.consumer("orders", group="d", ack="manual")
def blocking(record: ConsumerRecord) -> None:
    seen["blocking"].append(record.offset)
    record.ack()
"""


def test_a_topic_through_any_function(shop: Cli) -> None:
    shop("topics", "create", "others")
    shop("produce", "others", stdin=b"other\n")
    for function in ("plain", "free", "bill"):
        result = shop("replay", "others", "--from-beginning", "--handler", f"shop_app:{function}")
        assert (result.code, result.out) == (0, f"Replayed 1 record(s) through {function}.\n"), result.err
    assert seen() == ["other"] * 3
    assert shop("groups", "list").lines == ["billing"]


def test_a_topic_of_another_log(shop: Cli, tmp_path: Path) -> None:
    elsewhere = ("--url", "file://./elsewhere")
    shop("topics", "create", "orders", *elsewhere)
    shop("produce", "orders", *elsewhere, stdin=b"far away\n")
    assert shop("replay", "orders", "--from", "1h", "--handler", "shop_app:plain", *elsewhere).code == 0
    assert shop("replay", "shop_app:bus", "bill", "--from", "1h", *elsewhere).code == 0
    assert seen() == ["far away"] * 2
    assert shop("groups", "list").lines == ["billing"] and shop("groups", "list", *elsewhere).lines == []


def test_what_fails_is_passed_over_where_that_is_said(shop: Cli) -> None:
    shop("replay", "shop_app:bus", "bill", "--from-offset", "1000")
    sys.modules["shop_app"].seen.append("crash")
    result = shop("replay", "shop_app:bus", "bill", "--from-beginning", "--on-error", "skip")
    assert (result.code, result.out) == (
        0,
        "Replayed 6 record(s) through bill; 1 of them failed and were passed over.\n",
    )
    assert "still wrong" in result.err and "orders-" in result.err
    again = shop("replay", "orders", "--from", "earliest", "--handler", "shop_app:free", "--json")
    assert again.json["skipped"] == 1


def test_a_policys_retries_and_dead_letters_are_left_alone(shop: Cli, tmp_path: Path) -> None:
    (tmp_path / "policy_app.py").write_text(POLICY)
    before = shop("topics", "list").lines
    result = shop("replay", "policy_app:bus", "fail", "--from-beginning")
    sys.modules.pop("policy_app")
    assert result.code == 1 and "always" in result.err and "--on-error skip" in result.err
    assert shop("topics", "list").lines == before


POLICY = """
from dlq import Retry
from eventbus import EventBus

bus = EventBus("file://./data")

@bus.consumer("orders", group="g", retry=Retry(immediate=1, delays=["1s"]))
async def fail(value: str) -> None:
    raise ValueError("always")
"""


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


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("shop_app:bus", "bil", "--from-beginning"), 2, "did you mean 'bill'"),
    (("shop_app:bus", "--from-beginning"), 2, "which handler?; shop_app:bus has audit, bill, invoice, move"),
    (("shop_app:bus", "bill"), 2, "--from-beginning"),
    (("shop_app:bare", "bill", "--from-beginning"), 1, "has no handlers"),
    (("shop_app:memory", "--from-beginning"), 1, "empty in every new process"),
    (("shop_app:bus", "bill", "--from-datetime", "soon"), 2, "'soon' is no time"),
    (("shop_app:bus", "bill", "--from", "latest"), 2, "leaves nothing"),
    (("shop_app:bus", "bill", "--from", "1h", "--to", "earliest"), 2, "leaves nothing"),
    (("shop_app:bus", "bill", "--from", "1h", "--to", "2h"), 2, "--to is not behind --from"),
    (("shop_app:bus", "bill", "--from-offset", "5", "--to-offset", "5"), 2, "--to-offset 5 is not behind"),
    (("shop_app:bus", "bill", "--from", "1h", "--from-offset", "5"), 2, "not allowed with"),
    (("orders", "--from", "1h"), 2, "--handler module:function"),
    (("orders", "bill", "--from", "1h", "--handler", "shop_app:plain"), 2, "goes with a topic alone"),
    (("shop_app:bus", "--from", "1h", "--handler", "shop_app:plain"), 2, "goes with a topic alone"),
    (("orders", "--from", "1h", "--handler", "plain"), 2, "not of the form module:function"),
    (("orders", "--from", "1h", "--handler", "shop_app:plai"), 1, "did you mean 'plain'"),
    (("orders", "--from", "1h", "--handler", "shop_app:nothing"), 1, "no function 'nothing'"),
    (("orders", "--from", "1h", "--handler", "shop_app:vague"), 1, "has no annotation"),
    (("order", "--from", "1h", "--handler", "shop_app:plain"), 1, "did you mean 'orders'"),
]


def test_what_is_wrong_is_named(shop: Cli) -> None:
    for args, code, message in WRONG:
        result = shop("replay", *args)
        assert (result.code, message in result.err) == (code, True), (args, result.err)


SLOW = """
import anyio
from eventbus import EventBus

bus = EventBus("file://./data")

@bus.consumer("orders", group="billing", concurrency=1, order="partition")
async def slow(value: str) -> None:
    print("at work", flush=True)
    await anyio.sleep(0.05)
"""


@pytest.mark.system
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

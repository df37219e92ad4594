"""``eventbus topics skew``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventbus.cli.skew import Tally
from eventbus.types import ConsumerRecord, TimestampType

Cli = Callable[..., Any]

KEYED = ("--property", "parse.key=true", "--property", "key.separator=:", "--property", "null.marker=NULL")


def fill(cli: Cli, keys: list[str]) -> None:
    assert cli("topics", "create", "orders", "--partitions", "3").code == 0
    lines = "".join(f"{key}:x\n" for key in keys)
    assert cli("produce", "orders", *KEYED, stdin=lines.encode()).code == 0


def test_a_key_that_is_used_too_much_is_named_with_its_partition(cli: Cli) -> None:
    fill(cli, ["big"] * 50 + [f"k{number}" for number in range(10)])
    shown = cli("topics", "skew", "orders", "--json").json
    assert shown["keys"][0] == {"key": "big", "partition": shown["keys"][0]["partition"], "records": 50}
    [hot] = [share for share in shown["partitions"] if share["records"] >= 50]
    assert hot["partition"] == shown["keys"][0]["partition"] and hot["share"] > 80
    assert "is hot" in shown["verdict"] and "'big'" in shown["verdict"] and "add to the key" in shown["verdict"]
    text = cli("topics", "skew", "orders", "--top", "2")
    assert text.lines[0].split() == ["PARTITION", "RECORDS", "BYTES", "KEYS", "SHARE", "%"]
    assert len(text.lines) == 10 and text.lines[-1] == shown["verdict"]


def test_an_even_topic_is_called_even(cli: Cli) -> None:
    fill(cli, [f"k{number}" for number in range(300)])
    shown = cli("topics", "skew", "orders", "--json").json
    assert shown["records"] == 300 and shown["verdict"].startswith("even enough")


def test_a_hot_partition_without_a_heavy_key_blames_no_key(cli: Cli) -> None:
    assert cli("topics", "create", "orders", "--partitions", "3").code == 0
    cli("produce", "orders", "--partition", "1", stdin=b"x\n" * 30)
    shown = cli("topics", "skew", "orders")
    assert "30 record(s) without a key" in shown.out and "No single key is to blame" in shown.lines[-1]


def test_an_empty_and_an_unknown_topic(cli: Cli) -> None:
    fill(cli, [])
    assert cli("topics", "skew", "orders").lines[-1] == "there is nothing in it"
    result = cli("topics", "skew", "order")
    assert result.code == 1 and "did you mean 'orders'" in result.err


def record(key: bytes) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 0, 0, TimestampType.CREATE_TIME, key, b"x")


def test_a_hot_partition_of_many_light_keys_blames_none_of_them() -> None:
    tally = Tally(range(3))
    tally.add(record(b"key-%d" % number) for number in range(30))
    assert (
        tally.verdict().startswith("partition 0 is hot: 3.0 times") and "No single key is to blame" in tally.verdict()
    )
    tally.add(record(b"big") for _ in range(40))
    assert "Key 'big' is 57 % of it" in tally.verdict()

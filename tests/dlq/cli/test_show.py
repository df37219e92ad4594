"""``eventbus dlq show``: everything that a letter says."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from eventbus import EventBus, TopicPartition
from serdes import Avro
from tests.dlq.cli.conftest import TOPIC, Dlq, Result, Spawn, letter, write

ID = f"{TOPIC}/0/0"


def test_a_page(shop: Dlq) -> None:
    shown = shop("show", ID)
    assert shown.code == 0, shown.err
    case = shop("list", "--letters", ID, "--json").json[0]["case"]
    fields = dict(line.split(maxsplit=1) for line in shown.lines[1 : shown.lines.index("")])
    assert shown.lines[0] == ID
    assert fields["status"] == "open" and fields["case"] == f"{case}, 3 letters"
    assert fields["handler"] == "bill, group billing, service shop"
    assert fields["source"] == "orders/0/10" and fields["key"] == "k" and fields["reason"] == "exhausted"
    assert fields["tries"] == "5 calls, the first failed 10 min earlier" and fields["failed"].endswith("UTC, 3 h ago")
    assert fields["error"] == "ValueError: price is negative" and fields["at"].startswith("conftest.py:failed:")
    rest = shown.out.partition("\n\n")[2]
    assert rest.startswith("stack\n  Traceback (most recent call last):\n    File ")
    assert "\n\nheaders\n  tenant  acme\n\n" in rest
    assert rest.endswith('payload, JSON, 12 B\n  {\n    "cents": -5\n  }\n')
    assert f"eventbus dlq redrive {ID}" in shown.err


@pytest.mark.system
def test_the_newest_letter_of_a_case_or_of_a_filter(shop: Dlq) -> None:
    case = shop("list", "--error", "ValueError", "--handler", "bill", "--json").json[0]["case"]
    newest = shop("list", "--letters", case, "--json").json[-1]["id"]
    for which in ((case,), ("--case", case), ("--handler", "bill")):
        assert shop("show", *which).lines[0] in (newest, f"{TOPIC}/0/1")
    assert shop("show", "--handler", "nobody").code == 1


def test_as_json(shop: Dlq) -> None:
    found = shop("show", ID, "--json").json
    assert found["source"] == {"topic": "orders", "partition": 0, "offset": 10}
    assert found["headers"] == [{"name": "tenant", "value": "acme"}] and found["value"] == '{"cents":-5}'
    assert found["status"] == "open" and found["history"] == [] and "Traceback" in found["stack"]


def test_what_was_done_about_it_and_by_whom(shop: Dlq) -> None:
    assert shop("park", ID, "--note", "the supplier is asked").code == 0
    assert shop("resolve", ID, "--by", "bob", "--note", "written off").code == 0
    parked, resolved = (line for line in shop("show", ID).lines if line.split()[:1] in (["parked"], ["resolved"]))
    assert parked.split()[1:][2:4] == ["UTC", "by"] and parked.endswith(": the supplier is asked") and "ann@" in parked
    assert resolved.endswith("by bob: written off")
    assert [step["status"] for step in shop("show", ID, "--json").json["history"]] == ["parked", "resolved"]


def test_a_letter_that_is_not_there(shop: Dlq) -> None:
    for which, message in ((f"{TOPIC}/0/99", "there is no dead letter"), ("dlq.biling/0/1", f"did you mean '{TOPIC}'")):
        shown = shop("show", which)
        assert shown.code == 1 and message in shown.err


# payloads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b'{"a":[1,2]}', "JSON, 11 B", '  {\n    "a": [\n      1,\n      2\n    ]\n  }\n'),
        (b"two\nlines", "text, 9 B", "  two\n  lines\n"),
        (None, "null", "  null\n"),
        (b"", "empty", ""),
        (b'\0\0\0\0\7{"a":1}', "JSON, schema 7, 12 B", '  {\n    "a": 1\n  }\n'),
        (b"\x80\x81", "bytes, 2 B", f"  00000000  80 81{'':18}  {'':23}  |..|\n"),
    ],
)
def test_payloads(dlq: Dlq, value: bytes | None, kind: str, text: str) -> None:
    [id] = write(letter(0, ValueError("x"), value=value))
    shown = dlq("show", id)
    assert shown.out.partition("payload, ")[2].startswith(f"{kind}\n{text}"), shown.out


def test_a_long_payload_is_cut_unless_all_of_it_is_wanted(dlq: Dlq) -> None:
    [id] = write(letter(0, ValueError("x"), value=b"x" * 50_000))
    shown = dlq("show", id).out
    assert len(shown) < 25_000 and "... and 30,000 more: --full" in shown
    assert "x" * 50_000 in dlq("show", id, "--full").out


@pytest.mark.system
def test_the_payload_alone_byte_for_byte(dlq: Dlq, spawn: Spawn) -> None:
    value = bytes(range(256))
    [id] = write(letter(0, ValueError("x"), value=value))
    assert spawn("dlq", "show", id, "--payload").communicate(timeout=60) == (value, b"")


async def _orders() -> None:
    async with EventBus("file://./data") as bus:
        await bus.admin.create_topic("orders", 2)
        await bus.send("orders", b"the whole order", partition=0)


def test_a_payload_that_stands_where_it_came_from(dlq: Dlq) -> None:
    anyio.run(_orders)
    here, gone = write(
        letter(0, ValueError("x"), value=b"y" * 5_000, key=None, max_bytes=3_000),
        letter(8, ValueError("x"), value=b"y" * 5_000, key=None, max_bytes=3_000),
    )
    assert dlq("show", here).out.endswith("payload, text, 15 B\n  the whole order\n")
    shown = dlq("show", gone)
    assert shown.code == 0 and "no longer holds offset 8" in shown.out
    raw = dlq("show", gone, "--payload")
    assert raw.code == 1 and "no longer holds offset 8" in raw.err
    exported = [one.get("value") for one in map(msgspec.json.decode, dlq("export").lines)]
    assert exported == ["the whole order", None]


# schemas --------------------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    sku: str
    cents: int


async def _framed() -> bytes:
    """An order in Avro, its schema in the log."""
    async with EventBus("file://./data", serde=Avro("log")) as bus:
        await bus.admin.create_topic("orders", 2)
        sent = await bus.send("orders", Order("A-1", -5), partition=0)
        async with bus.new_consumer(partitions=[TopicPartition(sent.topic, sent.partition)]) as consumer:
            return (await consumer.poll())[0].value


@pytest.fixture
def framed(dlq: Dlq) -> bytes:
    return anyio.run(_framed)


def pages(shown: Result) -> str:
    assert shown.code == 0, shown.err
    return shown.out.partition("payload, ")[2]


@pytest.mark.system
def test_a_payload_is_read_by_the_schema_it_names(dlq: Dlq, framed: bytes) -> None:
    [id, odd] = write(
        letter(0, ValueError("x"), value=framed), letter(1, ValueError("x"), value=framed[:4] + b"\x63" + framed[5:])
    )
    expected = f'through its schema, {len(framed)} B\n  {{\n    "sku": "A-1",\n    "cents": -5\n  }}\n'
    assert pages(dlq("show", id)) == pages(dlq("show", id, "--schema", "log")) == expected
    assert dlq("show", id, "--json").json["decoded"] == {"sku": "A-1", "cents": -5}
    assert "it cannot be read: schema id 99" in pages(dlq("show", odd))

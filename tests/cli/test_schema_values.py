"""``--schema``: the console's records in Avro."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import fastavro
import msgspec
import pytest

from eventbus import EventBus
from schema_registry.client import RegistryClient
from serdes import Avro

pytestmark = pytest.mark.system

Cli = Callable[..., Any]


class Flight(msgspec.Struct):
    carrier: str
    number: int
    gate: str | None = None


@pytest.fixture
async def flights(cli: Cli) -> Cli:
    """A log in ./data with a topic ``flights``: a flight, something else, a deletion, a flight."""
    async with EventBus("file://./data", serde=Avro("log")) as bus:
        bus.topic("flights")
        await bus.admin.create_topic("flights")
        await bus.send("flights", Flight("BA", 2), key="BA")
        await bus.send("flights", b"junk", key="?")
        await bus.send("flights", None, key="LH")
        await bus.send("flights", Flight("BA", 4, "B7"), key="BA")
    return cli


def read(cli: Cli, *options: str) -> Any:
    return cli("consume", "flights", "--from-beginning", "--timeout-ms", "50", *options)


def test_values_are_printed_as_json(flights: Cli) -> None:
    shown = read(flights, "--schema", "log", "--skip-message-on-error", "--property", "print.key=true")
    assert shown.code == 0
    assert shown.lines == [
        'BA\t{"carrier":"BA","number":2,"gate":null}',
        "LH\tnull",
        'BA\t{"carrier":"BA","number":4,"gate":"B7"}',
    ]


def test_what_is_no_avro_is_named_after_what_is_before_it(flights: Cli) -> None:
    shown = read(flights, "--schema", "log", "--group", "g")
    assert shown.code == 1
    assert shown.lines == ['{"carrier":"BA","number":2,"gate":null}']
    assert "flights-0 offset 1: the message begins with the byte 0x6a" in shown.err
    assert "--skip-message-on-error" in shown.err
    again = read(flights, "--schema", "log", "--group", "g")
    assert (again.code, again.out) == (1, "")  # what was printed is committed, and no more


def test_a_registry_that_is_away_passes_nothing_over(flights: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schema_registry.client.open_client", lambda url: RegistryClient(url, timeout=0.05))
    shown = read(flights, "--schema", "http://127.0.0.1:1", "--skip-message-on-error")
    assert shown.code == 1
    assert "the schema registry did not answer" in shown.err


def test_lines_of_json_are_written_in_the_latest_schema(flights: Cli) -> None:
    lines = b'{"carrier":"AF","number":7}\n{"carrier":"AF","number":8,"gate":"A1"}\n'
    assert flights("produce", "flights", "--schema", "log", stdin=lines).err == "2 records to flights\n"
    shown = read(flights, "--schema", "log", "--skip-message-on-error")
    assert shown.lines[-2:] == [
        '{"carrier":"AF","number":7,"gate":null}',
        '{"carrier":"AF","number":8,"gate":"A1"}',
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"carrier":"AF","number":"x"}\n', "line 1: schema id 1 (subject flights-value): field number: 'x' is str"),
        (b"AF 7\n", "line 1: JSON is malformed"),
    ],
)
def test_a_line_that_does_not_fit_is_named(flights: Cli, line: bytes, why: str) -> None:
    refused = flights("produce", "flights", "--schema", "log", stdin=line)
    assert refused.code == 1
    assert why in refused.err


def test_keys_too(cli: Cli) -> None:
    assert cli("topics", "create", "places").code == 0
    assert cli("schema", "register", "places-key", "-", stdin=b'"string"').code == 0
    assert cli("schema", "register", "places-value", "-", stdin=b'"long"').code == 0
    options = ("--schema", "log", "--key-schema", "log", "--property", "parse.key=true")
    assert cli("produce", "places", *options, stdin=b'"Oslo"\t42\n').err == "1 record to places\n"
    shown = cli("consume", "places", "--from-beginning", "--max-messages", "1", "--schema", "log",
                "--key-schema", "log", "--property", "print.key=true")  # fmt: skip
    assert shown.lines == ['"Oslo"\t42']


def test_a_registry_that_nothing_opens_is_refused(flights: Cli) -> None:
    refused = read(flights, "--schema", "ftp://x")
    assert refused.code == 2
    assert "--schema: registry='ftp://x': nothing opens 'ftp'" in refused.err


def test_values_go_to_an_avro_file_and_come_from_one(flights: Cli) -> None:
    shown = read(flights, "--schema", "log", "--skip-message-on-error", "--output", "flights.avro", "--group", "g")
    assert (shown.code, shown.out) == (0, "")
    assert "1 tombstone" in shown.err
    with Path("flights.avro").open("rb") as file:
        assert [*fastavro.reader(file)] == [
            {"carrier": "BA", "number": 2, "gate": None},
            {"carrier": "BA", "number": 4, "gate": "B7"},
        ]
    assert flights("topics", "create", "copies").code == 0
    sent = flights("produce", "copies", "--schema", "log", "--input", "flights.avro", "--key", "k")
    assert sent.err == "2 records to copies\n"
    copies = flights("consume", "copies", "--from-beginning", "--timeout-ms", "50", "--schema", "log")
    assert copies.lines[1] == '{"carrier":"BA","number":4,"gate":"B7"}'
    again = read(flights, "--schema", "log", "--output", "flights.avro")
    assert (again.code, "the file exists" in again.err) == (2, True)


def test_a_value_of_an_older_schema_keeps_its_branch_of_a_union_in_a_file(cli: Cli) -> None:
    """Its fields alone do not tell A from B."""
    records = [{"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]} for name in "AB"]
    event: dict[str, Any] = {"type": "record", "name": "Event", "fields": [{"name": "of", "type": ["null", *records]}]}
    later = {**event, "fields": [*event["fields"], {"name": "n", "type": "int", "default": 7}]}
    assert cli("topics", "create", "events").code == 0

    async def send(schema: dict[str, Any]) -> None:
        async with EventBus("file://./data", serde=Avro("log", schema=schema)) as bus:
            await bus.send("events", {"of": ("B", {"x": 1}), "n": 7})

    for schema in (event, later):
        anyio.run(send, schema)
    options = ("--from-beginning", "--timeout-ms", "50", "--schema", "log", "--output", "e.avro")
    assert cli("consume", "events", *options).code == 0
    with Path("e.avro").open("rb") as file:
        assert [*fastavro.reader(file, return_record_name=True)] == [{"of": ("B", {"x": 1}), "n": 7}] * 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("consume", "flights", "--output", "x.avro"), "Give TOPIC, --schema and FILE.avro"),
        (("consume", "flights", "--schema", "log", "--output", "x.json"), "Give TOPIC, --schema and FILE.avro"),
        (("produce", "flights", "--input", "x.avro"), "Give --schema REGISTRY"),
        (("produce", "flights", "--schema", "log", "--input", "x.avro"), "No such file"),
        (("produce", "flights", "--schema", "log", "--input", "text.avro"), "not an Avro object container file"),
    ],
)
def test_files_that_cannot_be_written_or_read_are_refused(flights: Cli, options: tuple[str, ...], why: str) -> None:
    Path("text.avro").write_text("a,b,c", "utf-8")
    refused = flights(*options)
    assert refused.code == 2
    assert why in refused.err

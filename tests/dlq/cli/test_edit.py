"""``eventbus dlq edit``: a letter with another content."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from eventbus import EventBus, TopicPartition
from serdes import Avro
from tests.dlq.cli.conftest import RETRY_TOPIC, TOPIC, Cli, Dlq, letter, write

pytestmark = pytest.mark.system

ID = f"{TOPIC}/0/0"


def sent(cli: Cli, topic: str = RETRY_TOPIC) -> list[dict[str, object]]:
    lines = cli("consume", topic, "--from-beginning", "--timeout-ms", "50", "--json").lines
    return [json.loads(line) for line in lines]


def headers_of(record: dict[str, object]) -> dict[str, str]:
    headers = msgspec.convert(record["headers"], list[dict[str, str]])
    return {one["name"]: one["value"] for one in headers}


def test_a_new_payload_shows_what_changes_asks_and_is_linked_to_the_letter(shop: Dlq, cli: Cli) -> None:
    change = ("--value", '{"cents":5}', "--header", "tenant=other", "--header", "mended=1")
    refused = shop("edit", ID, *change, stdin=b"n\n")
    assert refused.code == 1 and sent(cli) == []
    assert [line for line in refused.lines if line.strip()[:1] in "+-"] == [
        "  -tenant: acme", "  +mended: 1", "  +tenant: other", '  -  "cents": -5', '  +  "cents": 5',
    ]  # fmt: skip
    assert "Send it? (y/n)" in refused.err
    result = shop("edit", ID, *change, "--note", "typo", stdin=b"y\n")
    assert result.code == 0 and result.lines[-1].startswith(f"sent as {RETRY_TOPIC}/0/0; "), result.err
    [record] = sent(cli)
    assert record["value"] == '{"cents":5}' and record["key"] == "k"
    headers = headers_of(record)
    assert json.loads(headers["eb-redrive-of"]) == [TOPIC, 0, 0] and headers["eb-redrive-edited"] == "1"
    assert headers["tenant"] == "other" and headers["mended"] == "1"
    assert any(line.split()[:1] == ["edited"] and line.endswith(": typo") for line in shop("show", ID).lines)
    assert shop("show", ID, "--json").json["value"] == '{"cents":-5}', "the letter stays"
    again = shop("edit", ID, "--value", "x", "--yes")
    assert again.code == 1 and "edited" in again.err


def test_a_file_a_key_and_no_header(shop: Dlq, cli: Cli, tmp_path: Path) -> None:
    data = bytes(range(256))
    (tmp_path / "new.bin").write_bytes(data)
    assert shop("edit", ID, "--value-file", "new.bin", "--key", "other", "--no-header", "tenant", "--yes").code == 0
    [record] = sent(cli)
    assert record["key"] == "other" and "tenant" not in headers_of(record) and "value_base64" in record
    missing = shop("edit", ID, "--value-file", "nowhere", "--yes")
    assert missing.code == 2 and "--value-file nowhere: No such file" in missing.err


def test_a_tombstone_to_another_topic_and_stdin(shop: Dlq, cli: Cli) -> None:
    assert shop("edit", ID, "--tombstone", "--to", "payments", "--yes", "--json").json["sent"].startswith("payments/")
    assert shop("edit", f"{TOPIC}/0/1", "--value-file", "-", "--to", "payments", "--yes", stdin=b"from stdin").code == 0
    assert [one["value"] for one in sent(cli, "payments")] == [None, "from stdin"]


def test_without_a_change_nothing_is_sent(shop: Dlq, cli: Cli) -> None:
    result = shop("edit", ID, "--value", '{"cents":-5}', "--yes")
    assert result.code == 0 and "nothing is changed" in result.err and sent(cli) == []


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--header", "tenant"), 2, "not of the form name=value"),
        (("--no-header", "tenan"), 2, "none of that name, but tenant"),
        (("--value", "x", "--to", "payment"), 1, "did you mean 'payments'"),
        (("--value", "x", "--json"), 2, "asks for no confirmation"),
    ],
)
def test_what_is_wrong_is_named(shop: Dlq, args: tuple[str, ...], code: int, message: str) -> None:
    result = shop("edit", ID, *args)
    assert (result.code, message in result.err) == (code, True), result.err


# an editor ------------------------------------------------------------------------------------------------------------

EDITOR = """
import pathlib, sys
path = pathlib.Path(sys.argv[-1])
text = path.read_text()
assert text == '{\\n  "cents": -5\\n}', text
path.write_text(%s)
"""


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "my editor.py"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{sys.executable}' '{script}'")
    return script


@pytest.mark.system
def test_an_editor_gets_json_in_lines_and_it_is_sent_in_one(shop: Dlq, cli: Cli, editor: Path) -> None:
    editor.write_text(EDITOR % 'text.replace("-5", "5") + "\\n"')
    assert shop("edit", ID, "--editor", "--yes").code == 0
    assert sent(cli)[0]["value"] == '{"cents":5}'


@pytest.mark.system
def test_an_editor_that_changes_nothing_breaks_it_fails_or_is_not_there(
    shop: Dlq, cli: Cli, editor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor.write_text(EDITOR % 'text + "\\n"')
    assert "nothing is changed" in shop("edit", ID, "--editor").err
    editor.write_text(EDITOR % 'text + "}"')
    assert "not JSON any more" in shop("edit", ID, "--editor").err
    editor.write_text("raise SystemExit(3)")
    assert "exit code 3: nothing is sent" in shop("edit", ID, "--editor").err
    [binary] = write(letter(30, ValueError("x"), value=b"\xff\x00"))
    assert "is not text (bytes)" in shop("edit", binary, "--editor").err
    monkeypatch.setenv("EDITOR", "no-such-editor")
    assert "cannot be run" in shop("edit", ID, "--editor").err
    assert sent(cli) == []


# schemas --------------------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    sku: str
    cents: int


async def _framed() -> bytes:
    async with EventBus("file://./data", serde=Avro("log")) as bus:
        await bus.admin.create_topic("prices", 2)
        sent = await bus.send("prices", Order("A-1", -5), partition=0)
        where = TopicPartition(sent.topic, sent.partition)
        async with bus.new_consumer(partitions=[where], start="earliest") as consumer:
            return (await consumer.poll())[0].value


def test_a_payload_of_a_schema_is_edited_as_json_and_written_in_it(dlq: Dlq, cli: Cli) -> None:
    framed = anyio.run(_framed)
    [id] = write(letter(0, ValueError("x"), value=framed, source="prices"))
    wrong = dlq("edit", id, "--value", '{"sku":"A-1","cents":"five"}', "--yes")
    assert wrong.code == 1 and "does not fit the latest schema of 'prices'" in wrong.err
    assert dlq("edit", id, "--value", '{"sku":"A-1","cents":5}', "--whole-topic", "--yes").code == 0
    read = cli("consume", "prices", "--from-beginning", "--timeout-ms", "50", "--schema", "log").lines
    assert read == ['{"sku":"A-1","cents":-5}', '{"sku":"A-1","cents":5}']

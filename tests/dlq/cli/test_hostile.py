"""Dead letters may contain anything, but none of it reaches a terminal as a command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import cycle

import anyio
import pytest

from dlq import headers as names
from eventbus import EventBus, Record
from tests.dlq.cli.conftest import FORBIDDEN, TOPIC, Dlq, Letter, OnTerminal

pytestmark = pytest.mark.system

SEEDS = [
    b"\x1b[31mred\x1b[0m", b"\x1b[2J\x1b[H", b"\x1b]0;title\x07", b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    b"\x1bP+q544e\x1b\\", b"\x1b_gone\x1b\\", b"\x1b^private\x1b\\", b"\x1bc", b"\x1b(0", b"\x1b[6n", b"\x1b[?1049h",
    b"\x1b]52;c;ZXZpbA==\x07", b"\x9b31m", b"\xc2\x9b31m", b"\xc2\x9d0;t\xc2\x9c", b"\xc2\x85next", b"\xc2\x90q",
    b"\x00\x00", b"a\x00b", b"\x07\x07", b"\x08\x08\x08", b"over\rwritten", b"\x0b\x0c", b"\x0e\x0f", b"\x7f\x7f",
    "\u202egnp.exe".encode(), "\u2066a\u2069".encode(), "\u200e\u200f".encode(), "\u2028line\u2029".encode(),
    "\u200b\ufeff".encode(), b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xff\xfe\xfd", b"\xf8\x88\x80\x80\x80", b"\xc0\x9b",
    b'{"a":"\\u001b[31m","b":"\\u202e"}', b'{"\x1b[1m":1}', b'"\\ud800"', b"[" * 500 + b"]" * 500, b"{" * 50,
    b"[bold]markup[/bold]", b"[link=http://evil]x[/link]", b":skull:", b"%s%n{}", b"=HYPERLINK(1)", b"@SUM(1)",
    b"dlq.billing/0/0\n  status    resolved\n", b"\n\n\nerror: all is well\n", b"-" * 3 + b"\n+++\n@@\n",
    b"\x00\x00\x00\x00\x07\x1b[31m", b"\x01" + bytes(range(16)) + b"\x1b[31m",
    b"\x00\x00\x00\x00\x07{\"a\":\"\xc2\x9b\"}",
]  # fmt: skip
BOMBS = [b"x" * 5_000_000, b"\x1b[31m" * 200_000, b"\x00" * 1_000_000, b'{"a":"' + b"\xc2\x9b" * 500_000 + b'"}']


def hostile() -> Iterator[bytes]:
    """Yield each seed alone, after other text, repeated, and within a word."""
    for way in (b"#", b"text before #", b"###", b"in#side"):
        yield from (way.replace(b"#", seed) for seed in SEEDS)


def evil_letters(payloads: Iterable[bytes]) -> list[Letter]:
    """Letters with these payloads, each with other hostile bytes in every place where a letter has some."""
    texts = cycle(EVERY_PAYLOAD[7 : -len(BOMBS)] + EVERY_PAYLOAD[:7])
    return [evil_letter(payload, texts) for payload in payloads]


def evil_letter(payload: bytes, texts: Iterator[bytes]) -> Letter:
    def text() -> bytes:
        return next(texts)

    def name() -> str:
        return text().decode("utf-8", "replace")

    headers = [
        (name(), text()), ("", b""), (name(), None), ("trace", payload[:100_000]),
        (names.TOPIC, b"orders"), (names.PARTITION, b"0"), (names.OFFSET, b"1"), (names.GROUP, text()),
        (names.DELIVERY_COUNT, b"3"), (names.MESSAGE, text()), (names.ERROR_CLASS, text()), (names.STACK, text()),
        (names.TOP_FRAME, text()), (names.FIRST_FAILED, b"9" * 18), (names.LAST_FAILED, b"9" * 14),
        (names.HANDLER, text()), (names.SERVICE, text()), (names.REASON, text()),
    ]  # fmt: skip
    return TOPIC, 0, Record(text(), payload, tuple(headers))


async def fill(letters: list[Letter]) -> None:
    async with EventBus("file://./data", max_request_size=20_000_000) as bus:
        await bus.admin.create_topic("orders")
        await bus.admin.create_topic(TOPIC, configs={"max.message.bytes": 20_000_000})
        for topic, partition, record in letters:
            bus.send_nowait(topic, record.value, key=record.key, headers=record.headers, partition=partition)
        await bus.flush()


EVERY_PAYLOAD = [*hostile(), *BOMBS]
FEW_PAYLOADS = [*EVERY_PAYLOAD[::5], BOMBS[1]]
"""They contain most seeds, each in one of the four ways; the other places of their letters contain all of them."""
PAYLOADS = pytest.mark.parametrize(
    "payloads", [FEW_PAYLOADS, pytest.param(EVERY_PAYLOAD, marks=pytest.mark.slow)], ids=["few", "every"]
)


@PAYLOADS
def test_no_letter_commands_a_terminal(on_terminal: OnTerminal, dlq: Dlq, payloads: list[bytes]) -> None:
    letters = evil_letters(payloads)
    anyio.run(fill, letters)
    everything = len(letters)
    assert len(json.loads(on_terminal("list", "--letters", "--limit", "1000", "--json").out)) == everything
    assert on_terminal("list", "--letters", "--limit", "1000").out.count(f"{TOPIC}/0/") >= everything
    assert on_terminal("list").code == on_terminal("list", "--json").code == on_terminal("stats").code == 0
    exported = on_terminal("export")
    assert [json.loads(line)["id"] for line in exported.out.splitlines()] == [
        f"{TOPIC}/0/{offset}" for offset in range(everything)
    ]
    assert on_terminal("export", "--format", "csv").out.count("\n") == everything + 1
    into_a_file = dlq("export", "--format", "csv").out
    assert FORBIDDEN.search(into_a_file) is None and not re.search('(^|,|")[=@+-]', into_a_file.partition("\n")[2])


@PAYLOADS
def test_no_page_of_a_letter_commands_a_terminal(on_terminal: OnTerminal, payloads: list[bytes]) -> None:
    chosen = evil_letters(payloads)
    anyio.run(fill, chosen)
    for offset in range(len(chosen)):
        shown = on_terminal("show", f"{TOPIC}/0/{offset}")
        assert shown.code == 0 and len(shown.out) < 200_000
        at_the_edge = [line for line in shown.out.splitlines() if line and not line.startswith(" ")]
        assert at_the_edge[0] == f"{TOPIC}/0/{offset}"
        assert {line.partition(",")[0] for line in at_the_edge[1:]} <= {"stack", "headers", "payload"}
    for offset in range(0, len(chosen), 5):
        assert on_terminal("show", f"{TOPIC}/0/{offset}", "--payload").code == 0
        assert on_terminal("show", f"{TOPIC}/0/{offset}", "--json", "--full").code == 0


def test_nor_does_what_is_done_about_it(on_terminal: OnTerminal) -> None:
    letters = evil_letters(EVERY_PAYLOAD[:12])
    anyio.run(fill, letters)
    evil = "\x1b[31m\x9b1m\u202e"
    edits = ("--value", f"new {evil}", "--header", f"{evil}=1", "--key", evil, "--note", evil, "--by", evil)
    assert on_terminal("edit", f"{TOPIC}/0/0", "--whole-topic", *edits, answer="y\n").code == 0
    assert on_terminal("edit", f"{TOPIC}/0/1", "--no-header", evil).code == 2
    assert on_terminal("park", f"{TOPIC}/0/1", "--note", evil, "--by", evil).code == 0
    assert evil[0] not in on_terminal("show", f"{TOPIC}/0/1").out
    assert on_terminal("redrive", TOPIC, "--to", evil).code == 1
    assert on_terminal("redrive", TOPIC, "--dry-run").code == 0
    for options in ((), ("--whole-topic",)):
        assert on_terminal("redrive", TOPIC, *options, "--yes", "--by", evil, "--note", evil).code == 0
    assert on_terminal("resolve", "--all", "--status", "all", answer="y\n").code == 0
    for no_text in ("--note", "--by", "--contains", "--handler"):
        assert on_terminal("park", TOPIC, no_text, "\udcff").code == 0, "a byte of the shell's that is no UTF-8"
    assert on_terminal("edit", f"{TOPIC}/0/2", "--header", "\udcff=1").code == 2
    assert on_terminal("list", evil).code == on_terminal("show", evil).code == 1
    assert on_terminal("list", "--contains", evil, "--handler", evil, "--error", evil).code == 0

"""Run ``eventbus dlq ...`` in this process, on a log with dead letters."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from dlq.headers import Cause, dead_letter_record
from eventbus import ConsumerRecord, EventBus, Record, TimestampType
from eventbus.cli import main
from tests.cli.conftest import Cli, Result, Spawn, cli, spawn

__all__ = ["RETRY_TOPIC", "Cli", "Dlq", "Letter", "OnTerminal", "Spawn", "cli", "letter", "spawn", "write"]

HOUR_MS = 3_600_000
TOPIC = "dlq.billing"
RETRY_TOPIC = "retry.billing"
Dlq = Callable[..., Result]
Letter = tuple[str, int, Record]
"""Topic, partition and record of a dead letter."""


def failed(error: Exception) -> Exception:
    """Return the error with a stack, as if a handler had raised it."""
    try:
        raise error
    except Exception as raised:
        return raised


def letter(
    offset: int,
    error: Exception,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b'{"cents":-5}',
    headers: Sequence[tuple[str, bytes | None]] = (("tenant", b"acme"),),
    handler: str = "bill",
    hours_ago: float = 1.0,
    topic: str = TOPIC,
    reason: str = "exhausted",
    source: str = "orders",
    max_bytes: int = 1_000_000,
) -> Letter:
    """Return the dead letter of a record of ``source`` whose handler raised ``error``."""
    now_ms = round(time.time() * 1000 - hours_ago * HOUR_MS)
    record = ConsumerRecord(source, offset % 2, offset, now_ms, TimestampType.CREATE_TIME, key, value, tuple(headers))
    cause = Cause(
        error=failed(error), reason=reason, group="billing", handler=handler, service="shop", attempts=5,
        first_failed_ms=now_ms - 600_000, now_ms=now_ms, retry_topic=RETRY_TOPIC,
    )  # fmt: skip
    return topic, offset % 2, dead_letter_record(record, cause, max_bytes=max_bytes)


def write(*letters: Letter) -> list[str]:
    """Write letters to ./data and return their ids."""
    return anyio.run(_write, letters)


async def _write(letters: Sequence[Letter]) -> list[str]:
    async with EventBus("file://./data", num_partitions=2, auto_create_topics=True) as bus:
        sent = [
            await bus.send(topic, record.value, key=record.key, headers=record.headers, partition=partition)
            for topic, partition, record in letters
        ]
    return [f"{one.topic}/{one.partition}/{one.offset}" for one in sent]


@pytest.fixture
def dlq(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dlq:
    """``dlq("list")`` runs ``eventbus dlq list`` as the user ann."""
    monkeypatch.delenv("EVENTBUS_REGISTRY", raising=False)
    monkeypatch.setattr("getpass.getuser", lambda: "ann")

    def run(*args: str, **options: Any) -> Result:
        return cli("dlq", *args, **options)

    return run


@pytest.fixture
def shop(dlq: Dlq, cli: Cli) -> Dlq:
    """A log with orders, payments and retries. Three dead letters form a case; two more differ in error or handler."""
    for topic in ("orders", "payments", RETRY_TOPIC):
        assert cli("topics", "create", topic, "--partitions", "2").code == 0
    write(
        letter(10, ValueError("price is negative"), hours_ago=3),
        letter(11, ValueError("price is negative"), hours_ago=2),
        letter(12, ValueError("price is zero"), hours_ago=1),
        letter(13, KeyError("customer"), value=b"plain text", hours_ago=5),
        letter(14, ValueError("late"), handler="ship", source="payments", hours_ago=0.1),
    )
    return dlq


STYLE = re.compile(r"\x1b\[[0-9;]*m")
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


OnTerminal = Callable[..., Result]


@pytest.fixture
def on_terminal(dlq: Dlq, monkeypatch: pytest.MonkeyPatch) -> OnTerminal:
    """Run a command, and check that its output contains no characters that control a terminal.

    The terminal is dumb, so that the command itself prints no escape sequences. With ``columns`` it has that width, and
    styles are removed before the check.
    """

    def run(*args: str, answer: str = "", columns: int | None = None) -> Result:
        out, err = Terminal(), Terminal()
        with monkeypatch.context() as patched:
            patched.setenv("TERM", "dumb" if columns is None else "xterm")
            patched.setenv("COLUMNS", str(columns or 80))
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            patched.setattr(sys, "stdin", io.StringIO(answer))
            code = main(["dlq", *args])
        texts = [out.getvalue(), err.getvalue()]
        if columns is not None:
            texts = [STYLE.sub("", text) for text in texts]
        for text in texts:
            found = FORBIDDEN.search(text)
            assert found is None, (args, text[max(found.start() - 80, 0) : found.end() + 20])
        assert "this should not happen" not in err.getvalue(), err.getvalue()
        return Result(code, *texts)

    return run

"""Log lines within handlers say which record they are about."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
import structlog

from eventbus import EventBus
from eventbus.errors import ConfigError
from eventbus.telemetry import JsonLogs, Tracing, bind_logs, bind_record, configure_logging
from eventbus.telemetry.logs import TextLogs, bound

pytestmark = pytest.mark.system

logger = logging.getLogger("shop")


@pytest.fixture
def lines() -> Generator[io.StringIO]:
    """What logging writes as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLogs())
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield stream
    logger.removeHandler(handler)


def written(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("url", ["memory://", "file://"])
async def test_a_handlers_lines_name_its_record(bus_url: str, lines: io.StringIO) -> None:
    bus = EventBus(bus_url)
    bus.topic("orders", partitions=2)

    @bus.consumer("orders", group="billing")
    async def bill(value: bytes) -> None:
        logger.info("billed %s", value.decode(), extra={"amount": 5})

    async with bus:
        await bus.send("orders", b"a", key=b"k1", partition=1)
        await bus.send("orders", b"b", key=b"k2", partition=1)
        await bus.drain()
        logger.info("outside")
    first, second, outside = written(lines)
    place = {"topic": "orders", "partition": 1, "group": "billing", "handler": "bill", "amount": 5}
    assert first | place | {"offset": 0, "key": "k1", "message": "billed a"} == first
    assert second | place | {"offset": 1, "key": "k2", "message": "billed b"} == second
    assert first["level"] == "info" and first["logger"] == "shop" and str(first["time"]).endswith("Z")
    assert "topic" not in outside


@pytest.fixture
def bus_url(url: str, tmp_path: object) -> str:
    return url if url == "memory://" else f"{url}{tmp_path}"


@pytest.mark.parametrize("order", ["key", "none", "partition"])
async def test_lines_of_workers_and_threads_name_the_record_at_work(order: str, lines: io.StringIO) -> None:
    bus = EventBus("memory://")
    bus.topic("orders", partitions=1)

    @bus.consumer("orders", group="threads", order=order, concurrency=2)
    def bill(value: bytes) -> None:
        logger.info(value.decode())

    @bus.consumer("orders", group="tasks", order=order, concurrency=2)
    async def ship(value: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        logger.info(value.decode())

    async with bus:
        for number in range(20):
            await bus.send("orders", b"%d" % number, key=b"%d" % (number % 5))
        await bus.drain()
    found = written(lines)
    assert len(found) == 40
    assert all(line["offset"] == int(str(line["message"])) for line in found)
    assert {(line["handler"], line["group"]) for line in found} == {("bill", "threads"), ("ship", "tasks")}


def test_lines_name_their_record_under_trio_too(lines: io.StringIO, tmp_path: Path) -> None:
    async def main() -> None:
        bus = EventBus(f"file://{tmp_path}")
        bus.topic("orders", partitions=1)

        @bus.consumer("orders", group="threads")
        def bill(value: bytes) -> None:
            logger.info(value.decode())

        @bus.consumer("orders", group="tasks")
        async def ship(value: bytes) -> None:
            await anyio.lowlevel.checkpoint()
            logger.info(value.decode())

        async with bus:
            for number in range(5):
                await bus.send("orders", b"%d" % number)
            await bus.drain()

    anyio.run(main, backend="trio")
    found = written(lines)
    assert len(found) == 10 and all(line["offset"] == int(str(line["message"])) for line in found)


async def test_a_task_that_a_handler_has_begun_may_outlive_its_record_and_names_none(lines: io.StringIO) -> None:
    goes_on, is_over = anyio.Event(), anyio.Event()

    async def later() -> None:
        await goes_on.wait()
        logger.info("later")
        is_over.set()

    bus = EventBus("memory://")
    bus.topic("orders")
    async with anyio.create_task_group() as tasks:

        @bus.consumer("orders", group="g")
        async def handle(value: bytes) -> None:
            if value == b"a":
                tasks.start_soon(later)
            else:
                goes_on.set()
                await is_over.wait()

        async with bus:
            await bus.send("orders", b"a")
            await bus.send("orders", b"b")
            await bus.drain()
    (line,) = written(lines)
    assert line["handler"] == "handle" and line["topic"] == "orders" and "offset" not in line and "key" not in line


async def test_lines_name_the_trace_while_it_is_recorded(lines: io.StringIO) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    bus = EventBus("memory://")
    bus.topic("orders")
    bus.include(Tracing(TracerProvider()))

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None:
        logger.info("here")

    async with bus:
        await bus.send("orders", b"a")
        await bus.drain()
    (line,) = written(lines)
    assert len(str(line["trace_id"])) == 32 and len(str(line["span_id"])) == 16


async def test_an_error_and_what_is_no_json_are_written_all_the_same(lines: io.StringIO) -> None:
    try:
        raise ValueError("no stock")
    except ValueError:
        logger.exception("failed", extra={"where": object})
    (line,) = written(lines)
    assert "ValueError: no stock" in str(line["exception"]) and line["where"] == str(object)


async def test_a_formatter_of_ones_own_uses_the_fields() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(topic)s/%(offset)s %(message)s"))
    bind_logs(handler)
    bind_logs(handler)
    assert len(handler.filters) == 1
    logger.addHandler(handler)
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None:
        logger.warning("here")

    async with bus:
        await bus.send("orders", b"a")
        await bus.drain()
        logger.warning("outside")
    logger.removeHandler(handler)
    assert stream.getvalue() == "orders/0 here\n/ outside\n"


async def test_what_a_filter_has_found_is_written_as_json_elsewhere() -> None:
    record = logging.LogRecord("shop", logging.INFO, "", 0, "billed", (), None)
    record.bound = {"topic": "orders", "offset": 7}
    record.topic, record.partition = "orders", ""
    line = json.loads(JsonLogs().format(record))
    assert line["topic"] == "orders" and line["offset"] == 7 and "partition" not in line and "bound" not in line


async def test_structlog_binds_the_record_too() -> None:
    seen: list[dict[str, object]] = []

    def keep(_: object, __: str, event: dict[str, object]) -> dict[str, object]:
        seen.append(dict(event))
        raise structlog.DropEvent

    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[bind_record, keep])
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None:
        log.info("here", offset="mine")

    async with bus:
        await bus.send("orders", b"a")
        await bus.drain()
    assert seen == [
        {"event": "here", "offset": "mine", "topic": "orders", "partition": 0, "group": "g", "handler": "handle"}
    ]


@pytest.fixture
def root() -> Generator[logging.Logger]:
    one = logging.getLogger()
    before, level = list(one.handlers), one.level
    yield one
    for handler in list(one.handlers):
        one.removeHandler(handler)
    for handler in before:
        one.addHandler(handler)
    one.setLevel(level)


def test_logging_is_configured_as_text_or_as_json(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", stream)
    logging.getLogger("a").info("not this")
    logging.getLogger("a").warning("this")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["this"]
    assert len(root.handlers) == 1
    configure_logging("info", "text", stream)
    logging.getLogger("a").info("plain")
    assert stream.getvalue().endswith("INFO a: plain\n") and bound() == {}
    assert isinstance(root.handlers[0].formatter, TextLogs)


@pytest.mark.parametrize(
    ("level", "format", "said"),
    [("wraning", "text", "did you mean 'warning'"), ("info", "jsn", "did you mean 'json'")],
)
def test_a_level_or_format_that_is_none_is_refused(level: str, format: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configure_logging(level, format)


class Unsayable:
    def __repr__(self) -> str:
        raise ValueError("not to be said")


ODD: list[object] = [float("nan"), {(1, 2): 3}, Unsayable(), "\udc80", b"\xff", {"a": {Unsayable(): 1}}]


@pytest.mark.parametrize("value", ODD, ids=["NaN", "keys", "no repr", "surrogate", "bytes", "inside"])
@pytest.mark.parametrize("format", ["json", "text"])
def test_no_line_is_lost_for_an_odd_value(root: logging.Logger, format: str, value: object) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    configure_logging("info", format, stream)
    logging.getLogger("shop").info("an odd one, \udc80", extra={"value": value})
    stream.seek(0)
    [line] = stream.readlines()
    assert "an odd one, \\udc80" in line
    if format == "json":
        found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert "value" in found


def test_a_message_cannot_look_like_another_line() -> None:
    record = logging.LogRecord("shop", logging.INFO, "", 0, "a\r\nb \x1b[2J \u2028 é", (), None)
    record.bound = {"key": "k\n2026-01-01 ERROR shop: made up"}
    line = TextLogs().format(record)
    assert line.endswith(r"a\r\nb \x1b[2J \u2028 é [key=k\n2026-01-01 ERROR shop: made up]")
    assert len(line.splitlines()) == 1

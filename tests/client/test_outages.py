"""Outages without ``retry=``: which errors are outages, and that a record waits in its place until they are over."""

from __future__ import annotations

import errno
import smtplib
import socket
import sqlite3
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import ConsumerRecord, consumer, producer
from eventbus.errors import (
    ConfigError,
    HandlerError,
    RecordTooLarge,
    RequestTimedOut,
    SchemaUnavailable,
    UnknownTopicOrPartition,
)
from eventbus.outages import is_outage
from eventbus.testing import FakeClock, TestBus
from tests.client.fakes import T0, T1, on_both, records, running


def foreign(package: str, name: str, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    """An error of a library that need not be installed."""
    return type(name, (base,), {"__module__": f"{package}.errors", **attributes})()


def wrapped(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


OUTAGES = [
    ConnectionRefusedError(),
    OSError("the line is down"),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    urllib.error.URLError(ConnectionRefusedError()),
    smtplib.SMTPServerDisconnected("gone"),
    sqlite3.OperationalError("unable to open database file"),
    RequestTimedOut("no answer"),
    SchemaUnavailable("no answer"),
    foreign("httpx", "ConnectError", type("NetworkError", (Exception,), {"__module__": "httpx"})),
    foreign("redis", "ConnectionError"),
    foreign("psycopg", "OperationalError", sqlstate="57P01"),
    foreign("psycopg", "OperationalError", sqlstate="40P01"),
    foreign("sqlalchemy", "DBAPIError", connection_invalidated=True),
    wrapped(foreign("django", "OperationalError"), sqlite3.OperationalError("unable to open database file")),
    ExceptionGroup("both", [ConnectionResetError(), OSError("down")]),
]
FAULTS = [
    ValueError("no"),
    TimeoutError(),
    FileNotFoundError(errno.ENOENT, "No such file"),
    OSError(errno.ENAMETOOLONG, "File name too long"),
    type("HTTPError", (OSError,), {"__module__": "requests.exceptions"})("404"),
    urllib.error.HTTPError("http://shop", 404, "Not Found", None, None),  # type: ignore[arg-type]
    smtplib.SMTPRecipientsRefused({}),
    sqlite3.OperationalError("no such table: orders"),
    RecordTooLarge("too large"),
    UnknownTopicOrPartition("there is no topic 'ordres'"),
    ConfigError("wrong"),
    foreign("psycopg", "OperationalError", sqlstate="57014"),
    foreign("psycopg", "IntegrityError", sqlstate="23505"),
    ExceptionGroup("one of both", [ConnectionResetError(), ValueError("no")]),
]


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
def test_what_every_record_would_meet_is_an_outage(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_what_one_record_may_cause_is_none(error: Exception) -> None:
    assert not is_outage(error)


class Database:
    """Away for the first ``calls`` calls with the record at offset 2."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.done: list[int] = []

    def handle(self, value: bytes) -> None:
        if int(value) == 2 and self.left:
            self.left -= 1
            raise ConnectionRefusedError("the database is away")
        self.done.append(int(value))


def plain(database: Database, **options: Any) -> Any:
    @consumer("t", group="g", **options)
    async def handle(value: bytes) -> None:
        database.handle(value)

    return handle


def acknowledging(database: Database, **options: Any) -> Any:
    @consumer("t", group="g", ack="manual", **options)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        database.handle(value)
        record.ack()

    return handle


def batched(database: Database, **options: Any) -> Any:
    @consumer("t", group="g", batch=2, **options)
    async def handle(values: list[bytes]) -> None:
        for value in sorted(values, reverse=True):
            database.handle(value)

    return handle


def once(database: Database, **options: Any) -> Any:
    @consumer("t", group="g", exactly_once=True, **options)
    @producer("out")
    async def handle(value: bytes) -> str:
        database.handle(value)
        return value.decode()

    return handle


SHAPES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (plain, {}),
    (plain, {"on_error": "skip"}),
    (plain, {"on_error": "crash"}),
    (plain, {"order": "key", "concurrency": 2}),
    (plain, {"timeout": 5}),
    (plain, {"concurrency": 1}),
    (acknowledging, {}),
    (acknowledging, {"concurrency": 1}),
    (batched, {}),
    (once, {}),
]


@pytest.mark.parametrize(("shape", "options"), SHAPES, ids=[f"{s.__name__}-{o}" for s, o in SHAPES])
@on_both
async def test_a_record_waits_in_its_place_until_the_outage_is_over(
    shape: Callable[..., Any], options: dict[str, Any]
) -> None:
    clock, database = FakeClock(), Database(6)
    async with running(shape(database, **options), clock) as run:
        run.consumer.deliver(records(T0, range(4), lambda offset: b"key"))
        await clock.settle()
        assert 2 not in database.done and run.runner.error is None
        assert "an outage: ConnectionRefusedError: the database is away" in run.runner.waiting_for[T0]
        run.consumer.deliver(records(T1, range(100, 102)))
        await clock.advance(seconds=2)
        assert {100, 101} <= set(database.done), "another partition does not wait"
        await clock.advance(seconds=60)
        assert not run.runner.waiting_for
        assert database.left == 0 and {0, 1, 2, 3} <= set(database.done)
        assert run.runner.error is None and run.runner.counts.skipped == 0
        await clock.advance(seconds=1)
        assert run.consumer.offsets[T0].offset == 4


@on_both
async def test_at_most_once_a_record_is_not_called_again() -> None:
    clock, database = FakeClock(), Database(1)
    async with running(plain(database, delivery="at-most-once"), clock) as run:
        run.consumer.deliver(records(T0, range(4)))
        await clock.advance(seconds=60)
        assert database.done == [0, 1] and run.runner.error is not None


@on_both
async def test_a_partition_that_moves_does_not_wait_for_the_end_of_an_outage() -> None:
    clock, database = FakeClock(), Database(1_000)
    async with running(plain(database), clock) as run:
        run.consumer.deliver(records(T0, range(4)))
        await clock.advance(seconds=5)
        run.runner.stop()
        await clock.advance(seconds=1)
        assert run.runner.has_left and run.consumer.offsets[T0].offset == 2


@pytest.mark.parametrize("options", [{}, {"order": "none", "concurrency": 2}], ids=str)
@on_both
async def test_a_handler_that_stops_does_not_wait_until_a_record_that_meets_an_outage_is_acknowledged(
    options: dict[str, Any],
) -> None:
    clock, database = FakeClock(), Database(1_000)
    async with running(acknowledging(database, **options), clock) as run:
        run.consumer.deliver(records(T0, range(4)))
        await clock.advance(seconds=5)
        run.runner.stop()
        await clock.advance(seconds=1)
        assert run.runner.has_left and run.consumer.offsets[T0].offset == 2


@pytest.mark.parametrize("options", [{}, {"order": "none", "concurrency": 2}], ids=str)
@on_both
async def test_a_record_that_is_acknowledged_in_a_later_call_is_not_called_again(options: dict[str, Any]) -> None:
    clock, calls = FakeClock(), list[int]()

    @consumer("t", group="g", ack="manual", **options)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        calls.append(int(value))
        if len(calls) == 3:
            record.ack()
        raise ConnectionRefusedError("the database is away")

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(1)))
        await clock.advance(seconds=60)
        assert calls == [0] * 3 and run.consumer.offsets[T0].offset == 1


@on_both
async def test_an_outage_is_logged_once_for_all_partitions(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()

    @consumer("t", group="g")
    async def handle(value: bytes) -> None:
        raise ConnectionRefusedError("the database is away")

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(2)), records(T1, range(2)))
        await clock.advance(seconds=30)
        run.runner.stop()
        await clock.advance(seconds=1)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].endswith(
        "offset 0 waits in its place for the end of an outage: ConnectionRefusedError: the database is away. It is "
        "handled again, first in 1 s, until the outage is over"
    )


@pytest.mark.parametrize("options", [{}, {"order": "none", "concurrency": 2}], ids=str)
async def test_what_is_published_during_an_outage_of_the_log_is_not_skipped(options: dict[str, Any]) -> None:
    bus = TestBus()
    bus.topic("t")
    bus.topic("out")

    @bus.consumer("t", group="g", on_error="skip", **options)
    @producer("out")
    async def handle(value: int) -> int:
        return value

    async with bus:
        with bus.log.faults.outage("send", topic="out"):
            await bus.send_many("t", range(3))
            await bus.clock.advance(seconds=60)
        with pytest.raises(HandlerError, match="was not stored"):
            await bus.drain()
    async with bus:
        await bus.drain()
        assert sorted(bus.log.values("out", int)) == [0, 1, 2]

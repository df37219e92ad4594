"""The facts of a bus, and of its log."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from dlq import Retry
from eventbus import EventBus, Transaction
from eventbus.asyncapi import asyncapi_document
from eventbus.doctor import examine, facts_of
from eventbus.doctor.blocking import blocking_calls
from eventbus.doctor.connected import directory_facts, with_log
from eventbus.doctor.facts import RetryFacts

pytestmark = pytest.mark.system


def shop(url: str = "memory://", **config: Any) -> EventBus:
    bus = EventBus(url, service="shop", **config)
    bus.topic("orders", partitions=3)

    @bus.producer("orders", key=len)
    async def place(order: str) -> str:
        return order

    return bus


def test_the_facts_of_handlers() -> None:
    bus = shop(session_timeout_ms=9_000)

    @bus.consumer("orders", group="billing", exactly_once=True, transaction_records=7)
    @bus.producer("bills")
    async def bill(order: str, tx: Transaction) -> str:
        return order

    @bus.consumer(
        "orders",
        order="key",
        concurrency=4,
        retry=Retry(immediate=1, delays=["5s"]),
        partition_assignment_strategy="sticky",
    )
    async def mail(order: str) -> None: ...

    billing, mailing = facts_of(bus).handlers
    assert (billing.name, billing.publishes, billing.group, billing.delivery) == (
        "bill",
        "bills",
        "billing",
        "exactly-once",
    )
    assert (billing.takes_transaction, billing.transaction_records, billing.session_timeout_ms) == (True, 7, 9_000)
    assert billing.place.startswith("test_gather.py:")
    assert (mailing.group, mailing.group_is_said, mailing.cooperative) == ("shop.mail", False, False)
    assert mailing.retry == RetryFacts(
        at_once=1, delays_ms=(5_000,), retry_topic="retry.shop.mail", dead_letter_topic="dlq.shop.mail", order="key"
    )


def test_a_handler_without_later_tries_has_a_retry_topic_for_redriven_letters() -> None:
    bus = shop()

    @bus.consumer("orders", group="billing", dead_letter=True)
    async def bill(order: str) -> None: ...

    @bus.consumer("orders", group="mailing", retry=3, dead_letter=False)
    async def mail(order: str) -> None: ...

    assert [one.retry and one.retry.redrive_topic for one in facts_of(bus).handlers] == ["retry.billing", None]
    channels = asyncapi_document(bus)["channels"]
    assert channels["retry.billing"]["x-eventbus"] == {"role": "retry"} and "retry.mailing" not in channels


def test_the_facts_of_producers_and_topics() -> None:
    bus = shop(acks=1)
    bus.producer("other", acks="all")(_returns)
    facts = facts_of(bus)
    assert [(one.topic, one.has_key, one.acks) for one in facts.producers] == [
        ("orders", True, "1"),
        ("other", False, "all"),
    ]
    assert facts.topics == {"orders": 3, "other": -1} and facts.acks == "1"


async def _returns(value: str) -> str:
    return value


def test_a_handler_with_a_database(tmp_path: Path) -> None:
    bus = shop()
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")

    @bus.consumer("orders", group="g", tx=sessionmaker(engine))
    def book(order: str, session: Session) -> None: ...

    (one,) = facts_of(bus).handlers
    assert one.tx and not one.is_async
    engine.dispose()


def test_what_could_not_start_is_a_finding() -> None:
    bus = shop()

    @bus.consumer(pattern="ord.*", group="g", retry=Retry(order="key"))
    async def handle(order: str) -> None: ...

    (error,) = (one for one in examine(facts_of(bus)).findings if one.severity == "error")
    assert error.code == "cannot-start" and "contradict each other" in error.text


def test_what_the_url_and_the_file_say_counts(tmp_path: Path) -> None:
    file = tmp_path / "bus.toml"
    file.write_text("[handlers.book]\ncommit_interval_ms = 60_000\n[handlers.bok]\nconcurrency = 1\n")
    bus = shop("memory://?fsync=os", config_file=str(file))

    @bus.consumer("orders", group="g")
    async def book(order: str) -> None: ...

    facts = facts_of(bus)
    assert facts.fsync == "os" and facts.handlers[0].commit_interval_ms == 60_000
    assert facts.notes == ("[handlers.bok]: the bus has no handler 'bok'; did you mean 'book'?",)


def test_secrets_are_not_among_the_facts() -> None:
    bus = EventBus("memory://me:canary@x?fsync=os", sasl_password="canary")
    facts = facts_of(bus)
    assert facts.secret_in_url and "canary" not in repr(facts) and "canary" not in repr(examine(facts))


# blocking calls ------------------------------------------------------------------------------------------------------


def test_calls_that_block_the_loop_are_found() -> None:
    async def handle(order: str) -> None:
        time.sleep(1)  # never called, only read
        if order:
            urllib.request.urlopen("http://localhost")
        subprocess.run(["true"], check=False)
        socket.create_connection(("localhost", 1))
        sqlite3.connect(":memory:")

    found = [call.partition(" ")[0] for call in blocking_calls(handle)]
    assert found == [
        "time.sleep",
        "urllib.request.urlopen",
        "subprocess.run",
        "socket.create_connection",
        "sqlite3.connect",
    ]


def test_what_only_looks_like_it_is_not_found() -> None:
    class clock:
        @staticmethod
        def sleep(seconds: int) -> None: ...

    async def handle(order: str) -> None:
        def in_a_thread() -> None:
            time.sleep(1)  # never called, only read

        clock.sleep(1)
        Path(order).exists()
        in_a_thread()

    assert blocking_calls(handle) == ()
    assert blocking_calls(len) == ()


# its log -------------------------------------------------------------------------------------------------------------


async def test_a_directory_is_read_beside_the_bus_that_has_it_open(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'log'}"
    bus = shop(url)
    facts = await with_log(bus, facts_of(bus))
    assert facts.log is not None and not facts.log.exists and not (tmp_path / "log").exists()
    async with bus:
        await bus.send("orders", "o-1")
        facts = await with_log(bus, facts_of(bus))
        assert facts.log is not None
        assert facts.log.topics["orders"] == 3 and "is in use by this very process" in facts.log.locked_by
    facts = await with_log(bus, facts_of(bus))
    assert facts.log is not None
    assert (facts.log.topics, facts.log.locked_by, facts.log.problem) == ({"orders": 3}, "", "")
    async with bus:  # the doctor left it as it was
        assert await bus.admin.list_topics() == ["orders"]


def test_the_disk_is_looked_at(tmp_path: Path) -> None:
    log = directory_facts(str(tmp_path / "not" / "there"))
    assert log.total_bytes == shutil.disk_usage(tmp_path).total and log.writable and not log.exists


def test_a_directory_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's answer stands in for the mode of the folder: root, as whom tests may run, may write everywhere."""
    asked: list[tuple[str, int]] = []

    def refused(path: str | Path, mode: int) -> bool:
        asked.append((str(path), mode))
        return False

    monkeypatch.setattr(os, "access", refused)
    assert not directory_facts(str(tmp_path / "log")).writable
    assert asked == [(str(tmp_path), os.W_OK | os.X_OK)], "of a log to be made, what it would be made in"


async def test_another_log_is_asked_over_its_backend() -> None:
    async with EventBus("memory://doctored") as other:
        await other.admin.create_topic("orders", partitions=6)
        bus = EventBus("memory://doctored")
        bus.url = "kafka://stands-for-any-cluster"
        log = (await with_log(bus, facts_of(EventBus("memory://")))).log
        assert log is not None and log.topics == {"orders": 6} and log.problem == ""


def test_a_durable_bus_with_a_handler_without_a_group_cannot_start() -> None:
    bus = EventBus("file://./data")

    @bus.consumer("orders")
    async def handle(order: str) -> None: ...

    findings = [one for one in examine(facts_of(bus)).findings if one.severity == "error"]
    assert [one.code for one in findings] == ["cannot-start"] and "'handle'" in findings[0].text


def test_a_function_that_is_called_at_times_is_no_reader_whose_records_are_lost() -> None:
    bus = EventBus("file://./data", service="shop")

    @bus.every("30s")
    async def tick() -> None: ...

    assert [one.name for one in facts_of(bus).handlers if one.is_firing] == ["tick"]
    report = examine(facts_of(bus))
    assert report.findings == []
    assert report.handlers[0].failure == "it is logged, and called at its next time"

"""What a mirror does not do: it says why, what to do, and has changed nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from eventbus.backends.base import Backend
from eventbus.backends.clock import system_clock
from eventbus.backends.urls import open_backend
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.errors import (
    ConfigError,
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    LogLocked,
    PolicyViolation,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from eventbus.mirror import Mirror
from eventbus.mirror.journal import Journal, create_journal
from eventbus.types import TopicPartition
from tests.mirror.conftest import NewLog
from tests.mirror.logs import content, create, opened, visible, write

ORDERS = TopicPartition("orders", 0)


async def copy(here: str, there: str, **options: object) -> Mirror:
    async with Mirror(here, there, name="m", **options) as mirror:  # pyright: ignore[reportArgumentType]
        await mirror.copy()
    return mirror


async def names(backend: Backend) -> set[str]:
    return {topic.name for topic in await backend.describe_topics() if not topic.name.startswith("__")}


@pytest.mark.parametrize("value", [b"\xff", b'["\xff"]', b"[" * 5_000 + b"]" * 5_000])
async def test_a_record_of_somebody_else_in_the_journal_is_ignored_unless_it_replaces_an_entry(value: bytes) -> None:
    journal, read = Journal("m"), Journal("m")
    async with opened("memory://journal") as backend:
        await create_journal(backend, journal.topic, 1)
        where = TopicPartition(journal.topic, 0)
        key, entry = journal.claim("a")
        await write(backend, where, entry or b"", key=key)
        await write(backend, where, b"?", key=value)
        await read.load(backend)
        assert read.owner == "a"
        await write(backend, where, value, key=key)
        with pytest.raises(CorruptRecord, match="is not a mirror's journal"):
            await Journal("m").load(backend)


@pytest.mark.system
@pytest.mark.parametrize(
    "urls",
    [
        ("memory://one", "memory://one"),
        ("file://./data", "file://data"),
        ("kafka://a:1,b:2", "kafka://b:2,a:1?client.id=x"),
    ],
)
def test_one_log_under_two_urls_is_refused(urls: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="source and destination are one log"):
        Mirror(*urls)


@pytest.mark.system
async def test_one_log_behind_two_addresses_is_refused(new_log: NewLog) -> None:
    there = new_log("served")
    other = there.replace("127.0.0.1", "localhost")
    async with opened(there) as destination:
        await create(destination, "orders")
        with pytest.raises(ConfigError, match="one log: topic 'orders' has the same id on both sides"):
            await copy(other, there)


async def test_a_topic_that_holds_other_records_is_refused_and_nothing_is_copied(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "invoices")
        for backend in (source, destination):
            await create(backend, "orders")
            await write(backend, ORDERS, b"1")
        with pytest.raises(ConfigError, match=r"holds 1 offset\(s\) that this mirror did not write.*--exclude orders"):
            await copy(here, there)
        assert await names(destination) == {"orders"}
        mirror = await copy(here, there, exclude="orders")
        assert await names(destination) == {"orders", "invoices"}
        assert not mirror.progress.problems


async def test_a_topic_with_other_partitions_is_refused(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders", 3)
        await create(source, "invoices", 1)
        await create(destination, "orders", 2)
        await create(destination, "invoices", 2)
        with pytest.raises(ConfigError, match=r"2 topics cannot be(.|\n)*3 partition\(s\) at the source and 2"):
            await copy(here, there)


async def test_an_empty_topic_that_is_alike_is_taken_with_what_is_set_for_it(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders", retention_ms="1000000", segment_ms="60000")
        await create(destination, "orders", retention_ms="9000000")
        await write(source, ORDERS, b"1")
        await copy(here, there)
        [found] = await destination.describe_topics(["orders"])
        own = {name: entry.value for name, entry in found.configs.items() if entry.source == "topic"}
        assert own == {"retention.ms": "9000000", "segment.ms": "60000"}
        assert len(await visible(destination, ORDERS)) == 1


async def test_a_destination_that_stamps_its_own_times_is_refused(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await create(destination, "orders", message_timestamp_type="LogAppendTime")
        with pytest.raises(ConfigError, match=r"stamps records with its own time.*CreateTime"):
            await copy(here, there)


async def test_brokers_that_stamp_their_own_times_by_default_do_not_for_copies(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    stamping = {"log_defaults": {"message.timestamp.type": "LogAppendTime"}}
    async with opened(here) as source, opened(there, **stamping) as destination:
        await create(source, "orders")
        await write(source, ORDERS, b"1")
        await copy(here, there, destination_config=stamping)
        [record] = await visible(destination, ORDERS)
        assert record.timestamp_ms == 1_700_000_000_000


async def test_a_copy_that_was_deleted_begins_anew_only_when_asked(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await write(source, ORDERS, b"1", b"2")
        await copy(here, there)
        await destination.delete_topics(["orders"])
        with pytest.raises(ConfigError, match=r"is gone at the destination\. To copy it from.*--again orders"):
            await copy(here, there)
        mirror = await copy(here, there, again=["orders"])
        assert mirror.progress.copied == 2
        assert [record.value for record in await visible(destination, ORDERS)] == [b"1", b"2"]
        assert (await copy(here, there)).progress.copied == 0


async def test_a_source_that_was_made_anew_is_refused(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await write(source, ORDERS, b"1")
        await copy(here, there)
        await source.delete_topics(["orders"])
        await create(source, "orders")
        await write(source, ORDERS, b"2", b"3")
        with pytest.raises(ConfigError, match="deleted and created again, or this is another log"):
            await copy(here, there)
        assert [record.value for record in await visible(destination, ORDERS)] == [b"1"]


@pytest.mark.system
async def test_a_directory_in_use_says_what_to_do(tmp_path: Path) -> None:
    import subprocess
    import sys

    holder = subprocess.Popen(
        [sys.executable, "-m", "eventbus", "serve", str(tmp_path / "data"), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    try:
        assert "serving" in holder.stdout.readline()
        with pytest.raises(LogLocked, match=r"a log that is in use, serve it.*or run eventbus\.mirror\.Mirror"):
            async with Mirror(f"file://{tmp_path}/data", "memory://"):
                pass
    finally:
        holder.terminate()
        holder.communicate(timeout=30)


@pytest.mark.parametrize("kind", ["memory", pytest.param("served", marks=pytest.mark.system)])
async def test_a_refused_record_is_named_with_its_offset_and_the_setting(kind: str, new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log(kind)
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await create(destination, "orders", message_timestamp_before_max_ms="3600000")
        now_ms = system_clock()
        await write(source, ORDERS, b"1", b"2", b"3", timestamp_ms=now_ms)
        await write(source, ORDERS, b"old", timestamp_ms=now_ms - 7_200_000)
        await write(source, ORDERS, b"5", b"6", timestamp_ms=now_ms)
        with pytest.raises(
            (InvalidTimestamp, InvalidRecord),
            match=r"orders-0 offset 3 of the source was not copied.*message\.timestamp\.before\.max\.ms",
        ):
            await copy(here, there)
        assert [record.value for record in await visible(destination, ORDERS)] == [b"1", b"2", b"3"]


SMALL = {"log_defaults": {"max.message.bytes": "1000"}}


async def test_a_record_that_the_destination_does_not_take_stops_its_partition_alone(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    neighbours = [TopicPartition("orders", 1), TopicPartition("invoices", 0)]
    async with opened(here) as source, opened(there, **SMALL) as destination:
        await create(source, "orders", 2)
        await create(source, "invoices")
        await write(source, ORDERS, b"small", b"x" * 5_000, b"after")
        for where in neighbours:
            await write(source, where, b"1", b"2")
        with pytest.raises(RecordTooLarge, match=r"orders-0 offset 1 of the source.*max\.message\.bytes"):
            await copy(here, there, destination_config=SMALL)
        assert [record.value for record in await visible(destination, ORDERS)] == [b"small"]
        for where in neighbours:
            assert [record.value for record in await visible(destination, where)] == [b"1", b"2"]
        await destination.alter_configs("orders", {"max.message.bytes": "10000"}, [])
        mirror = await copy(here, there, destination_config=SMALL)
        assert not mirror.progress.refused
        for where in (ORDERS, *neighbours):
            copies = await visible(destination, where)
            assert [content(one) for one in copies] == [content(one) for one in await visible(source, where)]


async def test_a_topic_that_cannot_be_created_stops_none_of_its_neighbours(new_log: NewLog) -> None:
    here, there = new_log("memory"), open_backend(new_log("memory"), {})
    create_topics = there.create_topics

    async def refusing(specs: Sequence[TopicSpec], **options: bool) -> dict[str, TopicDescription | KafkaError]:
        if specs[0].name == "orders":
            return {"orders": PolicyViolation("no topic of this name")}
        return await create_topics(specs, **options)

    there.create_topics = refusing  # pyright: ignore[reportAttributeAccessIssue]
    async with opened(here) as source, opened(there.url) as destination:
        for topic in ("orders", "invoices"):
            await create(source, topic)
            await write(source, TopicPartition(topic, 0), b"1")
        with pytest.raises(PolicyViolation, match=r"topic 'orders' of the source.*no topic of this name"):
            async with Mirror(here, there, name="m") as mirror:
                await mirror.copy()
        assert len(await visible(destination, TopicPartition("invoices", 0))) == 1


@pytest.mark.system
async def test_more_replicas_than_brokers_are_refused(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("served")
    async with opened(here) as source:
        await create(source, "orders")
        with pytest.raises(KafkaError, match="with replication factor 3: this log is one broker"):
            await copy(here, there, replication_factor=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "zip"}, "none, gzip"),
        ({"name": "a b"}, "1 to 200 of"),
        ({"topics": ["__x"]}, "the log's own"),
        ({"groups": "*"}, "no regular expression"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Mirror("memory://a", "memory://b", **options)  # pyright: ignore[reportArgumentType]


async def test_a_topic_that_is_none_cannot_be_copied_again(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there):
        await create(source, "orders")
        with pytest.raises(UnknownTopicOrPartition, match=r"again: 'order' is no topic.*orders"):
            await copy(here, there, again=["order"])

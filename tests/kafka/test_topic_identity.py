"""Which topics are looked up before their records are handed over, because they may have been created again."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import pytest

from eventbus.backends.base import ConsumerConfig
from eventbus.backends.kafka.topic_identity import ReportedIds, TopicIdentity
from eventbus.backends.urls import open_backend
from eventbus.broker import TopicSpec
from eventbus.testing import KafkaServer
from eventbus.types import TopicPartition
from tests.mirror.logs import write

pytestmark = pytest.mark.system

WHERE = TopicPartition("orders", 0)
LINE = "[thrd:main]: Topic orders changed id from AAAAAAAAAAAAAAAAAAAAAA to a+b/c"


class Backend:
    """Returns the id that the topics have."""

    def identify(self, topics: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "a-b_c")


def reported(caplog: pytest.LogCaptureFixture, **settings: Any) -> ReportedIds:
    caplog.set_level(logging.DEBUG)
    return ReportedIds({"logger": logging.LoggerAdapter(logging.getLogger("librdkafka")), **settings})


def identity(lines: ReportedIds) -> TopicIdentity:
    backend: Any = Backend()
    made = TopicIdentity(backend, lines, "earliest", silence_seconds=0.0)
    made.identify([WHERE])
    return made


def test_a_topic_that_librdkafka_fetches_under_its_id_is_not_looked_up_after_a_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request delayed each record after a silence by 1 to 3 ms."""
    lines = reported(caplog)
    topics = identity(lines)
    topics.arrived([WHERE])
    assert topics.is_unverified, "nothing is known about the id that is fetched"
    topics = identity(lines)
    lines.log(logging.DEBUG, "%s [%s] %s", "METADATA", "consumer-1", LINE)
    topics.arrived([WHERE])
    assert not topics.is_unverified
    lines.log(logging.DEBUG, "%s [%s] %s", "METADATA", "consumer-1", LINE.replace("a+b", "new"))
    topics.arrived([WHERE])
    assert topics.is_unverified


def test_lines_that_the_settings_do_not_ask_for_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    quiet, chatty = reported(caplog), reported(caplog, debug="cgrp")
    assert quiet.settings["debug"] == "metadata"
    assert chatty.settings["debug"] == "cgrp,metadata"
    for lines in (quiet, chatty):
        lines.log(logging.DEBUG, "%s [%s] %s", "CGRP", "consumer-1", "joined")
        lines.log(logging.ERROR, "%s [%s] %s", "FAIL", "consumer-1", "refused")
    assert [record.levelname for record in caplog.records] == ["ERROR", "DEBUG", "ERROR"]


async def test_librdkafka_names_the_id_under_which_it_fetches() -> None:
    """Another wording in a later version would bring back the request before each record after a silence."""
    async with KafkaServer() as server:
        backend = open_backend(f"kafka://{server.bootstrap}", {})
        await backend.start()
        consumer = backend.consumer(ConsumerConfig(start="earliest"))
        try:
            made = await backend.create_topics([TopicSpec("orders", 1)])
            await write(backend, WHERE, b"1")
            await consumer.assign([WHERE])
            while not await consumer.fetch(1_000):
                pass
            lines: ReportedIds = consumer._identity._reported  # pyright: ignore
            assert lines.get("orders") == made["orders"].topic_id  # pyright: ignore
        finally:
            await consumer.aclose()
            await backend.aclose()

"""``kafka-dump-log --offsets-decoder`` reads our records of groups of the consumer protocol (KIP-848) as its own."""

from __future__ import annotations

import threading
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.serving import Served
from tests.clients.tools import KafkaTools

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

PATIENCE_S = 30


class Reader(threading.Thread):
    """A consumer that reads until it is told to stop. ``has_some``: it was assigned partitions."""

    def __init__(self, server: Served, **options: str) -> None:
        super().__init__(daemon=True)
        self.stopping, self.has_some = threading.Event(), threading.Event()
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g", **options})
        self._topic = "^t.*" if "group.protocol" in options else "t"
        self.start()

    def run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=lambda _, some: some and self.has_some.set())
        while not self.stopping.is_set():
            self._consumer.poll(0.1)
        self._consumer.close()

    def stop(self) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group of members of both protocols, with a pattern and a static one, was converted there and back."""
    folder = tmp_path_factory.mktemp("dumped-groups")
    with Served(folder, "--override", "group.consumer.heartbeat.interval.ms=100") as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(PATIENCE_S)
        classic = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": "100"}
        old = Reader(server, **classic)
        assert old.has_some.wait(PATIENCE_S)
        new = Reader(server, **{"group.protocol": "consumer", "group.instance.id": "i"})
        assert new.has_some.wait(PATIENCE_S)
        old.stop()
        new.stop()
    return folder


def test_kafka_decodes_the_group(tools: KafkaTools, folder: Path) -> None:
    files = [file for file in sorted(folder.glob("__consumer_offsets-*/*.log")) if file.stat().st_size]
    (file,) = files
    done = tools.run("kafka-dump-log", "--files", str(file), "--offsets-decoder")
    assert done.code == 0 and not done.err, done.text
    text = done.out
    assert text.count("payload:") >= 20, text
    for told in (
        '"epoch":',
        '"instanceId":"i"',
        '"subscribedTopicRegex":"(^t.*)"',
        '"classicMemberMetadata":null',
        '"classicMemberMetadata":{"sessionTimeoutMs":',
        '"name":"cooperative-sticky"',
        '"assignmentEpoch":',
        '"assignedPartitions":[{"topicId":',
        '"memberEpoch":',
    ):
        assert told in text, f"{told} is not in {text}"

"""Apache Kafka for tests of several folders: a conftest imports the fixtures that its tests use.

    from tests.kafka_fixtures import cluster, real

    __all__ = ["cluster", "real"]

One broker (``real``) and one cluster of three (``cluster``) serve all tests of a session. Who kills a node starts it
again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from eventbus.testing import RealKafka
from tests.clients.jars import NotAvailableError

REQUIRED = os.environ.get("EVENTBUS_TEST_CLIENTS") == "require"
QUIET = {"auto.create.topics.enable": "false"}
"""Creating a topic is no side effect of asking for it: it would come back while clients still ask for it."""
SHORT_LIVED = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
"""The quick compiler alone and the smallest collector: brokers that live for minutes take half of the CPU."""


def kafka_or_skip(folders: pytest.TempPathFactory, name: str, *, nodes: int = 1) -> RealKafka:
    """A cluster, not started. Without Java the test is skipped with the reason, or fails where Java is required."""
    try:
        return RealKafka(folders.mktemp(name), nodes=nodes, properties=QUIET, java_options=SHORT_LIVED)
    except NotAvailableError as missing:
        if REQUIRED:
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """One broker."""
    with kafka_or_skip(tmp_path_factory, "kafka") as kafka:
        yield kafka


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Three brokers, three replicas of everything, two of them must be in sync."""
    with kafka_or_skip(tmp_path_factory, "cluster", nodes=3) as kafka:
        yield kafka

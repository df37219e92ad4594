"""One server of each kind for all tests: ``eventbus serve`` and, where there is a Java, Apache Kafka itself."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.clients.jars import NotAvailableError
from tests.clients.real_kafka import RealKafka
from tests.kafka.targets import KillableServer, Node

pytest.register_assert_rewrite("eventbus.testing.conformance")

REQUIRED = os.environ.get("EVENTBUS_TEST_CLIENTS") == "require"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    server = KillableServer(tmp_path_factory.mktemp("served"))
    with server:
        yield server


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Creating a topic is no side effect of asking for it: it would come back while clients still ask for it."""
    try:
        kafka = RealKafka(tmp_path_factory.mktemp("kafka"), properties={"auto.create.topics.enable": "false"})
    except NotAvailableError as missing:
        if REQUIRED:
            raise
        pytest.skip(str(missing))
    with kafka:
        yield kafka

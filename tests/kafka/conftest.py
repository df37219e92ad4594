"""One server of each kind for all tests: ``eventbus serve`` and, where there is a Java, Apache Kafka itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.doors import doors
from tests.kafka.targets import KillableServer, Node
from tests.kafka_fixtures import cluster, real

__all__ = ["cluster", "doors", "real"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    server = KillableServer(tmp_path_factory.mktemp("served"))
    with server:
        yield server

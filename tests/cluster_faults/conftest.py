"""A cluster with Kafka's own timeouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eventbus.testing import RealKafka
from tests.kafka_fixtures import kafka_or_skip

KAFKAS_OWN = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "1000",
    "replica.lag.time.max.ms": "30000",
}
"""With the sessions of 3 s that other tests have, the time in which a dead broker is taken for alive is short."""


@pytest.fixture
def patient_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    kafka = kafka_or_skip(tmp_path_factory, "patient", nodes=3)
    for node in kafka.nodes:
        node.properties |= KAFKAS_OWN
    with kafka:
        yield kafka

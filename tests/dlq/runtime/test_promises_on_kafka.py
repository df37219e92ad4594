"""Promises on Apache Kafka and on ``eventbus serve``."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from eventbus.testing import KafkaServer, RealKafka
from tests.dlq.runtime.all_promises import PROMISES, Promise, some
from tests.dlq.runtime.logs import Log
from tests.kafka.targets import bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

ON_KAFKA = [promise for promise in PROMISES if promise.on_kafka]
AT_ONCE = 10
"""Promises side by side: most of their time is waiting."""


def side_by_side(bootstrap: str, test: str, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """Check the selected promises of ``test`` concurrently, each in a thread. Yield their results by name."""
    asked = {item.name for item in request.session.items if item.path == request.path}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield {
            one.name: threads.submit(one.check, Log(bus_url(bootstrap), clock=None))
            for one in ON_KAFKA
            if f"{test}[{one!r}]" in asked
        }


@pytest.fixture(scope="module")
def kept_when_served(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    with KafkaServer() as server:
        yield from side_by_side(server.bootstrap, "test_served", request)


@pytest.mark.slow  # the same log as in memory and in a file, and the same client as on a Kafka
@pytest.mark.parametrize("promise", ON_KAFKA, ids=repr)
def test_served(kept_when_served: dict[str, Future[None]], promise: Promise) -> None:
    kept_when_served[promise.name].result()


@pytest.fixture(scope="module")
def kept_by_kafka(real: RealKafka, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    yield from side_by_side(real.bootstrap, "test_kafka", request)


@pytest.mark.timeout(600)  # the first waits for a broker that starts
@pytest.mark.parametrize("promise", some(ON_KAFKA, 3))
def test_kafka(kept_by_kafka: dict[str, Future[None]], promise: Promise) -> None:
    kept_by_kafka[promise.name].result()

"""Every promise of the kit through kafka:// on Apache Kafka."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from eventbus.testing import RealKafka
from eventbus.testing.conformance import PROMISES, Promise, promises_for
from tests.kafka.possible import IMPOSSIBLE, OF_ONE_BROKER, POSSIBLE
from tests.kafka.side_by_side import side_by_side
from tests.kafka.targets import Node, OnNode
from tests.tiers import quick

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

ON_KAFKA = [
    promise
    for promise in POSSIBLE
    if "restart" not in promise.needs and promise.name != "a_group_comes_together_again_after_a_kill"
]
"""``make test`` tries these. The broker is killed once and not stopped as well: a kill is harder for a client."""


@pytest.fixture(scope="module")
def kept_by_one(real: Node, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    return side_by_side(POSSIBLE, real, "test_kafka", request)


@pytest.mark.timeout(900)  # the first waits for them all
@pytest.mark.parametrize("promise", quick(POSSIBLE, ON_KAFKA), ids=repr)
def test_kafka(kept_by_one: dict[str, Future[None]], promise: Promise) -> None:
    kept_by_one[promise.name].result()


class OneByOne:
    """Three brokers as one target: each is started again, one after the other, as an operator would."""

    def __init__(self, kafka: RealKafka) -> None:
        self._kafka = kafka
        self.bootstrap = kafka.bootstrap

    def start(self) -> None:
        """They run again, all of them."""

    def stop(self) -> None:
        for node in self._kafka.nodes:
            node.stop()
            node.start()

    def kill(self) -> None:
        for node in self._kafka.nodes:
            node.kill()
            node.start()


@pytest.fixture(scope="module")
def kept_by_three(cluster: RealKafka, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    return side_by_side(POSSIBLE, OneByOne(cluster), "test_cluster", request)


@pytest.mark.slow  # the same on three brokers, with three replicas of everything: they keep both cores busy
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("promise", [one for one in POSSIBLE if one.name not in OF_ONE_BROKER], ids=repr)
def test_cluster(kept_by_three: dict[str, Future[None]], promise: Promise) -> None:
    kept_by_three[promise.name].result()


def test_only_the_clock_and_damage_are_missing() -> None:
    assert {promise.needs for promise in PROMISES} - {promise.needs for promise in promises_for(OnNode)} == {
        frozenset({"clock"}),
        frozenset({"damage"}),
    }
    assert {promise.name for promise in PROMISES} > {*IMPOSSIBLE, *OF_ONE_BROKER}

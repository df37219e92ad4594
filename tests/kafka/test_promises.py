"""Every promise of the kit through kafka://, on Apache Kafka and on ``eventbus serve``; what cannot be is named."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from eventbus.errors import ConfigError
from eventbus.testing import RealKafka
from eventbus.testing.conformance import PROMISES, Promise, promises_for
from tests.kafka.side_by_side import PATIENCE_SECONDS, side_by_side
from tests.kafka.targets import Node, OnNode, on
from tests.tiers import quick

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

_STICKY = "librdkafka assigns, and has no eager sticky assignor: 'cooperative-sticky' is what it has of that kind"
IMPOSSIBLE = {
    "each_partition_has_one_reader (sticky)": _STICKY,
    "what_a_member_leaves_goes_to_the_others_from_its_last_commit (sticky)": _STICKY,
    "a_joiner_repeats_only_what_was_not_committed (sticky)": _STICKY,
    "an_assignor_of_ones_own_is_asked": "librdkafka assigns, in C: it has no door for assignors of one's own",
    "timestamps_come_back": "librdkafka takes timestamp 0 for 'now': the first millisecond of 1970 is refused",
}
"""By the name of the promise: what keeps librdkafka from it. Each is refused in so many words, never done otherwise."""
OF_ONE_BROKER = {
    "topics_survive_a_restart": "leaders move to other brokers meanwhile, and a description that was compared says so",
}
POSSIBLE = [promise for promise in promises_for(OnNode) if promise.name not in IMPOSSIBLE]
_LEFT_ALONE = [promise for promise in POSSIBLE if not promise.needs]
ON_KAFKA = [
    promise
    for promise in POSSIBLE
    if "restart" not in promise.needs and promise.name != "a_group_comes_together_again_after_a_kill"
]
"""``make test`` tries these. The broker is killed once and not stopped as well: a kill is harder for a client."""
WHEN_SERVED = [
    *(promise for promise in POSSIBLE if "kill" in promise.needs or promise.name == "topics_survive_a_restart"),
    *_LEFT_ALONE[::5],
]
"""``make test`` tries these, with one stop and one kill: Kafka tries the client, tests/conformance the broker."""


@pytest.fixture(scope="module")
def kept_when_served(served: Node, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    return side_by_side(POSSIBLE, served, "test_served", request)


@pytest.mark.timeout(900)  # the first waits for them all
@pytest.mark.parametrize("promise", quick(POSSIBLE, WHEN_SERVED), ids=repr)
def test_served(kept_when_served: dict[str, Future[None]], promise: Promise) -> None:
    kept_when_served[promise.name].result()


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


@pytest.mark.slow
@pytest.mark.parametrize("promise", POSSIBLE, ids=repr)
def test_trio(served: Node, promise: Promise) -> None:
    promise.check(on(served), "trio", patience_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("promise", _LEFT_ALONE[::12], ids=repr)
def test_some_on_trio(served: Node, promise: Promise) -> None:
    promise.check(on(served), "trio", patience_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_is_refused(served: Node, name: str) -> None:
    (promise,) = [promise for promise in PROMISES if promise.name == name]
    with pytest.raises(ConfigError, match="librdkafka"):
        promise.check(on(served))


def test_only_the_clock_and_damage_are_missing() -> None:
    assert {promise.needs for promise in PROMISES} - {promise.needs for promise in promises_for(OnNode)} == {
        frozenset({"clock"}),
        frozenset({"damage"}),
    }
    assert {promise.name for promise in PROMISES} > {*IMPOSSIBLE, *OF_ONE_BROKER}

"""Every promise of the kit through kafka://, on Apache Kafka and on ``eventbus serve``; what cannot be is named."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition

import pytest

from eventbus.errors import ConfigError
from eventbus.testing import RealKafka
from eventbus.testing.conformance import PROMISES, Promise, promises_for
from tests.kafka.targets import Node, OnNode, on

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

PATIENCE_SECONDS = 90
"""A broker that is started again takes seconds for it, and some promises do so several times."""
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
OF_SEVERAL_RESTARTS = {
    "a_group_comes_together_again_after_a_restart",
    "committed_offsets_survive_a_restart",
    "outcomes_survive_a_restart",
    "producer_ids_are_never_given_twice",
}
"""On Kafka in the long tier: in the quick one it is killed under them or their like, and others have it restarted."""
POSSIBLE = [promise for promise in promises_for(OnNode) if promise.name not in IMPOSSIBLE]


AT_ONCE = 6
"""Promises on the same broker, each with names of its own: most of their time is waiting, for it and for groups."""


class Together:
    """A server that several promises share: it is stopped, or killed, once all that go on are waiting for that."""

    def __init__(self, node: Node, promises: int) -> None:
        self._node = node
        self.bootstrap = node.bootstrap
        self._going_on = promises
        self._waiting = self._round = 0
        self._changed = Condition()

    def start(self) -> None:
        """It runs again."""

    def stop(self) -> None:
        self._rendezvous(self._node.stop)

    def kill(self) -> None:
        self._rendezvous(self._node.kill)

    def _rendezvous(self, end: Callable[[], None]) -> None:
        with self._changed:
            this = self._round
            self._waiting += 1
            self._when_all_wait(end)
            self._changed.wait_for(lambda: self._round != this)

    def leave(self, end: Callable[[], None]) -> None:
        """A promise has nothing more to ask."""
        with self._changed:
            self._going_on -= 1
            self._when_all_wait(end)

    def _when_all_wait(self, end: Callable[[], None]) -> None:
        if self._waiting and self._waiting == self._going_on:
            try:
                end()
                self._node.start()
            finally:
                self._waiting = 0
                self._round += 1
                self._changed.notify_all()

    def check(self, promise: Promise) -> None:
        try:
            promise.check(on(self), patience_seconds=3 * PATIENCE_SECONDS)
        finally:
            self.leave(self._node.kill if "kill" in promise.needs else self._node.stop)


def side_by_side(node: Node, test: str, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    """What becomes of the promises that ``test`` was asked for, by name: each is tried in a thread.

    First those that leave the server alone, then those that have it stopped, then those that have it killed.
    """
    asked = {item.name for item in request.session.items if item.path == request.path}
    wanted = [one for one in POSSIBLE if f"{test}[{one!r}]" in asked]
    kept: dict[str, Future[None]] = {}
    for needs in ((), ("restart",), ("kill",)):
        promises = [one for one in wanted if one.needs == frozenset(needs)]
        shared = Together(node, len(promises))
        with ThreadPoolExecutor(max(len(promises), 1) if needs else AT_ONCE) as threads:
            kept |= {one.name: threads.submit(shared.check, one) for one in promises}
    return kept


@pytest.fixture(scope="module")
def kept_when_served(served: Node, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    return side_by_side(served, "test_served", request)


@pytest.mark.timeout(900)  # the first waits for them all
@pytest.mark.parametrize("promise", POSSIBLE, ids=repr)
def test_served(kept_when_served: dict[str, Future[None]], promise: Promise) -> None:
    kept_when_served[promise.name].result()


@pytest.fixture(scope="module")
def kept_by_one(real: Node, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    return side_by_side(real, "test_kafka", request)


ON_KAFKA = [pytest.param(one, marks=pytest.mark.slow if one.name in OF_SEVERAL_RESTARTS else ()) for one in POSSIBLE]


@pytest.mark.timeout(900)  # the first waits for them all
@pytest.mark.parametrize("promise", ON_KAFKA, ids=repr)
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
    return side_by_side(OneByOne(cluster), "test_cluster", request)


@pytest.mark.slow  # the same on three brokers, with three replicas of everything: they keep both cores busy
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("promise", [one for one in POSSIBLE if one.name not in OF_ONE_BROKER], ids=repr)
def test_cluster(kept_by_three: dict[str, Future[None]], promise: Promise) -> None:
    kept_by_three[promise.name].result()


@pytest.mark.slow
@pytest.mark.parametrize("promise", POSSIBLE, ids=repr)
def test_trio(served: Node, promise: Promise) -> None:
    promise.check(on(served), "trio", patience_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("promise", POSSIBLE[::9], ids=repr)
def test_some_on_trio(served: Node, promise: Promise) -> None:
    promise.check(on(served), "trio", patience_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_is_refused(served: Node, name: str) -> None:
    (promise,) = [promise for promise in PROMISES if promise.name == name]
    with pytest.raises(ConfigError, match="librdkafka"):
        promise.check(on(served))


def test_only_the_clock_is_missing() -> None:
    assert {promise.needs for promise in PROMISES} - {promise.needs for promise in promises_for(OnNode)} == {
        frozenset({"clock"})
    }
    assert {promise.name for promise in PROMISES} > {*IMPOSSIBLE, *OF_ONE_BROKER, *OF_SEVERAL_RESTARTS}

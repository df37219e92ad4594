"""Every promise of the kit through kafka:// on ``eventbus serve``; what cannot be is named."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from eventbus.errors import ConfigError
from eventbus.testing.conformance import PROMISES, Promise
from tests.kafka.possible import IMPOSSIBLE, LEFT_ALONE, POSSIBLE
from tests.kafka.side_by_side import PATIENCE_SECONDS, side_by_side
from tests.kafka.targets import Node, on
from tests.tiers import quick

pytestmark = pytest.mark.system

WHEN_SERVED = [
    *(promise for promise in POSSIBLE if "kill" in promise.needs or promise.name == "topics_survive_a_restart"),
    *LEFT_ALONE[::5],
]
"""``make test`` tries these, with one stop and one kill: Kafka tries the client, tests/conformance the broker."""


@pytest.fixture(scope="module")
def kept_when_served(served: Node, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    return side_by_side(POSSIBLE, served, "test_served", request)


@pytest.mark.timeout(900)  # the first waits for them all
@pytest.mark.parametrize("promise", quick(POSSIBLE, WHEN_SERVED), ids=repr)
def test_served(kept_when_served: dict[str, Future[None]], promise: Promise) -> None:
    kept_when_served[promise.name].result()


@pytest.mark.slow
@pytest.mark.parametrize("promise", POSSIBLE, ids=repr)
def test_trio(served: Node, promise: Promise) -> None:
    promise.check(on(served), "trio", patience_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("promise", LEFT_ALONE[::12], ids=repr)
def test_some_on_trio(served: Node, promise: Promise) -> None:
    promise.check(on(served), "trio", patience_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_is_refused(served: Node, name: str) -> None:
    (promise,) = [promise for promise in PROMISES if promise.name == name]
    with pytest.raises(ConfigError, match="librdkafka"):
        promise.check(on(served))

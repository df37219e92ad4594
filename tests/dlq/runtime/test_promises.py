"""Every promise on every log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from eventbus.testing import FakeClock, KafkaServer, RealKafka
from tests.dlq.runtime.logs import Log
from tests.dlq.runtime.promises import PROMISES, Promise
from tests.kafka.targets import bus_url

for _module in ("ladder", "orders", "restarts"):
    import_module(f"tests.dlq.runtime.{_module}")

pytestmark = pytest.mark.xdist_group("kafka")

ON_KAFKA = [promise for promise in PROMISES if promise.on_kafka]


def some(promises: list[Promise], step: int) -> list[Any]:
    """All of them, of which the quick tier tries one in ``step``: in memory it tries all."""
    return [
        pytest.param(one, id=repr(one), marks=() if place % step == 0 else pytest.mark.slow)
        for place, one in enumerate(promises)
    ]


AT_ONCE = 10
"""Promises side by side: most of their time is waiting."""
_numbers = itertools.count()


def in_memory(promise: Promise) -> Any:
    """Plain functions run in threads, for which no fake clock waits: real milliseconds pass."""
    return pytest.param(promise, id=repr(promise), marks=pytest.mark.system if "(plain" in repr(promise) else ())


@pytest.mark.parametrize("promise", [in_memory(promise) for promise in PROMISES])
def test_memory(promise: Promise) -> None:
    promise.check(Log(f"memory://dlq-runtime-{next(_numbers)}", clock=FakeClock(), keep=True))


@pytest.mark.system
@pytest.mark.parametrize("promise", some(PROMISES, 6))
def test_file(promise: Promise, tmp_path: Path) -> None:
    promise.check(Log(f"file://{tmp_path}/log?fsync=os", clock=FakeClock()))


def side_by_side(bootstrap: str, test: str, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """What becomes of the promises that ``test`` was asked for, by name: each is tried in a thread."""
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


@pytest.mark.system
@pytest.mark.timeout(600)  # the first waits for a broker that starts
@pytest.mark.parametrize("promise", some(ON_KAFKA, 3))
def test_kafka(kept_by_kafka: dict[str, Future[None]], promise: Promise) -> None:
    kept_by_kafka[promise.name].result()

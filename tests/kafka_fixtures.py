"""Apache Kafka for tests: session fixtures that every test can use (tests/conftest.py loads this module as a plugin).

``real`` is a single broker, and ``listeners`` are its addresses. ``parted`` is three brokers whose network a test can
cut, and ``cluster``, for the slow tier, three others. Brokers take seconds to start, so the files that share them
belong to a group and run on the same worker: ``pytest.mark.xdist_group("kafka")``, or ``"cluster"`` for three. A test
that stops or kills a broker starts it again. After the last test of the group they are killed: three idle brokers take
a tenth of a core.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from eventbus.testing import RealKafka
from tests.clients.jars import CACHE, LATEST, NotAvailableError, class_path, java
from tests.cluster_faults.cluster import Cluster
from tests.kafka.listeners import Listeners
from tests.tiers import group_of_file

REQUIRED = os.environ.get("EVENTBUS_TEST_CLIENTS") == "require"
QUIET = {"auto.create.topics.enable": "false"}
"""A metadata request must not create a topic: one that a test has deleted would come back."""
SHORT_LIVED = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
"""The quick compiler alone and the smallest collector: brokers that live for minutes take half of the CPU."""


@cache
def java_options() -> list[str]:
    """Return the options of a broker that starts quickly, with an archive of Kafka's classes (JEP 350).

    Loading classes is half of a broker's start. The first call on a machine creates the archive with a broker that
    starts and stops, which takes ten seconds. Java ignores an archive that does not fit.
    """
    class_path()
    archive = CACHE / f"{LATEST}-{Path(java()).resolve().stat().st_mtime_ns}.jsa"
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            partial = archive.with_suffix(".partial")
            training = [*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={partial}", "-Xlog:disable"]
            with tempfile.TemporaryDirectory() as folder, RealKafka(Path(folder), java_options=training):
                pass
            if partial.exists():  # not if it was killed for taking too long
                partial.rename(archive)
    return [*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]


def kafka_or_skip(folders: pytest.TempPathFactory, name: str, *, nodes: int = 1) -> RealKafka:
    """Return a cluster that is not started. Without Java, skip the test, or fail if Java is required."""
    try:
        return RealKafka(folders.mktemp(name), nodes=nodes, properties=QUIET, java_options=java_options())
    except NotAvailableError as missing:
        if REQUIRED:
            raise
        pytest.skip(str(missing))


_running: list[RealKafka] = []


def _run(kafka: RealKafka) -> RealKafka:
    """Start the brokers of a fixture that do not run: before the first test of a group, or for a test outside of it."""
    if kafka not in _running:
        kafka.start()
        _running.append(kafka)
    return kafka


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or group_of_file(nextitem.path) != group_of_file(item.path):
        pytest_sessionfinish()


def pytest_sessionfinish() -> None:
    """Kill the brokers, also if the run is interrupted."""
    while _running:
        _running.pop().kill()


@pytest.fixture(scope="session")
def _listeners(tmp_path_factory: pytest.TempPathFactory) -> Listeners:
    return Listeners(kafka_or_skip(tmp_path_factory, "kafka"))


@pytest.fixture(scope="module")
def listeners(_listeners: Listeners) -> Listeners:
    _run(_listeners.kafka)
    return _listeners


@pytest.fixture(scope="module")
def real(listeners: Listeners) -> RealKafka:
    """One broker; ``real.url`` is its plaintext listener."""
    return listeners.kafka


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> RealKafka:
    return kafka_or_skip(tmp_path_factory, "cluster", nodes=3)


@pytest.fixture(scope="module")
def cluster(_cluster: RealKafka) -> RealKafka:
    """Three brokers. Topics have three replicas, of which two must be in sync."""
    return _run(_cluster)


@pytest.fixture(scope="session")
def _parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(kafka_or_skip(tmp_path_factory, "parted", nodes=3))
    with cluster.network:
        yield cluster


@pytest.fixture
def parted(_parted: Cluster) -> Cluster:
    """Three brokers, healed of what the test before has done to them and to their network."""
    _run(_parted.kafka)
    _parted.heal()
    return _parted

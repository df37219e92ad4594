"""Apache Kafka for tests: session fixtures that every test can use (tests/conftest.py loads this module as a plugin).

``real`` is a single broker, and ``listeners`` are its addresses. ``cluster`` is three brokers; ``parted`` is three
brokers whose network a test can cut. Brokers take seconds to start, so the files that share them belong to a group and
run on the same worker: ``pytest.mark.xdist_group("kafka")``, or ``"cluster"`` for three. A test that stops or kills a
broker starts it again.
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


@pytest.fixture(scope="session")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    kafka = kafka_or_skip(tmp_path_factory, "kafka")
    listeners = Listeners(kafka)
    with kafka:
        yield listeners


@pytest.fixture(scope="session")
def real(listeners: Listeners) -> RealKafka:
    """One broker; ``real.url`` is its plaintext listener."""
    return listeners.kafka


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Three brokers. Topics have three replicas, of which two must be in sync."""
    with kafka_or_skip(tmp_path_factory, "cluster", nodes=3) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def _parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(kafka_or_skip(tmp_path_factory, "parted", nodes=3))
    with cluster.network, cluster.kafka:
        yield cluster


@pytest.fixture
def parted(_parted: Cluster) -> Cluster:
    """Three brokers, healed of what the test before has done to them and to their network."""
    _parted.heal()
    return _parted

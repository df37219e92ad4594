"""Apache Kafka for tests of several folders: a conftest imports the fixtures that its tests use.

    from tests.kafka_fixtures import cluster, real

    __all__ = ["cluster", "real"]

One broker (``real``) and one cluster of three (``cluster``) serve all tests of a session. Who kills a node starts it
again.
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

REQUIRED = os.environ.get("EVENTBUS_TEST_CLIENTS") == "require"
QUIET = {"auto.create.topics.enable": "false"}
"""Creating a topic is no side effect of asking for it: it would come back while clients still ask for it."""
SHORT_LIVED = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
"""The quick compiler alone and the smallest collector: brokers that live for minutes take half of the CPU."""


@cache
def java_options() -> list[str]:
    """Those, and Kafka's classes made ready beforehand (JEP 350): loading them is half of a broker's start.

    The first who asks on a machine makes the archive, by a broker that starts and ends, in ten seconds. Java passes
    over an archive that does not fit.
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
    """A cluster, not started. Without Java the test is skipped with the reason, or fails where Java is required."""
    try:
        return RealKafka(folders.mktemp(name), nodes=nodes, properties=QUIET, java_options=java_options())
    except NotAvailableError as missing:
        if REQUIRED:
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """One broker."""
    with kafka_or_skip(tmp_path_factory, "kafka") as kafka:
        yield kafka


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Three brokers, three replicas of everything, two of them must be in sync."""
    with kafka_or_skip(tmp_path_factory, "cluster", nodes=3) as kafka:
        yield kafka

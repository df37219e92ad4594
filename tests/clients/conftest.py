"""One server, one JVM per Kafka version and one set of npm packages for all the clients.

``EVENTBUS_TEST_AGAINST=kafka`` runs the same tests against a real Kafka broker: what fails there is a wrong test.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from eventbus.testing import RealKafka
from tests.clients import matrix, modules
from tests.clients.jars import LATEST, OLD, NotAvailableError, class_path
from tests.clients.serving import Served
from tests.clients.tools import KafkaTools, compiled

REQUIRED = os.environ.get("EVENTBUS_TEST_CLIENTS") == "require"

RESULTS: dict[tuple[str, str], bool] = {}
"""Cells of the client matrix whose tests ran in this session, by client and feature: did they pass?"""

Server = Served | RealKafka
AGAINST_KAFKA = os.environ.get("EVENTBUS_TEST_AGAINST") == "kafka"


T = TypeVar("T")


def or_skip(make: Callable[[], T]) -> T:
    """What ``make`` gives; without it the test is skipped with the reason, or fails where clients are required."""
    try:
        return make()
    except NotAvailableError as missing:
        if REQUIRED:
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    if AGAINST_KAFKA:
        server: Server = or_skip(lambda: RealKafka(folder))
    else:
        # KIP-848 leaves the pace of a group to the server, and Kafka's 5 s make tests slow.
        pace = ("--override", "group.consumer.heartbeat.interval.ms=300")
        server = Served(folder, "--auto-create", "--verbose", *pace)
    with server:
        yield server


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server that wants TLS and SCRAM: what a client must be told to get in, its address besides."""
    if AGAINST_KAFKA:
        pytest.skip("the real broker here has no certificate")
    folder = tmp_path_factory.mktemp("secured")
    certificate, key = folder / "server.pem", folder / "server.key"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    options = ["--listener", "SASL_SSL://localhost:0", "--tls-cert", str(certificate), "--tls-key", str(key)]
    options += ["--user", "alice:a-secret", "--verbose"]
    with Served(folder / "log", *options) as server:
        yield {
            "bootstrap": server.bootstrap,
            "mechanism": "SCRAM-SHA-512",
            "username": "alice",
            "password": "a-secret",
            "ca": str(certificate),
        }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the server said meanwhile. What fills a cell of the client matrix is written down."""
    report = yield
    if report.when == "call" and report.outcome != "skipped":
        key = matrix.cell_of(item)
        if key:
            RESULTS[key] = RESULTS.get(key, True) and report.passed
    server = getattr(item, "funcargs", {}).get("served")
    if report.failed and isinstance(server, Served):
        report.sections.append(("eventbus serve", server.said()[-3000:]))
    return report


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[Callable[[str], KafkaTools]]:
    """``kafka_tools(version)``: the JVM that runs this Kafka version's tools, shared by all tests."""
    running: dict[str, KafkaTools] = {}

    def tools_of(version: str) -> KafkaTools:
        or_skip(compiled)
        or_skip(lambda: class_path(version))
        return running.setdefault(version, KafkaTools(version))

    yield tools_of
    for tools in running.values():
        tools.close()


@pytest.fixture(params=[pytest.param(LATEST, id="kafka-4"), pytest.param(OLD, id="kafka-3.9", marks=pytest.mark.slow)])
def tools(request: pytest.FixtureRequest, kafka_tools: Callable[[str], KafkaTools]) -> KafkaTools:
    return kafka_tools(request.param)


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder with the npm clients, installed once."""
    return or_skip(modules.installed)


@pytest.fixture(scope="session")
def admin(served: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": served.bootstrap})


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and groups that no other test uses."""
    legal = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return legal.removeprefix("test-").strip("-")


@pytest.fixture
def create(admin: AdminClient) -> Callable[..., str]:
    """``create(topic, partitions, **config)`` -> topic."""

    def create(topic: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(20)
        return topic

    return create


@pytest.fixture
def fill(served: Server) -> Callable[..., None]:
    """``fill(topic, *values)``: records whose key is their number."""

    def fill(topic: str, *values: str, **settings: str) -> None:
        producer = Producer({"bootstrap.servers": served.bootstrap, **settings})
        for number, value in enumerate(values):
            producer.produce(topic, value, f"k{number}", partition=0)
        assert producer.flush(30) == 0

    return fill

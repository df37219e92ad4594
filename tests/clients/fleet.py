"""The clients: what each can do, and how its driver is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.clients.jars import LATEST, OLD
from tests.clients.modules import environment, node
from tests.clients.tools import KafkaTools

HERE = Path(__file__).parent
LIMIT_S = 100
FEATURES = {
    "produce": "produce, consume",
    "idempotent": "idempotent",
    "compression": "compression",
    "transactions": "transactions with offsets",
    "read_committed": "read committed",
    "group": "groups",
    "cooperative-sticky": "cooperative",
    "static": "static members",
    "consumer": "KIP-848 groups",
    "admin": "admin",
    "secure": "TLS, SCRAM",
}
"""Columns of the matrix, by the scenario that proves them."""


class Client(NamedTuple):
    """A client library."""

    name: str
    version: str
    features: frozenset[str]
    """What the library has at all. For the rest the matrix has a dash."""
    codecs: tuple[str, ...]
    strategy: str
    """The assignor of its "groups" column: range, or the one it has."""
    command: tuple[str, ...] = ()
    """Its driver; Java's runs in the tools' JVM instead."""

    @property
    def is_java(self) -> bool:
        return not self.command

    @property
    def is_node(self) -> bool:
        return self.command[:1] == ("node",)


def _without(*missing: str) -> frozenset[str]:
    return frozenset(FEATURES) - frozenset(missing)


def _python(driver: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"tests.clients.drivers.{driver}")


def _node(driver: str) -> tuple[str, ...]:
    return ("node", str(HERE / "js" / driver))


ALL_CODECS = ("gzip", "snappy", "lz4", "zstd")
CLIENTS = (
    Client("confluent-kafka", "librdkafka 2.16", _without(), ALL_CODECS, "range", _python("confluent")),
    Client("aiokafka", "0.14", _without("cooperative-sticky", "consumer"), ALL_CODECS, "range", _python("aio")),
    # kafka-python's other codecs are libraries of their own.
    Client("kafka-python", "3.0", _without("consumer"), ("gzip",), "range", _python("kafka_python")),
    # KafkaJS has gzip alone, one assignor (round robin), no static members.
    Client(
        "KafkaJS", "2.2", _without("cooperative-sticky", "static", "consumer"), ("gzip",), "round robin",
        _node("kafkajs.cjs"),
    ),
    # With a real Kafka too it leaves the group when it closes, static member or not; hands records out twice in a
    # KIP-848 group; and reads the records of a producer's second aborted transaction. Its zstd needs a newer node.
    Client(
        "@platformatic/kafka", "1.35", _without("cooperative-sticky", "static", "consumer", "read_committed"),
        ("gzip", "snappy", "lz4"), "round robin", _node("platformatic.cjs"),
    ),
    Client("Java client", "4.3", _without(), ALL_CODECS, "range"),
    Client("Java client", "3.9", _without("consumer"), ALL_CODECS, "range"),
)  # fmt: skip

STRATEGIES = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


def play(
    client: Client,
    scenario: str,
    arguments: dict[str, Any],
    kafka_tools: Callable[[str], KafkaTools],
    modules: Path | None,
) -> dict[str, Any]:
    """Run one scenario with a client's driver. ``modules`` is for those of npm.

    Raises:
        AssertionError: the driver failed; with what it printed.
    """
    if client.is_java:
        if arguments.get("strategy") in STRATEGIES:
            arguments = {**arguments, "strategy": STRATEGIES[arguments["strategy"]]}
        version = LATEST if LATEST.startswith(client.version) else OLD
        done = kafka_tools(version).run("ClientChecks", scenario, json.dumps(arguments), timeout_s=LIMIT_S)
        assert done.code == 0, done.text
        return json.loads(done.out)
    command = list(client.command)
    settings: dict[str, Any] = {}
    if client.is_node:
        assert modules
        command[0] = node()
        settings["env"] = environment(modules)
    command += [scenario, json.dumps(arguments)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=HERE.parents[1], **settings)
    assert process.returncode == 0, f"{client.name}, {scenario}: {process.stdout}{process.stderr}"
    return json.loads(process.stdout.splitlines()[-1])

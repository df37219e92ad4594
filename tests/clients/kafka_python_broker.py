"""A pytest plugin for kafka-python's own integration suite: ``eventbus serve`` where that would start a Kafka.

The suite comes in kafka-python's source distribution, less ``test/service.py``, which only real brokers need.
tests/clients/test_kafka_python_suite.py runs it, in a process of its own, from the unpacked distribution.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from tests.clients.serving import Served

USER, PASSWORD = "alice", "alice-secret"


class Broker:
    """What the suite asks of its KafkaFixture."""

    replicas = 1
    partitions = 4
    node_id = 1
    zookeeper = None

    def __init__(self, transport: str = "PLAINTEXT", sasl_mechanism: str | None = None, **_: Any) -> None:
        self.transport = transport
        self.sasl_mechanism = sasl_mechanism
        self.child = self
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-python-")
        self.ssl_dir = self._folder.name
        options = ["--listener", f"{transport}://127.0.0.1:0", "--auto-create", "--num-partitions", "4"]
        options += ["--group-min-session-timeout-ms", "1000", "--override", "allow.everyone.if.no.acl.found=true"]
        options += ["--override", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"]
        if "SASL" in transport:
            options += ["--user", f"{USER}:{PASSWORD}"]
        if "SSL" in transport:
            certificate, key = (str(Path(self.ssl_dir) / name) for name in ("ca-cert", "key"))
            make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
            make += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate]
            subprocess.run(make, check=True, capture_output=True)
            options += ["--tls-cert", certificate, "--tls-key", key]
        self._served = Served(Path(self._folder.name) / "log", *options)
        self._served.start()
        self.port = int(self._served.bootstrap.rpartition(":")[2])

    @classmethod
    def instance(cls, broker_id: int, **settings: Any) -> Broker:
        return cls(**settings)

    def start(self) -> None:
        """It runs since it was made."""

    def dump_logs(self) -> None:
        print(self._served.said())

    def close(self) -> None:
        self._served.stop()
        self._folder.cleanup()

    def bootstrap_server(self) -> str:
        return f"localhost:{self.port}"

    def get_topic_names(self) -> list[str]:
        from kafka import KafkaAdminClient

        with KafkaAdminClient(**self._enrich_client_params({})) as client:
            return client.list_topics()

    def _enrich_client_params(self, settings: dict[str, Any], **defaults: Any) -> dict[str, Any]:
        ours: dict[str, Any] = {"bootstrap_servers": self.bootstrap_server(), "security_protocol": self.transport}
        if self.sasl_mechanism:
            ours["sasl_mechanism"] = self.sasl_mechanism
            ours |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        if "SSL" in self.transport:
            ours |= {"ssl_cafile": str(Path(self.ssl_dir) / "ca-cert"), "ssl_check_hostname": False}
        return ours | defaults | settings


def _become_the_suites_fixture() -> None:
    suite = types.ModuleType("test")  # or the standard library's package of this name is found
    suite.__path__ = [str(Path.cwd() / "test")]
    service: Any = types.ModuleType("test.service")
    service.ExternalService = service.SpawnedService = object
    sys.modules |= {"test": suite, "test.service": service}
    os.environ["KAFKA_VERSION"] = "4.3.0"
    os.environ["KAFKA_ROOT"] = str(Path.cwd())
    from test.integration import fixtures

    fixtures.KafkaFixture = Broker


_become_the_suites_fixture()

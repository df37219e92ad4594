"""Three brokers with a network between them that can be cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eventbus.testing import RealKafka
from tests.cluster_faults.network import BROKERS, CLIENTS, CONTROLLERS, Network
from tests.kafka.targets import bus_url, kept_ports
from tests.kafka_fixtures import kafka_or_skip

QUICK = {"request.timeout.ms": "2000", "socket.timeout.ms": "4000", "topic.metadata.refresh.interval.ms": "1000"}
"""A silent broker is given up within seconds. (By default it takes a minute.)"""


class Cluster:
    """Three brokers whose every word passes `network`."""

    def __init__(self, kafka: RealKafka, network: Network, bootstrap: str) -> None:
        self.kafka = kafka
        self.network = network
        self.bootstrap = bootstrap

    @property
    def url(self) -> str:
        return bus_url(self.bootstrap, **QUICK)

    def heal(self) -> None:
        """All as it was: the network is whole, every broker runs."""
        self.network.on_request = self.network.on_answer = lambda node, api_key: None
        self.network.heal()
        for node in self.kafka.nodes:
            if not node.is_running:
                node.start()


@pytest.fixture(scope="package")
def _parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kafka = kafka_or_skip(tmp_path_factory, "parted", nodes=3)
    network = Network()
    advertised: list[int] = []
    voters: list[str] = []
    for node in kafka.nodes:
        listeners = dict(one.split("://127.0.0.1:") for one in node.properties["listeners"].split(","))
        (internal,) = kept_ports(kafka, 1)
        clients = network.port_for(node.id, CLIENTS, int(listeners["PLAINTEXT"]))
        brokers = network.port_for(node.id, BROKERS, internal)
        controllers = network.port_for(node.id, CONTROLLERS, int(listeners["CONTROLLER"]))
        advertised.append(clients)
        voters.append(f"{node.id}@127.0.0.1:{controllers}")
        node.properties |= {
            "listeners": f"{node.properties['listeners']},INTERNAL://127.0.0.1:{internal}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients},INTERNAL://127.0.0.1:{brokers}"
            f",CONTROLLER://127.0.0.1:{controllers}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
        }
    for node in kafka.nodes:
        node.properties["controller.quorum.voters"] = ",".join(voters)
    with network, kafka:
        yield Cluster(kafka, network, ",".join(f"127.0.0.1:{port}" for port in advertised))


@pytest.fixture
def parted(_parted: Cluster) -> Cluster:
    """Healed of what the test before has done; after the last one there is nobody to heal it for."""
    _parted.heal()
    return _parted

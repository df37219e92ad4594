"""Three brokers with a network between them that can be cut."""

from __future__ import annotations

from eventbus.testing import RealKafka
from tests.cluster_faults.network import BROKERS, CLIENTS, CONTROLLERS, Network
from tests.kafka.urls import bus_url
from tests.ports import kept_ports

QUICK = {"request.timeout.ms": "2000", "socket.timeout.ms": "4000", "topic.metadata.refresh.interval.ms": "1000"}
"""A client gives up a silent broker within seconds. (By default it takes a minute.)"""


class Cluster:
    """The brokers of ``kafka``, which must not be started yet: every request passes ``network``."""

    def __init__(self, kafka: RealKafka) -> None:
        self.kafka = kafka
        self.network = Network()
        advertised: list[int] = []
        voters: list[str] = []
        for node in kafka.nodes:
            listeners = dict(one.split("://127.0.0.1:") for one in node.properties["listeners"].split(","))
            (internal,) = kept_ports(kafka, 1)
            clients = self.network.port_for(node.id, CLIENTS, int(listeners["PLAINTEXT"]))
            brokers = self.network.port_for(node.id, BROKERS, internal)
            controllers = self.network.port_for(node.id, CONTROLLERS, int(listeners["CONTROLLER"]))
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
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in advertised)

    @property
    def url(self) -> str:
        return bus_url(self.bootstrap, **QUICK)

    def heal(self) -> None:
        """Remove traps and cuts from the network, and start every broker that was killed."""
        self.network.on_request = self.network.on_answer = lambda node, api_key: None
        self.network.heal()
        for node in self.kafka.nodes:
            if not node.is_running:
                node.start()

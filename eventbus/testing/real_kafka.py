"""Apache Kafka itself, for tests: KRaft nodes in separate folders, on free ports of 127.0.0.1, without containers.

    with RealKafka(folder, nodes=3) as kafka:
        EventBus(kafka.url)                          # "kafka://127.0.0.1:21123,127.0.0.1:21125,127.0.0.1:21127"
        kafka.nodes[0].kill()                        # like the crash of a broker
        kafka.nodes[0].start()

Needs Java 17 and, once per machine, Maven: `eventbus.testing.kafka_jars` downloads Kafka. To run it until Ctrl-C:
``python -m eventbus.testing.real_kafka [--nodes 3] [--version 4.3.1] [KEY=VALUE ...]``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import weakref
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from eventbus.testing.kafka_jars import LATEST, class_path, java

CLUSTER_ID = "ZXZlbnRidXMtb3JhY2xlMQ"
START_S = 180
STOP_S = 30

_EVERYWHERE = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_ALONE = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
_TOGETHER = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    # A dead broker is detected, and replaced as a leader, within about four seconds; Kafka's own 9 s and 2 s are for
    # machines that share a network.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "750",
    "controller.quorum.election.backoff.max.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "replica.fetch.backoff.ms": "200",
}


class KafkaNode:
    """A process of the cluster: a broker that is also a controller."""

    def __init__(self, number: int, folder: Path, version: str, properties: dict[str, str], options: list[str]) -> None:
        self.id = number
        self.folder = folder
        self.version = version
        self.properties = properties
        """Its ``server.properties``; changes take effect at the next `start`."""
        self.logs = Path(properties["log.dirs"])
        """The directory of its segments (``<topic>-<partition>/``)."""
        self.output = folder / "broker.out"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return int(self.properties["listeners"].partition(",")[0].rpartition(":")[2])

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id, for reading its CPU time and memory."""
        assert self._process is not None, f"node {self.id} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the node, and return when clients can connect. A second start continues with the same folder.

        Raises:
            RuntimeError: the broker ended, or did not come up within 180 s; with the end of its output.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process: the first half of `start`."""
        assert self._process is None, f"node {self.id} is running"
        config = self._write_config()
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*_java(self.version, self._options), "kafka.Kafka", str(config)], stdout=output, stderr=output
            )

    def wait_until_ready(self) -> None:
        """Wait until clients can connect: the second half of `start`."""
        assert self._process is not None
        limit = time.monotonic() + START_S
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)  # the open port is the only sign that the other process is ready
        self.kill()
        raise RuntimeError(f"Kafka {self.version} did not start: {self.output.read_text('utf-8')[-4000:]}")

    def stop(self) -> None:
        """Shut down cleanly, after moving the leaders of its partitions; killed if it takes longer than 30 s."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: what it has not replicated is lost to the others; its files stay as the system has them."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Send SIGSTOP: the process stops and its connections stay open, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def format(self) -> None:
        """Write the cluster id to its storage, as ``kafka-storage format`` does, unless it is already formatted."""
        if self.logs.exists():
            return
        config = str(self._write_config())
        # It runs for a second: using only the quick compiler and the smallest collector halves that.
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command = [*_java(self.version, options), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", config]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        if done.returncode:
            raise RuntimeError(f"Kafka's storage tool failed: {done.stdout}{done.stderr}")

    def format_like(self, other: KafkaNode) -> None:
        """Format without the tool, which writes the same to every node except its id and its directory's."""
        if self.logs.exists():
            return
        shutil.copytree(other.logs, self.logs)
        directory_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        meta = [f"cluster.id={CLUSTER_ID}", f"directory.id={directory_id}", f"node.id={self.id}", "version=1"]
        (self.logs / "meta.properties").write_text("\n".join(meta) + "\n", "utf-8")

    def _write_config(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()), "utf-8")
        return config

    def _end(self, how: signal.Signals, within_s: float = STOP_S) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RealKafka:
    """A cluster that starts on entry and stops on exit, with one node, or three (or more).

    With three, a topic has three replicas and requires two in sync, unless its creator chooses otherwise, and a killed
    leader is replaced within seconds. ``properties`` override the brokers' (``{"num.partitions": "4"}``).
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        version: str = LATEST,
        properties: dict[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        class_path(version)  # fails here, not at the start, if something is missing
        self.folder = folder
        self.version = version
        ports, sockets = _reserve_ports(2 * nodes)
        weakref.finalize(self, _close, sockets)
        voters = ",".join(f"{number}@127.0.0.1:{ports[-number]}" for number in range(1, nodes + 1))
        common = {**_EVERYWHERE, "controller.quorum.voters": voters, **_replication(nodes)}
        options = ["-Xmx512m" if nodes == 1 else "-Xmx384m", *java_options]
        self.nodes: list[KafkaNode] = []
        for number in range(1, nodes + 1):
            home = folder if nodes == 1 else folder / f"node-{number}"
            own = {
                "node.id": str(number),
                "listeners": f"PLAINTEXT://127.0.0.1:{ports[number - 1]},CONTROLLER://127.0.0.1:{ports[-number]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports[number - 1]}",
                "log.dirs": str(home / "logs"),
            }
            self.nodes.append(KafkaNode(number, home, version, {**common, **own, **(properties or {})}, options))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def logs(self) -> Path:
        """The segment directory of the only node."""
        return self._only.logs

    @property
    def output(self) -> Path:
        """The output of the only node."""
        return self._only.output

    @property
    def pid(self) -> int:
        """The process id of the only node."""
        return self._only.pid

    def start(self) -> None:
        """Start all nodes, and return when clients can connect to every node. A second start continues with the same
        folders.

        Raises:
            RuntimeError: a node ended, or did not come up within 180 s; with the end of its output.
        """
        first, *others = self.nodes
        first.format()
        for node in others:
            node.format_like(first)
        try:
            for node in self.nodes:
                if not node.is_running:
                    node.launch()
            for node in self.nodes:
                node.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Shut the nodes down cleanly in turn, while a majority remains to agree; kill the rest."""
        running = [node for node in self.nodes if node.is_running]
        while running and 2 * len(running) > len(self.nodes):
            running.pop(0).stop()
        for node in self.nodes:
            node.kill()

    def kill(self) -> None:
        """Kill all nodes at once."""
        for node in self.nodes:
            node.kill()

    def node(self, number: int) -> KafkaNode:
        """Return the node with that id, as in the metadata."""
        return self.nodes[number - 1]

    def __enter__(self) -> RealKafka:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if len(self.nodes) == 1:
            self.stop()
        else:
            self.kill()  # a clean shutdown would move its partitions for nothing

    @property
    def _only(self) -> KafkaNode:
        (node,) = self.nodes
        return node


def _replication(nodes: int) -> dict[str, str]:
    if nodes == 1:
        return _ALONE
    copies, needed = str(min(nodes, 3)), str(min(nodes - 1, 2))
    return {
        **_TOGETHER,
        "default.replication.factor": copies,
        "min.insync.replicas": needed,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": needed,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": needed,
    }


def _java(version: str, options: Sequence[str]) -> list[str]:
    return [java(), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(version)]


def _reserve_ports(count: int) -> tuple[list[int], list[socket.socket]]:
    """Reserve ports while the sockets are open, even while a node is down: they are bound and never listen.

    The system assigns such a port to no other process, neither for a bind nor for a connect (a client that connects to
    its own port in vain would connect to itself, and block the node). A process that sets SO_REUSEADDR, as Java does,
    may bind it and listen.
    """
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    return [each.getsockname()[1] for each in sockets], sockets


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a real Kafka cluster in a temporary folder, until Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--version", default=LATEST)
    parser.add_argument("properties", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    properties = dict(text.split("=", 1) for text in arguments.properties)
    with tempfile.TemporaryDirectory(prefix="real-kafka-") as folder:
        begin = time.monotonic()
        kafka = RealKafka(Path(folder), nodes=arguments.nodes, version=arguments.version, properties=properties)
        with kafka:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            print(f"Kafka {kafka.version} on {kafka.bootstrap} after {time.monotonic() - begin:.1f} s", flush=True)
            for node in kafka.nodes:
                print(f"  node {node.id} on {node.bootstrap}: process {node.pid}, files in {node.logs}", flush=True)
            try:
                signal.pause()
            except KeyboardInterrupt:
                print("stopping", flush=True)


if __name__ == "__main__":
    main()

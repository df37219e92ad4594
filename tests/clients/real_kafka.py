"""A real Apache Kafka broker: one KRaft node in a folder of its own, on free ports of 127.0.0.1.

    with RealKafka(folder) as kafka:
        kafka.bootstrap                              # "127.0.0.1:40123"

By hand, until Ctrl-C: ``python tests/clients/real_kafka.py [--version 4.3.1] [log.flush.interval.messages=1 ...]``.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.clients.jars import LATEST, class_path, java

CLUSTER_ID = "ZXZlbnRidXMtb3JhY2xlMQ"
START_S = 60
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class RealKafka:
    """Starts on entry and stops on exit. ``properties`` override the broker's (``{"num.partitions": "4"}``)."""

    def __init__(self, folder: Path, *, version: str = LATEST, properties: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.version = version
        self.logs = folder / "logs"
        """Where the broker keeps its segments (``<topic>-<partition>/``)."""
        self.output = folder / "broker.out"
        self._port, controller = _free_ports(2)
        self._properties = PROPERTIES | {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.logs),
        }
        self._properties |= properties or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The broker's process, for reading its CPU time and memory."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> None:
        """Returns when clients can connect. A second start continues with the same folder.

        Raises:
            RuntimeError: the broker ended, or did not come up within 60 s; with the end of its output.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()), "utf-8")
        if not self.logs.exists():
            self._run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java("-Xmx512m"), "kafka.Kafka", str(config)], stdout=output, stderr=output
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """A clean shutdown; killed if it takes longer than 30 s."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def __enter__(self) -> RealKafka:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _java(self, *options: str) -> list[str]:
        return [java(), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(self.version)]

    def _run_tool(self, main_class: str, *arguments: str) -> None:
        # It lives for a second: the quick compiler alone and the smallest collector halve that.
        command = [*self._java("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"), main_class, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        if done.returncode:
            raise RuntimeError(f"{main_class} failed: {done.stdout}{done.stderr}")

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        limit = time.monotonic() + START_S
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)  # another process starts, and says so by its port alone
        self.kill()
        raise RuntimeError(f"Kafka {self.version} did not start: {self.output.read_text('utf-8')[-4000:]}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a real Kafka broker in a temporary folder, until Ctrl-C.")
    parser.add_argument("--version", default=LATEST)
    parser.add_argument("properties", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    properties = dict(text.split("=", 1) for text in arguments.properties)
    with tempfile.TemporaryDirectory(prefix="real-kafka-") as folder:
        begin = time.monotonic()
        with RealKafka(Path(folder), version=arguments.version, properties=properties) as kafka:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            took = time.monotonic() - begin
            print(
                f"Kafka {kafka.version} on {kafka.bootstrap}, process {kafka.pid}, files in {kafka.logs}, {took:.1f} s"
            )
            try:
                signal.pause()
            except KeyboardInterrupt:
                os.write(1, b"stopping\n")


if __name__ == "__main__":
    main()

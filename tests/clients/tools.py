"""Kafka's own command-line tools: the main classes that its scripts start, run in one JVM per version."""

from __future__ import annotations

import fcntl
import struct
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from tests.clients.jars import CACHE, OLD, NotAvailableError, class_path, java

OPTIONS = (
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""Tools live for a second: the quick compiler alone and the smallest collector suit them."""
SOURCES = sorted(Path(__file__).with_name("java").glob("*.java"))
TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
IN_3_9 = {
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
}


class Done(NamedTuple):
    """How a tool ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class KafkaTools:
    """One JVM that runs tools of one Kafka version, one at a time. Starts with the first; ``close`` ends it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._jvm: subprocess.Popen[bytes] | None = None

    def main_class(self, tool: str) -> str:
        """The class that the script ``tool`` starts; another name is taken for a class (tests/clients/java)."""
        return IN_3_9.get(tool, TOOLS.get(tool, tool)) if self.version == OLD else TOOLS.get(tool, tool)

    def run(self, tool: str, *arguments: str, stdin: str = "", timeout_s: float = 60) -> Done:
        """Run ``kafka-topics --list ...`` with the arguments of Kafka's script.

        Raises:
            TimeoutError: it did not end; the JVM is killed, and the next tool gets a new one.
        """
        jvm = self._running()
        assert jvm.stdin and jvm.stdout
        request = [self.main_class(tool), stdin, *arguments]
        frame = struct.pack(">i", len(request))
        for text in request:
            encoded = text.encode()
            frame += struct.pack(">i", len(encoded)) + encoded
        guard = threading.Timer(timeout_s, jvm.kill)
        guard.start()
        try:
            jvm.stdin.write(frame)
            jvm.stdin.flush()
            (code,) = struct.unpack(">i", _exactly(jvm.stdout, 4))
            out, err = (_exactly(jvm.stdout, *struct.unpack(">i", _exactly(jvm.stdout, 4))).decode() for _ in range(2))
        except (EOFError, BrokenPipeError):
            self.close()
            raise TimeoutError(f"{tool} {' '.join(arguments)} did not end within {timeout_s:.0f} s") from None
        finally:
            guard.cancel()
        return Done(code, out, err)

    def run_alone(self, tool: str, *arguments: str, timeout_s: float = 60) -> Done:
        """The same in a JVM of its own, for tools that finish in a shutdown hook of the JVM."""
        command = [java(), *OPTIONS, "-cp", class_path(self.version), self.main_class(tool), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        return Done(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.kill()
            jvm.wait()
            for pipe in (jvm.stdin, jvm.stdout):
                assert pipe
                pipe.close()

    def __enter__(self) -> KafkaTools:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._jvm is None:
            path = f"{compiled()}:{class_path(self.version)}"
            self._jvm = subprocess.Popen(
                [java(), *OPTIONS, "-cp", path, "ToolServer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._jvm


def compiled() -> Path:
    """Our Java programs, compiled against the older client so that they run with both.

    Raises:
        NotAvailableError: no ``javac``, or it refused the programs.
    """
    classes = CACHE / "classes"
    path = class_path(OLD)
    newest = max(source.stat().st_mtime for source in SOURCES)
    with (CACHE / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = classes / ".compiled"
        if not marker.exists() or marker.stat().st_mtime < newest:
            compiler = Path(java()).resolve().with_name("javac")
            if not compiler.exists():
                raise NotAvailableError(f"there is no {compiler} (on Debian: apt install default-jdk-headless)")
            command = [str(compiler), "--release", "17", "-cp", path, "-d", str(classes), *map(str, SOURCES)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise NotAvailableError(f"javac refused tests/clients/java: {done.stdout}{done.stderr}")
            marker.touch()
    return classes


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data

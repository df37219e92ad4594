"""`eventbus serve` beside a real Apache Kafka: the same C client (librdkafka), the same work, the same flush policy.

Needs a C compiler and librdkafka's headers (Debian: ``librdkafka-dev``), and for the rows beside Kafka a Java and its
jars (``tests/clients/jars.py`` fetches them). Every case starts a server of its own, warms it up, and measures the
server's CPU time and memory from outside.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from harness import Numbers, Skip, case, scratch

ROOT = Path(__file__).resolve().parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 30
_SHAPES = {"100 B in 64 KB": (100, 65_536, 5), "100 B in 1 MB": (100, 1_000_000, 50),
           "1 KB in 64 KB": (1_000, 65_536, 5), "1 KB in 1 MB": (1_000, 1_000_000, 50)}  # fmt: skip
"""Value size, batch size, and how long the client waits to fill a batch."""


class Running(NamedTuple):
    """A server, seen from outside."""

    host: str
    port: int
    pid: int
    ready_s: float
    """From the start of its process until it takes a connection."""

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_mib(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1]) * 4096 / 2**20


@contextmanager
def eventbus(folder: Path, fsync: str) -> Iterator[Running]:
    """`eventbus serve` on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "eventbus", "serve", str(folder / "log"), "--fsync", fsync, "--port", str(port)]
    began = time.perf_counter()
    with subprocess.Popen([*command, "--auto-create"], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            yield Running("127.0.0.1", port, process.pid, _ready_s(port, began, process))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_PATIENCE_S)


def _ready_s(port: int, began: float, process: subprocess.Popen[bytes]) -> float:
    while time.perf_counter() - began < _PATIENCE_S:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}") from None
            time.sleep(0.002)  # the time until it listens is what is measured
        else:
            return time.perf_counter() - began
    raise RuntimeError("the server does not listen")


@contextmanager
def kafka(folder: Path, **properties: str) -> Iterator[Running]:
    """A real broker: one KRaft node."""
    sys.path.insert(0, str(ROOT))
    from eventbus.testing import RealKafka
    from tests.clients.jars import NotAvailableError

    try:
        broker = RealKafka(folder / "kafka", properties=properties)
        began = time.perf_counter()
        broker.start()
    except (NotAvailableError, OSError, RuntimeError) as error:
        raise Skip(f"no Apache Kafka here: {error}") from error
    try:
        host, _, port = broker.bootstrap.partition(":")
        yield Running(host, int(port), broker.pid, time.perf_counter() - began)
    finally:
        broker.stop()


@cache
def client() -> str:
    """The C client, compiled."""
    compiler = shutil.which("cc")
    if compiler is None or not Path("/usr/include/librdkafka/rdkafka.h").exists():
        raise Skip("no C compiler with librdkafka's headers (Debian: gcc librdkafka-dev)")
    program = str(Path(tempfile.mkdtemp(prefix="bench-client-")) / "wire_client")
    source = str(Path(__file__).with_name("wire_client.c"))
    subprocess.run([compiler, "-O2", source, "-o", program, "-lrdkafka", "-lpthread"], check=True)
    return program


def run(*arguments: object) -> tuple[float, float]:
    """What the client prints: seconds and a count, or two percentiles in microseconds."""
    done = subprocess.run(
        [client(), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=_PATIENCE_S * 10
    )
    if done.returncode:
        raise RuntimeError(f"wire_client {arguments}: {done.stderr.strip()[-300:]}")
    first, second = done.stdout.split()
    return float(first), float(second)


def throughput(server: Running, n: int) -> Numbers:
    """Records in and out, by value and batch size; the server's CPU seconds."""
    numbers: Numbers = {"ready s": server.ready_s, "idle MiB": server.resident_mib()}
    _flow(server, "warm", n // 2, 100, 65_536, 5)
    _flow(server, "warm", n // 20, 1_000, 1_000_000, 50)
    for number, (shape, (size, batch_bytes, linger_ms)) in enumerate(_SHAPES.items()):
        count = n if size == 100 else n // 5
        produce_s, consume_s, in_cpu_s, out_cpu_s = _flow(server, f"t{number}", count, size, batch_bytes, linger_ms)
        numbers |= {
            f"produce {shape}": count / produce_s,
            f"consume {shape}": count / consume_s,
            f"produce {shape} CPU s/GB": in_cpu_s / (count * size / 1e9),
            f"consume {shape} CPU s/GB": out_cpu_s / (count * size / 1e9),
            f"both {shape} CPU s/M": (in_cpu_s + out_cpu_s) / count * 1e6,
        }
    numbers["busy MiB"] = server.resident_mib()
    return numbers


def _flow(
    server: Running, topic: str, count: int, size: int, batch_bytes: int, linger_ms: int, partitions: int = 0
) -> tuple[float, float, float, float]:
    """Seconds in, seconds out, server CPU seconds in and out."""
    before = server.cpu_s()
    produce_s, _ = run("produce", server.bootstrap, topic, count, size, batch_bytes, linger_ms, 1_000_000, 0)
    between = server.cpu_s()
    consume_s, _ = run("consume", server.bootstrap, topic, count)
    return produce_s, consume_s, between - before, server.cpu_s() - between


def requests(server: Running, n: int) -> Numbers:
    """Single records: answer times, requests a second pipelined and from a hundred connections, and a hand-over."""
    run("ask", server.bootstrap, "ask", n, 100)
    before = server.cpu_s()
    p50_us, p99_us = run("ask", server.bootstrap, "ask", n, 100)
    asked_cpu_us = (server.cpu_s() - before) / (n + 200) * 1e6
    before = server.cpu_s()
    seconds, _ = run("produce", server.bootstrap, "one", 4 * n, 100, 1_000_000, 0, 1, 0)
    pipelined_cpu_us = (server.cpu_s() - before) / (4 * n) * 1e6
    crowd_s, _ = run("crowd", server.host, server.port, frame_file("one"), 100, 4 * n)
    pass_p50_us, pass_p99_us = run("pass", server.bootstrap, "pass", n // 4, 100, 500)
    return {
        "p50 us": p50_us,
        "p99 us": p99_us,
        "CPU us lone": asked_cpu_us,
        "pipelined": 4 * n / seconds,
        "CPU us pipelined": pipelined_cpu_us,
        "100 connections": 4 * n / crowd_s,
        "hand-over p50 us": pass_p50_us,
        "hand-over p99 us": pass_p99_us,
    }


def transactions(server: Running, n: int) -> Numbers:
    """The same records with and without transactions of 1,000."""
    plain_s, _ = run("produce", server.bootstrap, "plain", n, 100, 65_536, 5, 1_000_000, 0)
    count = n // 4
    seconds, _ = run("produce", server.bootstrap, "transactions", count, 100, 65_536, 5, 1_000_000, 1_000)
    return {"records": count / seconds, "of plain": (count / seconds) / (n / plain_s)}


def partitions(server: Running, n: int) -> Numbers:
    """CPU a record over a thousand partitions, beside one."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for future in admin.create_topics([NewTopic("wide", 1_000, 1), NewTopic("narrow", 1, 1)]).values():
        future.result(_PATIENCE_S)
    cpu_us = {}
    for topic in ("narrow", "wide"):
        _flow(server, topic, n // 4, 100, 65_536, 50)
        _, _, in_cpu_s, _ = _flow(server, topic, n, 100, 65_536, 50)
        cpu_us[topic] = in_cpu_s / n * 1e6
    return {"CPU us wide": cpu_us["wide"], "growth": cpu_us["wide"] / cpu_us["narrow"]}


def python_client(server: Running, n: int) -> Numbers:
    """confluent-kafka: what a Python program gets."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5, "acks": "all"})
    value = os.urandom(100)
    for _turn in range(2):
        began = time.perf_counter()
        for _ in range(n):
            while True:
                try:
                    producer.produce("python", value)
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        producer.flush()
        produce_s = time.perf_counter() - began
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g", "queued.min.messages": 1_000_000})
    consumer.assign([TopicPartition("python", 0, 0)])
    found = 0
    began = time.perf_counter()
    while found < 2 * n:
        found += sum(message.error() is None for message in consumer.consume(10_000, 1))
    consume_s = time.perf_counter() - began
    consumer.close()
    return {"produce": n / produce_s, "consume": 2 * n / consume_s}


@cache
def frame_file(topic: str) -> str:
    """A file with one ProduceRequest of one record, as it goes over the wire."""
    from eventbus.protocol import messages as m
    from eventbus.protocol import request_header, writer
    from eventbus.records import BatchBuilder

    builder = BatchBuilder()
    builder.append(None, bytes(100), (), 1_700_000_000_000)
    data = m.ProduceRequest.PartitionProduceData(index=0, records=builder.build())
    request = m.ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )
    frame = request_header(0, 7, 1, "bench") + b"".join(writer("ProduceRequest", 7)(request))
    path = Path(tempfile.mkdtemp(prefix="bench-frame-")) / "frame"
    path.write_bytes(len(frame).to_bytes(4, "big") + frame)
    return str(path)


WORK = {
    "throughput": (throughput, 1_000_000, 40_000),
    "requests": (requests, 4_000, 400),
    "transactions": (transactions, 400_000, 40_000),
    "partitions": (partitions, 400_000, 40_000),
    "python client": (python_client, 300_000, 20_000),
}
"""What is measured, its size, and its size under ``--quick``."""

for _name, (_work, _n, _quick) in WORK.items():

    def _os(n: int, work=_work) -> Numbers:
        with scratch() as folder, eventbus(folder, "os") as server:
            return work(server, n)

    def _kafka(n: int, work=_work) -> Numbers:
        with scratch() as folder, kafka(folder) as server:
            return work(server, n)

    case(f"serve {_name}", n=_n, quick=_quick, rounds=3)(_os)
    case(f"kafka {_name}", n=_n, quick=_quick, rounds=3)(_kafka)


@case("serve flushed requests", n=2_000, quick=200, rounds=3)
def serve_flushed(n: int) -> Numbers:
    with scratch() as folder, eventbus(folder, "commit") as server:
        return requests(server, n)


@case("kafka flushed requests", n=2_000, quick=200, rounds=3)
def kafka_flushed(n: int) -> Numbers:
    flushed = {"log.flush.interval.messages": "1"}
    with scratch() as folder, kafka(folder, **flushed) as server:
        return requests(server, n)


@case("serve idle connections", n=10_000, quick=500, rounds=1)
def idle_connections(n: int) -> Numbers:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < n + 200:
        raise Skip(f"{n:,} connections need as many descriptors; the limit is {hard:,}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n + 200), hard))
    with scratch() as folder, eventbus(folder, "os") as server:
        before = server.resident_mib()
        peers = [socket.create_connection((server.host, server.port)) for _ in range(n)]
        hello = bytes.fromhex("0000000f00120000000000010005") + b"bench"
        for peer in peers:
            peer.sendall(hello)
        for peer in peers:
            peer.recv(4096)
        grown = server.resident_mib() - before
        for peer in peers:
            peer.close()
    return {"MiB": grown}


@case("serve full start", n=100, quick=10, rounds=3)
def full_start(n: int) -> Numbers:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    with scratch() as folder:
        with eventbus(folder, "os") as server:
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            for future in admin.create_topics([NewTopic("t", 10 * n, 1)]).values():
                future.result(_PATIENCE_S)
            producer = Producer({"bootstrap.servers": server.bootstrap})
            for number in range(10 * n):
                producer.produce("t", b"value", partition=number)
            producer.flush()
            for number in range(n):
                consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": f"g{number}"})
                consumer.commit(offsets=[TopicPartition("t", number, 1)], asynchronous=False)
                consumer.close()
        with eventbus(folder, "os") as server:
            return {"s": server.ready_s}

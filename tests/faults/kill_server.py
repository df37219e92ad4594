"""Kills ``eventbus serve`` with SIGKILL, again and again, under clients of several kinds that go on as if nothing was.

    python tests/faults/kill_server.py DIRECTORY KILLS SEED [KIND ...]

Each kind writes 1, 2, 3 ... to a topic of its own, idempotently, and a consumer of a group reads all of them. Before
each kill every kind has had something acknowledged by the new server. At the end the log itself is read: what was
acknowledged is there, nothing is there twice, and each partition is in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60
PARTITIONS = 3
AHEAD = 200
"""Records on their way at once."""


class Writer(threading.Thread):
    """One kind of client. ``acked`` grows while it runs; ``error`` is what it could not go on from."""

    def __init__(self, kind: str, bootstrap: str) -> None:
        super().__init__(name=kind, daemon=True)
        self.kind = self.topic = kind
        self.bootstrap = bootstrap
        self.acked: set[int] = set()
        self.stopping = threading.Event()
        self.error = ""
        self._write: Callable[[Writer], None] = WRITERS[kind]

    def run(self) -> None:
        try:
            self._write(self)
        except Exception as error:  # whatever a client library raises: said at the end
            self.error = f"{type(error).__name__}: {error}"


def confluent(writer: Writer) -> None:
    from confluent_kafka import Producer

    producer = Producer({
        "bootstrap.servers": writer.bootstrap, "enable.idempotence": True, "linger.ms": 2,
        "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20,
        "message.timeout.ms": 0, "log_level": 0, "topic.metadata.refresh.sparse": True,
    })  # fmt: skip

    def delivered(error: Any, number: int) -> None:
        if error is None:
            writer.acked.add(number)
        else:
            writer.error = str(error)

    number = 0
    while not writer.stopping.is_set() and not writer.error:
        if len(producer) < AHEAD:
            number += 1
            producer.produce(
                writer.topic, str(number).encode(), partition=number % PARTITIONS,
                on_delivery=lambda error, _, number=number: delivered(error, number),
            )  # fmt: skip
            producer.poll(0)
        else:
            producer.poll(0.02)
    producer.flush(PATIENCE_SECONDS)


def kafka_python(writer: Writer) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=writer.bootstrap, enable_idempotence=True, linger_ms=2, reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=100, retry_backoff_ms=20,
    )  # fmt: skip
    number = 0
    waiting: list[tuple[int, Any]] = []
    while not writer.stopping.is_set():
        for _ in range(AHEAD // 4):
            number += 1
            sent = producer.send(writer.topic, str(number).encode(), partition=number % PARTITIONS)
            waiting.append((number, sent))
        producer.flush(PATIENCE_SECONDS)
        for each, sent in waiting:
            sent.get(PATIENCE_SECONDS)
            writer.acked.add(each)
        waiting.clear()
    producer.close()


def aiokafka(writer: Writer) -> None:
    asyncio.run(_aiokafka(writer))


async def _aiokafka(writer: Writer) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(
        bootstrap_servers=writer.bootstrap, enable_idempotence=True, linger_ms=2, retry_backoff_ms=20,
        request_timeout_ms=PATIENCE_SECONDS * 1000,
    ) as producer:  # fmt: skip
        number = 0
        while not writer.stopping.is_set():
            numbers = range(number + 1, number + 1 + AHEAD // 4)
            number = numbers[-1]
            sent = [
                await producer.send(writer.topic, str(each).encode(), partition=each % PARTITIONS) for each in numbers
            ]
            await asyncio.gather(*sent)
            writer.acked.update(numbers)


KAFKAJS = """
const { Kafka, logLevel } = require('kafkajs');
const [bootstrap, topic, partitions] = process.argv.slice(1);
const retry = { initialRetryTime: 20, maxRetryTime: 100, retries: 1000000 };
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING, retry });
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, retry });
let stopping = false;
process.stdin.on('end', () => { stopping = true; }).resume();
(async () => {
  await producer.connect();
  for (let number = 0; !stopping;) {
    const numbers = Array.from({ length: 50 }, () => ++number);
    const messages = numbers.map((each) => ({ value: `${each}`, partition: each % partitions }));
    await producer.send({ topic, messages, acks: -1 });
    console.log(number);
  }
  process.exit(0);
})().catch((error) => { console.error(error.message); process.exit(1); });
"""


def kafkajs(writer: Writer) -> None:
    from tests.clients import modules

    process = subprocess.Popen(
        [modules.node(), "-e", KAFKAJS, writer.bootstrap, writer.topic, str(PARTITIONS)],
        env=modules.environment(modules.installed()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr

    def stop() -> None:
        writer.stopping.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()

    threading.Thread(target=stop, daemon=True).start()
    try:
        last = 0
        for line in process.stdout:
            writer.acked.update(range(last + 1, int(line) + 1))
            last = int(line)
        if process.wait(PATIENCE_SECONDS):
            raise RuntimeError(process.stderr.read())
    finally:
        process.kill()


WRITERS = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka, "kafkajs": kafkajs}


class Reader(threading.Thread):
    """A consumer of a group over all topics: it must go on after every kill, and miss nothing."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        super().__init__(name="reader", daemon=True)
        self.seen: dict[str, set[int]] = {topic: set() for topic in topics}
        self.stopping = threading.Event()
        self._servers = bootstrap

    def run(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer({
            "bootstrap.servers": self._servers, "group.id": "readers", "auto.offset.reset": "earliest",
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0,
            "auto.commit.interval.ms": 200, "session.timeout.ms": 6_000,
        })  # fmt: skip
        consumer.subscribe(list(self.seen))
        while not self.stopping.is_set():
            for message in consumer.consume(500, 0.1):
                if not message.error():
                    self.seen[message.topic()].add(int(message.value()))
        consumer.close()


class Server:
    """``eventbus serve`` on one directory and one port."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "eventbus", "serve", str(directory), "--json", "--port", str(self.port)]
        self._complaints = directory.with_name("complaints").open("w+")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EVENTBUS_")}
        self._process = subprocess.Popen(
            self._command, env=environment, stdout=subprocess.PIPE, stderr=self._complaints, text=True
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {self.complaints()}")
        assert json.loads(line)["bootstrap"] == self.bootstrap

    def end(self, number: signal.Signals) -> int:
        assert self._process and self._process.stdout
        self._process.send_signal(number)
        self._process.stdout.close()
        return self._process.wait(PATIENCE_SECONDS)

    def complaints(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read()


def wait(what: str, condition: Callable[[], object], writers: list[Writer]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        failed = [f"{writer.kind}: {writer.error}" for writer in writers if writer.error]
        if failed or time.monotonic() > end:
            raise SystemExit(f"{what}: {failed or 'not within a minute'}")
        time.sleep(0.005)  # clients are threads and processes of others: there is no event to wait for


def stored(directory: Path, topic: str) -> list[list[int]]:
    """The values of a topic's partitions, read from the files."""
    from eventbus.log.reader import LogReader
    from eventbus.records import iter_batches

    log = LogReader(str(directory))
    return [
        [
            int(value)
            for data in log.read(topic, number, *bounds)
            for batch in iter_batches(data)
            for value in batch.columns().values
        ]
        for number, bounds in log.offsets(topic).items()
    ]


def trial(directory: Path, kills: int, seed: int, kinds: list[str]) -> str:
    """Kill the server ``kills`` times; what came of it. Raises SystemExit or AssertionError for what must not be."""
    server = Server(directory)
    server.start()
    try:
        writers = under_fire(server, kills, random.Random(seed), kinds)
        code = server.end(signal.SIGTERM)
    finally:
        server.end(signal.SIGKILL)
    assert code == 0, f"the server ended with {code}: {server.complaints()}"
    assert "Traceback" not in server.complaints(), server.complaints()
    return f"{kills} kills, {check(directory, writers)}"


def under_fire(server: Server, kills: int, chance: random.Random, kinds: list[str]) -> list[Writer]:
    """Clients begin, the server is killed and started anew, and each client goes on every time."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(kind, PARTITIONS, 1) for kind in kinds]).values():
        future.result(PATIENCE_SECONDS)
    del admin
    writers = [Writer(kind, server.bootstrap) for kind in kinds]
    reader = Reader(server.bootstrap, kinds)
    for thread in (*writers, reader):
        thread.start()
    for number in range(kills):
        before = [len(writer.acked) for writer in writers]
        for writer, count in zip(writers, before, strict=True):
            wait(f"kill {number}: {writer.kind} goes on", lambda w=writer, c=count: len(w.acked) > c, writers)
        time.sleep(chance.random() * 0.05)  # anywhere in what they do
        server.end(signal.SIGKILL)
        server.start()
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        wait(f"{writer.kind} ends", lambda w=writer: not w.is_alive(), writers)
    for writer in writers:
        seen = reader.seen[writer.topic]
        wait(f"the reader has all of {writer.kind}", lambda w=writer, s=seen: w.acked <= s, writers)
    reader.stopping.set()
    reader.join(PATIENCE_SECONDS)
    return writers


def check(directory: Path, writers: list[Writer]) -> str:
    told: list[str] = []
    for writer in writers:
        partitions = stored(directory, writer.topic)
        values = [value for partition in partitions for value in partition]
        lost = writer.acked - set(values)
        assert not lost, f"{writer.kind}: {len(lost)} acknowledged records lost, say {sorted(lost)[:5]}"
        assert len(values) == len(set(values)), f"{writer.kind}: {len(values) - len(set(values))} records twice"
        for partition in partitions:
            assert partition == sorted(partition), f"{writer.kind}: out of order"
        told.append(f"{writer.kind} {len(writer.acked):,}")
    return ", ".join(told) + " records acknowledged, none lost, none twice"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # clients tell of every connection they lose: it is what they are here for
    sys.path.insert(0, str(Path(__file__).parents[2]))
    print(trial(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(WRITERS)))

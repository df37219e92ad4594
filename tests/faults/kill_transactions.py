"""Kills ``eventbus serve`` with SIGKILL, again and again, under a client that reads, processes and writes exactly once.

    python tests/faults/kill_transactions.py DIRECTORY KILLS SEED

librdkafka takes records of ``in``, writes each to ``out`` and commits its offsets in the same transaction. Where the
client says that a transaction must be aborted it is, and begun again; where it gives up, a new consumer and a new
producer take over. At the end every record of ``in`` is in ``out`` once, for readers of committed records.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTITIONS = 2
AT_ONCE = 5
"""Records of one transaction, at most."""


class Processor(threading.Thread):
    """Goes on until it is stopped. ``committed`` counts the transactions that were."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="processor", daemon=True)
        self.committed = self.aborted = self.replaced = 0
        self.stopping = threading.Event()
        self.error = ""
        self.kind = self.name
        # librdkafka 2.16 loses an offset commit on its way when it throws its brokers away to bootstrap anew: the call
        # never returns, whoever the server is.
        self._options = {
            "metadata.recovery.strategy": "none",
            "bootstrap.servers": bootstrap, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20, "log_level": 0,
        }  # fmt: skip

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._live()
        except Exception as error:  # whatever the client library raises: said at the end
            self.error = f"{type(error).__name__}: {error}"

    def _live(self) -> None:
        """One consumer and one producer, until the producer gives up."""
        from confluent_kafka import Consumer, KafkaException, Producer

        consumer = Consumer({
            **self._options, "group.id": "processors", "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "isolation.level": "read_committed", "session.timeout.ms": 6_000,
        })  # fmt: skip
        producer = Producer({**self._options, "transactional.id": "processor", "linger.ms": 0})
        try:
            self._again(lambda: producer.init_transactions(1))
            consumer.subscribe(["in"])
            while not self.stopping.is_set():
                records = [one for one in consumer.consume(AT_ONCE, 0.1) if one.error() is None]
                if records:
                    self._process(consumer, producer, records)
        except KafkaException:
            self.replaced += 1
        finally:
            consumer.close()

    def _process(self, consumer: Any, producer: Any, records: list[Any]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        first: dict[int, int] = {}
        following: dict[int, int] = {}
        for record in records:
            first.setdefault(record.partition(), record.offset())
            following[record.partition()] = record.offset() + 1
        try:
            producer.begin_transaction()
            for record in records:
                producer.produce("out", record.value(), partition=record.partition())
            offsets = [TopicPartition("in", partition, offset) for partition, offset in following.items()]
            metadata = consumer.consumer_group_metadata()
            self._again(lambda: producer.send_offsets_to_transaction(offsets, metadata, 1))
            self._again(lambda: producer.commit_transaction(1))
            self.committed += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._again(lambda: producer.abort_transaction(1))
            self.aborted += 1
            for partition, offset in first.items():
                consumer.seek(TopicPartition("in", partition, offset))

    def _again(self, do: Callable[[], object]) -> None:
        """Ask until the answer is none that asks to be asked again."""
        from confluent_kafka import KafkaException

        while True:
            try:
                do()
            except KafkaException as error:
                if not error.args[0].retriable() or self.stopping.is_set():
                    raise
            else:
                return


def trial(directory: Path, kills: int, seed: int) -> str:
    """Kill the server ``kills`` times; what came of it. Raises SystemExit or AssertionError for what must not be."""
    from tests.faults.kill_server import Server, wait

    server = Server(directory)
    server.start()
    try:
        create(server.bootstrap)
        chance, processor = random.Random(seed), Processor(server.bootstrap)
        processor.start()
        for number in range(kills):
            before = processor.committed
            fill(server.bootstrap, number)
            wait(f"kill {number}", lambda before=before: processor.committed > before, [processor])
            time.sleep(chance.random() * 0.2)  # anywhere in what it does
            server.end(signal.SIGKILL)
            server.start()
        values = read_committed(server.bootstrap, kills * BATCH, processor)
        processor.stopping.set()
        processor.join()
        server.end(signal.SIGTERM)
    finally:
        server.end(signal.SIGKILL)
    assert not processor.error, processor.error
    assert "Traceback" not in server.complaints(), server.complaints()
    missing, more = set(range(kills * BATCH)) - set(values), {one: n for one, n in values.items() if n > 1}
    assert not missing, f"{len(missing)} records are not there, say {sorted(missing)[:5]}"
    assert not more, f"more than once: {more}"
    return (
        f"{kills} kills, {len(values):,} records once each, in {processor.committed:,} transactions; "
        f"{processor.aborted} aborted, {processor.replaced} clients replaced"
    )


BATCH = 300
"""Records that are there to be processed between two kills."""


def create(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in ("in", "out")]).values():
        future.result(60)


def fill(bootstrap: str, number: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in range(number * BATCH, (number + 1) * BATCH):
        producer.produce("in", str(value).encode(), partition=value % PARTITIONS)
    assert producer.flush(60) == 0


def read_committed(bootstrap: str, count: int, processor: Processor) -> Counter[int]:
    """What is in ``out`` once the last record is, and how often; a little longer, for what is there twice."""
    from confluent_kafka import Consumer

    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "audit", "auto.offset.reset": "earliest", "log_level": 0,
        "isolation.level": "read_committed", "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe(["out"])
    values: Counter[int] = Counter()
    quiet = 0
    while quiet < 10 and not processor.error:
        found = [int(one.value()) for one in consumer.consume(500, 0.1) if one.error() is None]
        values.update(found)
        quiet = 0 if found or len(values) < count else quiet + 1
    consumer.close()
    return values


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    print(trial(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

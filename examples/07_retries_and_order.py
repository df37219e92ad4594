"""A retry can reorder and duplicate records, unless the producer is idempotent.

A client has two requests in flight. The network loses one request and one response; the broker is that of the log.
With a producer id and sequence numbers, the broker rejects batches that are out of order and recognizes those that it
has stored. The bus's own producers are idempotent by default.
"""

from __future__ import annotations

import os
import time

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.errors import OutOfOrderSequence
from eventbus.log.storage import MemoryStorage
from eventbus.records import BatchBuilder, fetched_records
from eventbus.types import TopicPartition

PARTITION, IN_FLIGHT = TopicPartition("payments", 0), 2
NOW_MS = int(time.time() * 1000)


class Network:
    """A network that loses the request of batch 2 and the response to batch 4, once each."""

    def __init__(self) -> None:
        self.broker = Broker.open(MemoryStorage(), BrokerConfig(), now_ms=NOW_MS, new_id=lambda: os.urandom(16))
        self.broker.create_topics([TopicSpec("payments", 1)], NOW_MS)
        self.lose = {2: "the request is lost", 4: "the answer is lost"}

    def request(self, number: int, batch: bytearray) -> bool:
        """Return True if the client receives the response that the batch is stored."""
        trouble = self.lose.pop(number, "")
        said = trouble
        if trouble != "the request is lost":
            try:
                info = self.broker.produce(PARTITION, batch, NOW_MS)
                said = trouble or ("stored already, not again" if info.duplicate else "stored")
            except OutOfOrderSequence:
                said = "refused: another one comes first"
        print(f"    batch {number}: {said}")
        return said.startswith("stored")

    def stored(self) -> list[int]:
        data = self.broker.fetch(PARTITION, 0, 1 << 20)
        return [int(value or b"") for value in fetched_records(data.records, *PARTITION, 0).values]


def send_all(numbers: list[int], producer_id: int) -> list[int]:
    network, waiting = Network(), list(numbers)
    while waiting:
        window, waiting = waiting[:IN_FLIGHT], waiting[IN_FLIGHT:]  # sent before the first response has arrived
        failed: list[int] = []
        for number in window:
            builder = BatchBuilder()
            builder.append(None, b"%d" % number, (), NOW_MS)
            epoch, sequence = (0, number) if producer_id >= 0 else (-1, -1)
            batch = builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
            if not network.request(number, batch):
                failed.append(number)
        waiting = failed + waiting  # retried before the remaining batches
    return network.stored()


if __name__ == "__main__":
    numbers = list(range(6))
    print("  without producer id (enable_idempotence=False):")
    plain = send_all(numbers, producer_id=-1)
    print(f"  in the log: {plain}")
    print("  idempotent:")
    idempotent = send_all(numbers, producer_id=7)
    print(f"  in the log: {idempotent}")
    assert plain != sorted(plain) and len(plain) > len(set(plain)), "out of order, and one of them twice"
    assert idempotent == numbers

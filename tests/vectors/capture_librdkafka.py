"""Make the ``librdkafka_*`` vectors: what librdkafka really sends, caught by a broker that knows just enough.

    python tests/vectors/capture_librdkafka.py

The broker listens on loopback, answers ApiVersions, Metadata, FindCoordinator, InitProducerId, AddPartitionsToTxn,
EndTxn and Produce in their old, inflexible encodings (it announces nothing newer) and keeps the record batches.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import confluent_kafka
from vector_file import record, save

TOPIC = "vectors"
PRODUCER_ID, PRODUCER_EPOCH = 4242, 3
API_VERSIONS = {0: (0, 7), 1: (0, 11), 2: (0, 2), 3: (0, 4), 10: (0, 2), 18: (0, 3), 22: (0, 1), 24: (0, 0), 26: (0, 1)}


def string(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


class Reader:
    """Walks a request."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, code: str) -> int:
        (number,) = struct.unpack_from(">" + code, self.data, self.at)
        self.at += struct.calcsize(code)
        return number

    def take(self, size: int) -> bytes:
        self.at += max(size, 0)
        return self.data[self.at - max(size, 0) : self.at]

    def string(self) -> str:
        return self.take(self.number("h")).decode()


class CatchingBroker(threading.Thread):
    """Answers one client on one port until closed; ``batches`` fills up."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.batches: list[bytes] = []
        self.next_offset = 0
        self.answers: dict[int, Callable[[Reader, int], bytes]] = {
            0: self.produce,
            3: self.metadata,
            10: self.find_coordinator,
            22: self.init_producer_id,
            24: self.add_partitions_to_txn,
            26: lambda _reader, _version: struct.pack(">ih", 0, 0),
        }
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                reader = Reader(stream.read(int.from_bytes(size, "big")))
                key, version, correlation = reader.number("h"), reader.number("h"), reader.number("i")
                reader.string()
                body = self.api_versions(version) if key == 18 else self.answers[key](reader, version)
                answer = struct.pack(">i", correlation) + body
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def api_versions(self, version: int) -> bytes:
        rows = [struct.pack(">hhh", key, low, high) for key, (low, high) in API_VERSIONS.items()]
        if version > 3:
            return struct.pack(">hi", 35, len(rows)) + b"".join(rows)
        if version == 3:
            return (
                struct.pack(">hB", 0, len(rows) + 1) + b"".join(row + b"\0" for row in rows) + struct.pack(">iB", 0, 0)
            )
        return struct.pack(">hi", 0, len(rows)) + b"".join(rows) + (struct.pack(">i", 0) if version else b"")

    def metadata(self, _reader: Reader, version: int) -> bytes:
        assert version == 4, version
        broker = struct.pack(">i", 1) + string("127.0.0.1") + struct.pack(">i", self.port) + string(None)
        partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
        topic = struct.pack(">h", 0) + string(TOPIC) + struct.pack(">?i", False, 1) + partition
        return struct.pack(">ii", 0, 1) + broker + string("catcher") + struct.pack(">ii", 1, 1) + topic

    def find_coordinator(self, _reader: Reader, version: int) -> bytes:
        throttle = struct.pack(">ih", 0, 0) + string(None) if version else struct.pack(">h", 0)
        return throttle + struct.pack(">i", 1) + string("127.0.0.1") + struct.pack(">i", self.port)

    def init_producer_id(self, _reader: Reader, _version: int) -> bytes:
        return struct.pack(">ihqh", 0, 0, PRODUCER_ID, PRODUCER_EPOCH)

    def add_partitions_to_txn(self, _reader: Reader, _version: int) -> bytes:
        return struct.pack(">ii", 0, 1) + string(TOPIC) + struct.pack(">iih", 1, 0, 0)

    def produce(self, reader: Reader, version: int) -> bytes:
        assert version == 7, version
        reader.string()
        reader.number("h"), reader.number("i")
        assert reader.number("i") == 1
        reader.string()
        assert reader.number("i") == 1 and reader.number("i") == 0
        batch = reader.take(reader.number("i"))
        self.batches.append(batch)
        base_offset, self.next_offset = self.next_offset, self.next_offset + struct.unpack_from(">i", batch, 57)[0]
        answer = struct.pack(">i", 1) + string(TOPIC) + struct.pack(">iihqqq", 1, 0, 0, base_offset, -1, 0)
        return answer + struct.pack(">i", 0)


Send = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]


def capture(config: dict[str, Any], rounds: list[list[Send]]) -> list[bytes]:
    """What librdkafka sends when each round is produced and flushed; one batch each."""
    broker = CatchingBroker()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": f"127.0.0.1:{broker.port}", "linger.ms": 200, "batch.size": 10_000_000, **config}
    )
    if "transactional.id" in config:
        producer.init_transactions(10)
        producer.begin_transaction()
    for sends in rounds:
        for key, value, headers, timestamp_ms in sends:
            producer.produce(TOPIC, value, key, partition=0, timestamp=timestamp_ms, headers=headers)
        assert producer.flush(20) == 0
    if "transactional.id" in config:
        producer.commit_transaction(10)
    broker.listener.close()
    assert len(broker.batches) == len(rounds), len(broker.batches)
    return broker.batches


MIXED: list[Send] = [
    (b"key", b"value", None, 1_700_000_000_000),
    (None, b"no key", None, 1_700_000_000_001),
    (b"no value", None, None, 1_700_000_000_300),
    (None, None, None, 1_700_000_020_000),
    (b"", b"", None, 1_699_999_999_000),
    (
        b"h",
        b"headers",
        [("a", b"1"), ("a", b"2"), ("null", None), ("empty", b""), ("n\u00e4me", b"\xff")],
        1_700_000_000_000,
    ),
    (b"big", b"0123456789abcdef" * 520, [("trace", b"0" * 200)], 1_700_000_000_002),
]
MANY: list[Send] = [
    (
        b"N%05d" % (number % 97),
        b'{"number":%d,"delay":%d}' % (number, number % 61),
        None,
        1_700_000_000_000 + number // 10,
    )
    for number in range(100)
]


def main() -> None:
    codecs = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    producer = {"producer_id": PRODUCER_ID, "producer_epoch": PRODUCER_EPOCH}
    cases: list[tuple[str, dict[str, Any], list[list[Send]], dict[str, int]]] = [
        ("mixed", {}, [MIXED], {}),
        ("one", {}, [[MIXED[0]]], {}),
        ("many", {}, [MANY], {}),
        *((f"{codec}_mixed", {"compression.type": codec}, [MIXED], {}) for codec in codecs),
        *((f"{codec}_many", {"compression.type": codec}, [MANY], {}) for codec in codecs),
        ("idempotent", {"enable.idempotence": True}, [MIXED[:3], MIXED[3:6]], producer),
        ("transactional", {"transactional.id": "tx"}, [MIXED[:4]], {**producer, "attributes": 16}),
    ]
    for name, config, rounds, fields in cases:
        made_by = {
            "library": "librdkafka (through confluent-kafka)",
            "version": f"{confluent_kafka.libversion()[0]} (confluent-kafka {version('confluent-kafka')})",
            "script": "tests/vectors/capture_librdkafka.py",
            "config": ", ".join(f"{key}={value}" for key, value in config.items()) or "defaults",
        }
        sequence = 0
        for index, (batch, sends) in enumerate(zip(capture(config, rounds), rounds, strict=True)):
            header = {
                "attributes": codecs.get(config.get("compression.type", ""), 0),
                "records_count": len(sends),
                **fields,
            }
            header["base_sequence"] = sequence if "producer_id" in fields else -1
            sequence += len(sends)
            records = [record(key, value, headers, timestamp_ms) for key, value, headers, timestamp_ms in sends]
            suffix = f"_{index + 1}" if len(rounds) > 1 else ""
            save(f"librdkafka_{name}{suffix}", batch, made_by, header, records)


if __name__ == "__main__":
    main()

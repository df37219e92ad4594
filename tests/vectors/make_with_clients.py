"""Make the ``aiokafka_*`` and ``kafka_python_*`` vectors with the batch builders inside those clients.

    python tests/vectors/make_with_clients.py

No client writes control batches, LogAppendTime or gaps left by compaction; brokers do. The builders write what they
can, the rest (attribute bits, max timestamp) is set here and the CRC is computed again with the client's own function;
the sidecar says so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
from aiokafka.record._crc32c import crc as aiokafka_crc
from kafka.record.util import calc_crc32c as kafka_crc
from vector_file import record, save

CONTROL, LOG_APPEND_TIME, TRANSACTIONAL = 0x20, 0x08, 0x10
Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


class Client(NamedTuple):
    name: str
    library: str
    builder: Callable[..., Any]
    crc32c: Callable[[bytes], int]


CLIENTS = [
    Client("aiokafka", "aiokafka", aiokafka_records.DefaultRecordBatchBuilder, aiokafka_crc),
    Client("kafka_python", "kafka-python", kafka_records.DefaultRecordBatchBuilder, kafka_crc),
]

HEADERS = [("a", b"1"), ("a", b"2"), ("null", None), ("empty", b""), ("n\u00e4me", b"\xff")]
MIXED: list[Sent] = [
    (b"key", b"value", [], 1_700_000_000_000),
    (None, b"no key", [], 1_700_000_000_063),
    (b"no value", None, [], 1_700_000_000_064),
    (None, None, [], 1_700_000_008_192),
    (b"", b"", [], 1_699_999_999_000),
    (b"h", b"headers", HEADERS, 1_700_000_000_000),
    (b"after", b"the headers", [], 1_700_000_000_000),
    (b"x" * 64, b"y" * 8192, [("z" * 70, b"0" * 300)], 1_800_000_000_000),
]
MANY: list[Sent] = [(b"k%d" % (number % 7), b"value %d" % number, [], 1_700_000_000_000) for number in range(130)]


def build(client: Client, sent: list[Sent], offsets: list[int] | None = None, **config: Any) -> bytearray:
    builder = client.builder(
        magic=2,
        compression_type=config.get("codec", 0),
        is_transactional=config.get("is_transactional", False),
        producer_id=config.get("producer_id", -1),
        producer_epoch=config.get("producer_epoch", -1),
        base_sequence=config.get("base_sequence", -1),
        batch_size=1 << 20,
    )
    for offset, (key, value, headers, timestamp_ms) in zip(offsets or range(len(sent)), sent, strict=True):
        assert builder.append(offset, timestamp=timestamp_ms, key=key, value=value, headers=headers) is not None
    return bytearray(builder.build())


def patch(client: Client, batch: bytearray, bits: int = 0, max_timestamp_ms: int | None = None) -> None:
    struct.pack_into(">h", batch, 21, struct.unpack_from(">h", batch, 21)[0] | bits)
    if max_timestamp_ms is not None:
        struct.pack_into(">q", batch, 35, max_timestamp_ms)
    struct.pack_into(">I", batch, 17, client.crc32c(bytes(batch[21:])))


def write(client: Client, name: str, batch: bytearray, sent: list[Sent], patched: str = "", **header: Any) -> None:
    made_by = {
        "library": client.library,
        "version": version(client.library),
        "script": "tests/vectors/make_with_clients.py",
        "patched": patched or "nothing",
    }
    header = {"attributes": 0, "records_count": len(sent), "producer_id": -1, "base_sequence": -1, **header}
    save(f"{client.name}_{name}", bytes(batch), made_by, header, [record(*each) for each in sent])


def main() -> None:
    for client in CLIENTS:
        write(client, "mixed", build(client, MIXED), MIXED)
        write(client, "many", build(client, MANY), MANY)
        for name, codec in (("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)):
            if codec == 1 or client.name == "aiokafka":  # kafka-python needs a package per codec
                write(client, f"{name}_mixed", build(client, MIXED, codec=codec), MIXED, attributes=codec)
        state = {"producer_id": 1 << 40, "producer_epoch": 32767}
        wrapping = MANY[:5]
        batch = build(client, wrapping, **state, base_sequence=2_147_483_646)
        write(client, "sequence_wrap", batch, wrapping, **state, base_sequence=2_147_483_646, last_sequence=2)
        batch = build(client, MIXED[:3], **state, base_sequence=0, is_transactional=True)
        write(client, "transactional", batch, MIXED[:3], **state, base_sequence=0, attributes=TRANSACTIONAL)

        batch = build(client, MIXED)
        patch(client, batch, LOG_APPEND_TIME, 1_750_000_000_000)
        stamped = [(key, value, headers, 1_750_000_000_000) for key, value, headers, _ in MIXED]
        write(
            client, "log_append_time", batch, stamped, "timestamp type, max timestamp, CRC", attributes=LOG_APPEND_TIME
        )

        for number, name in enumerate(("abort", "commit")):
            marker: list[Sent] = [(struct.pack(">hh", 0, number), struct.pack(">hi", 0, 77), [], 1_700_000_000_000)]
            batch = build(client, marker, **state, is_transactional=True)
            patch(client, batch, CONTROL)
            bits = CONTROL | TRANSACTIONAL
            write(client, f"control_{name}", batch, marker, "control bit, CRC", **state, attributes=bits, marker=name)

    offsets = [0, 1, 5, 64, 9000]
    batch = build(CLIENTS[0], MANY[:5], offsets)
    write(CLIENTS[0], "compacted", batch, MANY[:5], "gaps: offsets given to the builder", offsets=offsets)


if __name__ == "__main__":
    main()

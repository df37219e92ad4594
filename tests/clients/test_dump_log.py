"""``kafka-dump-log`` reads every file of a log that ``eventbus serve`` wrote, as if Kafka had."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.serving import Served
from tests.clients.tools import KafkaTools

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with several segments, every codec, both ends of a transaction, a group; its server stopped cleanly."""
    folder = tmp_path_factory.mktemp("dumped")
    with Served(folder) as server:
        servers = {"bootstrap.servers": server.bootstrap}
        topics = [NewTopic("t", 1, 1, config={"internal.segment.bytes": "16384"}), NewTopic("empty", 1, 1)]
        admin = AdminClient(servers)
        for made in admin.create_topics(topics).values():
            made.result(20)
        for codec in CODECS:
            producer = Producer({**servers, "compression.type": codec, "linger.ms": 50})
            for number in range(100):
                producer.produce("t", f"value-{number}-{codec}" * 10, f"k{number}", headers={"h": "x"})
            assert producer.flush(20) == 0
        writer = Producer({**servers, "transactional.id": "tx"})
        writer.init_transactions(20)
        for end in (writer.abort_transaction, writer.commit_transaction):
            writer.begin_transaction()
            writer.produce("t", end.__name__)
            writer.flush(20)
            end(20)
        consumer = Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe(["t"])
        assert consumer.consume(10, 20)
        consumer.commit(asynchronous=False)
        consumer.close()
    return folder


def dump(tools: KafkaTools, file: Path, *arguments: str) -> str:
    done = tools.run("kafka-dump-log", "--files", str(file), *arguments)
    assert done.code == 0, f"{file}: {done.text}"
    # The tool of Kafka 4 says this of every segment but the first: it takes -1 for the offset before.
    complaints = re.sub(rf"Non-consecutive offsets in {file}\n  -1 is followed by {int(file.stem)}\n", "", done.err)
    assert complaints == "", f"{file}: {complaints}"
    assert "isvalid: false" not in done.out and "Found" not in done.out, f"{file}: {done.out}"
    return done.out


def test_every_file_is_read_without_complaint(tools: KafkaTools, folder: Path) -> None:
    files = [path for path in sorted(folder.glob("*/*")) if path.stem.isdigit()]
    kinds = {path.suffix for path in files}
    assert kinds == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    assert len([path for path in files if path.parent.name == "t-0" and path.suffix == ".log"]) > 1
    for path in files:
        arguments = ("--deep-iteration",) if path.suffix == ".log" else ()
        assert path.name in dump(tools, path, *arguments)
        if path.suffix.endswith("index") and path.suffix != ".txnindex" and path.stat().st_size:
            assert "passed sanity check" in dump(tools, path, "--index-sanity-check")


def test_records_of_every_codec(tools: KafkaTools, folder: Path) -> None:
    out = "".join(dump(tools, path, "--print-data-log") for path in sorted((folder / "t-0").glob("*.log")))
    for codec in CODECS:
        assert f"compresscodec: {codec}" in out
        found = re.findall(rf"keySize: \d+ .*headerKeys: \[h\] key: (k\d+) payload: value-\d+-{codec}", out)
        assert sorted(found) == sorted(f"k{number}" for number in range(100))
    assert re.findall(r"endTxnMarker: (\w+)", out) == ["ABORT", "COMMIT"]


def test_indexes_and_snapshots(tools: KafkaTools, folder: Path) -> None:
    aborted = "".join(dump(tools, path) for path in sorted((folder / "t-0").glob("*.txnindex")))
    assert len(re.findall(r"producerId: \d+ firstOffset: 500 lastOffset: 501", aborted)) == 1, aborted
    *_, newest = sorted((folder / "t-0").glob("*.snapshot"))
    assert re.search(r"producerId: \d+ producerEpoch: \d+ .*currentTxnFirstOffset: .*empty", dump(tools, newest))


@pytest.mark.parametrize(
    ("topic", "decoder", "expected"),
    [
        ("__consumer_offsets", "--offsets-decoder", ["group\\W+g\\b", "topic\\W+t\\b", "protocolType\\W+consumer"]),
        ("__transaction_state", "--transaction-log-decoder", ["transactionalId\\W+tx\\b", "producerEpoch\\W+0"]),
    ],
)
def test_kafka_decodes_our_internal_topics(
    tools: KafkaTools, folder: Path, topic: str, decoder: str, expected: list[str]
) -> None:
    out = "".join(dump(tools, path, decoder) for path in sorted(folder.glob(f"{topic}-*/*.log")))
    assert "payload:" in out
    for part in expected:
        assert re.search(part, out), f"{part} is missing in {out}"

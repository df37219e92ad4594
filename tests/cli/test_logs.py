"""``eventbus log dump`` and ``eventbus log verify``."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus
from eventbus.records.control import ControlType, EndTransactionMarker, build_marker

Cli = Callable[..., Any]
SEGMENT = "00000000000000000000"


@pytest.fixture
def one(cli: Cli) -> Cli:
    """A log in ./data with a topic ``orders`` of one partition: two batches, the second compressed."""
    cli("topics", "create", "orders")
    cli("produce", "orders", "--key", "k", "--header", "h=1", stdin=b"first\nsecond\n")
    cli("produce", "orders", "--compression-type", "zstd", stdin=b"third " * 50)
    return cli


def test_dump_in_the_words_of_kafkas_tool(one: Cli) -> None:
    file = f"data/orders-0/{SEGMENT}.log"
    result = one("log", "dump", file)
    assert result.code == 0
    first, *batches = result.lines
    assert first == f"Dumping {file}"
    assert len(batches) == 2
    assert re.fullmatch(
        r"baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 0 lastSequence: 1 producerId: \d+ producerEpoch: 0 "
        r"partitionLeaderEpoch: 0 isTransactional: false isControl: false position: 0 CreateTime: \d+ size: (\d+) "
        r"magic: 2 compresscodec: none crc: \d+ isvalid: true",
        batches[0],
    )
    assert "baseOffset: 2 lastOffset: 2 count: 1" in batches[1]
    assert "compresscodec: zstd" in batches[1]


def test_dump_of_the_records(one: Cli) -> None:
    file = f"data/orders-0/{SEGMENT}.log"
    lines = one("log", "dump", "--files", file, "--print-data-log").lines
    records = [line for line in lines if line.startswith("| ")]
    assert re.fullmatch(
        r"\| offset: 0 CreateTime: \d+ keySize: 1 valueSize: 5 headerKeys: \[h\] key: k payload: first", records[0]
    )
    assert (
        "| offset: 2 " in records[2] and "keySize: -1 valueSize: 300 headerKeys: [] payload: third third" in records[2]
    )

    batches = [json.loads(line) for line in one("log", "dump", file, "--records", "--json").lines]
    assert [batch["baseOffset"] for batch in batches] == [0, 2]
    [record, _] = batches[0]["records"]
    assert (record["key"], record["value"]) == ("k", "first")
    assert record["headers"] == [{"name": "h", "value": "1"}]
    assert "records" not in json.loads(one("log", "dump", file, "--json").lines[0])


def test_dump_of_a_control_record(one: Cli) -> None:
    path = Path(f"data/orders-0/{SEGMENT}.log")
    marker = build_marker(
        EndTransactionMarker(ControlType.COMMIT, 7), producer_id=5, producer_epoch=2, timestamp_ms=1000
    )
    path.write_bytes(marker)
    line = one("log", "dump", str(path), "--records").lines[-1]
    assert line.endswith("endTxnMarker: COMMIT coordinatorEpoch: 7")
    [batch] = [json.loads(line) for line in one("log", "dump", str(path), "--records", "--json").lines]
    assert batch["isControl"] is True
    assert batch["records"][0]["endTxnMarker"] == "COMMIT"


def test_dump_of_the_indexes(cli: Cli) -> None:
    cli("topics", "create", "orders")
    for number in range(4):
        cli("produce", "orders", stdin=b"x" * 5_000 + b"%d" % number)
    entries = cli("log", "dump", f"data/orders-0/{SEGMENT}.index").lines[1:]
    assert entries and all(re.fullmatch(r"offset: \d position: \d+", line) for line in entries)
    times = cli("log", "dump", f"data/orders-0/{SEGMENT}.timeindex", "--json").lines
    assert times and all(json.loads(line)["timestamp"] > 1_600_000_000_000 for line in times)


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["log", "dump"], 2, "which file?"),
        (["log", "dump", "data/orders-0"], 1, "is not a segment"),
        (["log", "dump", "data/orders-0/meta.properties"], 1, "is not a segment"),
        (["log", "dump", "data/orders-0/00000000000000000009.log"], 1, "there is no file"),
        (["log", "dump", "nowhere/00000000000000000009.log"], 1, "there is no"),
        (["log", "verify", "nowhere"], 1, "there is no directory"),
        (["log", "verify", "--url", "memory://"], 2, "has no files here"),
    ],
)
def test_what_is_no_log(one: Cli, args: list[str], code: int, told: str) -> None:
    result = one(*args)
    assert result.code == code
    assert told in result.err
    assert len(result.err.splitlines()) <= 2


def test_verify_a_good_log(one: Cli) -> None:
    for args in (["data"], ["file://./data"], [], ["--url", "file://./data"]):
        result = one("log", "verify", *args)
        assert result.code == 0
        assert result.err == ""
        assert result.lines[0].split() == [
            "PARTITION",
            "SEGMENTS",
            "BATCHES",
            "RECORDS",
            "BYTES",
            "START",
            "END",
            "STATE",
        ]
        assert re.fullmatch(r"orders-0 +1 +2 +3 +\d+ +0 +3  ok", result.lines[2])
    report = one("log", "verify", "data", "--json").json
    assert report["ok"] is True
    [partition] = [each for each in report["partitions"] if each["topic"] == "orders"]
    assert (partition["records"], partition["log_end_offset"], partition["state"]) == (3, 3, "ok")


@pytest.mark.parametrize("position", [70, -3])
def test_a_flipped_byte_is_found_named_and_fails(one: Cli, position: int) -> None:
    path = Path(f"data/orders-0/{SEGMENT}.log")
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    result = one("log", "verify", "data")
    assert result.code == 1
    assert "DAMAGED" in result.out
    assert f"damage: orders-0/{SEGMENT}.log at position " in result.err
    dump = one("log", "dump", str(path))
    assert dump.code == 1
    assert "isvalid: false" in dump.out
    assert one("log", "verify", "data", "--json").json["ok"] is False
    assert one("consume", "orders", "--from-beginning", "--max-messages", "3").code == 1


def test_a_torn_tail_is_no_damage(one: Cli) -> None:
    path = Path(f"data/orders-0/{SEGMENT}.log")
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    Path("data/.kafka_cleanshutdown").unlink()  # as after a crash
    result = one("log", "verify", "data")
    assert result.code == 0
    assert "torn tail: orders-0" in result.err and "the next start cuts it" in result.err
    dump = one("log", "dump", str(path))
    assert dump.code == 1
    assert "error: " in dump.err
    opened = one("offsets", "orders", "--time", "-1")
    assert opened.lines == ["orders:0:3"]
    assert opened.err.startswith("warning: ") and "orders-0" in opened.err
    assert len(opened.err.splitlines()) == 1


@pytest.mark.system
def test_looking_changes_nothing_and_needs_no_lock(one: Cli, spawn: Callable[..., Any]) -> None:
    before = {path: path.read_bytes() for path in Path("data").rglob("*") if path.is_file()}
    one("log", "verify", "data")
    one("log", "dump", f"data/orders-0/{SEGMENT}.log", "--records")
    assert {path: path.read_bytes() for path in Path("data").rglob("*") if path.is_file()} == before
    holder = spawn("consume", "orders", "--from-beginning")
    assert holder.stdout.readline()
    assert one("log", "verify", "data").code == 0
    assert one("log", "dump", f"data/orders-0/{SEGMENT}.log").code == 0


def test_dump_of_aborted_transactions_and_of_producers(one: Cli) -> None:
    path = Path(f"data/orders-0/{SEGMENT}.txnindex")
    path.write_bytes(struct.pack(">hqqqq", 0, 7, 10, 12, 11))
    assert (
        one("log", "dump", str(path)).lines[-1] == "producerId: 7 firstOffset: 10 lastOffset: 12 lastStableOffset: 11"
    )
    snapshot = max(Path("data/orders-0").glob("*.snapshot"))
    words = (
        r"producerId: \d+ producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: -1 lastTimestamp: \d+ batches: "
    )
    _, first, second = one("log", "dump", str(snapshot)).lines
    assert re.fullmatch(words + r"0\.\.1@0", first)
    assert re.fullmatch(words + r"0\.\.0@2", second)


# as Kafka's dump tool -------------------------------------------------------------------------------------------------


def segment_of(prefix: str) -> str:
    """The one file of a topic's partitions that holds anything."""
    [found] = [path for path in Path("data").glob(f"{prefix}-*/{SEGMENT}.log") if path.stat().st_size]
    return str(found)


def payloads(result: Any) -> list[tuple[Any, Any]]:
    found = [re.search(r"(?:key: (.*) )?payload: (.*)$", line) for line in result.lines if line.startswith("| ")]
    return [(each[1] and json.loads(each[1]), each[2]) for each in found if each is not None]


def test_committed_offsets_and_groups_are_decoded(one: Cli) -> None:
    one("consume", "orders", "--from-beginning", "--group", "g", "--max-messages", "3")
    one("groups", "delete-offsets", "g", "--topic", "orders")
    shown = payloads(one("kafka-dump-log.sh", "--files", segment_of("__consumer_offsets"), "--offsets-decoder"))
    keys = [key for key, _ in shown]
    offset = {"type": "1", "data": {"group": "g", "topic": "orders", "partition": 0}}
    group = {"type": "2", "data": {"group": "g"}}
    assert keys == [group, offset, group, offset]
    joined, committed, _, deleted = (payload for _, payload in shown)
    assert deleted == "<DELETE>"
    told = json.loads(committed)
    assert told["version"] == "3" and told["data"].pop("commitTimestamp") > 0
    assert told["data"] == {"offset": 3, "leaderEpoch": -1, "metadata": ""}
    [member] = json.loads(joined)["data"]["members"]
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"]["assignedPartitions"] == [{"topic": "orders", "partitions": [0]}]


def test_transactions_are_decoded(one: Cli) -> None:
    with EventBus("file://./data").blocking() as bus, bus.transaction("shop") as transaction:
        transaction.send("orders", b"x")
    file = segment_of("__transaction_state")
    shown = payloads(one("kafka-dump-log.sh", "--files", file, "--transaction-log-decoder"))
    assert {key["data"]["transactionalId"] for key, _ in shown} == {"shop"}
    assert json.loads(shown[1][1])["data"]["transactionPartitions"] == [{"topic": "orders", "partitionIds": [0]}]
    wrong = one("kafka-dump-log.sh", "--files", file, "--offsets-decoder")
    assert "error: " in wrong.out and wrong.code == 0


def test_metadata_is_decoded_and_keeps_its_secrets(one: Cli) -> None:
    one("configs", "alter", "--user", "alice", "--add-config", "SCRAM-SHA-256=[password=x]")
    file = segment_of("__cluster_metadata")
    shown = one("kafka-dump-log.sh", "--files", file, "--cluster-metadata-decoder")
    (topic, _), *_, (_, user) = payloads(shown)
    assert topic == {"type": "topic", "name": "orders"}
    told = json.loads(user)
    assert told["type"] == "USER_SCRAM_CREDENTIAL_RECORD"
    data = told["data"]
    assert (data["name"], data["iterations"]) == ("alice", 4096)
    assert {data[name] for name in ("salt", "storedKey", "serverKey")} == {"(hidden)"}


def test_flags_of_kafkas_dump_tool(one: Cli) -> None:
    file, index = f"data/orders-0/{SEGMENT}.log", f"data/orders-0/{SEGMENT}.index"
    script = ("kafka-dump-log.sh", "--files", file)
    bare = one(*script, "--print-data-log", "--skip-record-metadata").lines
    assert [line for line in bare if line.startswith("| ")][:2] == [
        "| key: k payload: first",
        "| key: k payload: second",
    ]
    first = json.loads(one(*script, "--json").lines[0])
    assert len(one(*script, "--max-bytes", str(first["size"])).lines) == 2
    assert one(*script, "--deep-iteration", "--max-message-size", "5").out == one(*script, "--print-data-log").out
    typed = one(*script, "--print-data-log", "--value-decoder-class", "org.apache.kafka.tools.api.StringDecoder")
    assert typed.out == one(*script, "--print-data-log").out
    assert one(*script, "--print-data-log", "--value-decoder-class", "LongDecoder").code == 2
    assert one(*script, "--value-decoder-class", "com.example.Own").code == 2
    checked = one("kafka-dump-log.sh", "--files", index, "--index-sanity-check")
    assert checked.lines == [f"Dumping {index}", f"{index} passed sanity check."]
    assert one(*script, "--share-group-state-decoder").code == 2


def test_repair_shows_what_it_costs_and_does_it_when_asked(one: Cli) -> None:
    path = Path(f"data/orders-0/{SEGMENT}.log")
    good = path.read_bytes()
    assert one("log", "repair", "data").lines == [f"{Path('data').resolve()}: no damage, nothing to repair"]
    damaged = bytearray(good)
    damaged[-3:] = b"\xee\xee\xee"
    path.write_bytes(damaged)
    planned = one("log", "repair", "data")
    assert planned.code == 1
    assert "offsets 2 to 2 are lost" in planned.err
    assert "Nothing was changed." in planned.out
    assert path.read_bytes() == bytes(damaged)
    report = one("log", "repair", "data", "--json").json
    assert (report["partitions"][0]["holes"][0]["first_offset"], report["executed"]) == (2, False)
    done = one("log", "repair", "data", "--execute")
    assert done.code == 0
    assert "What was cut is in" in done.out
    assert one("log", "verify", "data").code == 0
    assert one("consume", "orders", "--from-beginning", "--max-messages", "2").lines == ["first", "second"]

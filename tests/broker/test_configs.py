"""The config table against Kafka's own."""

from __future__ import annotations

import pytest

from eventbus.broker.configs import (
    CONFIG_KEYS,
    INTERNAL_SEGMENT_BYTES,
    check_together,
    config_key,
    describe,
    effective,
    log_config,
    normalise,
    parse,
)
from eventbus.errors import InvalidConfig
from eventbus.log.config import LogConfig
from eventbus.types import TimestampType

# Printed by Kafka 4.1.0 itself: kafka-storage-4.1.0.jar from Maven Central, jshell on Java 17, for each name of
# LogConfig.configNames(): name | type | default | validator | LogConfig's server key.
KAFKA_4_1 = """\
cleanup.policy | LIST | [delete] | [compact, delete] | log.cleanup.policy
compression.gzip.level | INT | -1 | [1,...,9] or -1 | compression.gzip.level
compression.lz4.level | INT | 9 | [1,...,17] | compression.lz4.level
compression.type | STRING | producer | [uncompressed, zstd, lz4, snappy, gzip, producer] | compression.type
compression.zstd.level | INT | 3 | [-131072,...,22] | compression.zstd.level
delete.retention.ms | LONG | 86400000 | [0,...] | log.cleaner.delete.retention.ms
file.delete.delay.ms | LONG | 60000 | [0,...] | log.segment.delete.delay.ms
flush.messages | LONG | 9223372036854775807 | [1,...] | log.flush.interval.messages
flush.ms | LONG | 9223372036854775807 | [0,...] | log.flush.interval.ms
follower.replication.throttled.replicas | LIST | [] | [partitionId]:[brokerId],[partitionId]:[brokerId],... |
index.interval.bytes | INT | 4096 | [0,...] | log.index.interval.bytes
internal.segment.bytes | INT | null | null |
leader.replication.throttled.replicas | LIST | [] | [partitionId]:[brokerId],[partitionId]:[brokerId],... |
local.retention.bytes | LONG | -2 | [-2,...] | log.local.retention.bytes
local.retention.ms | LONG | -2 | [-2,...] | log.local.retention.ms
max.compaction.lag.ms | LONG | 9223372036854775807 | [1,...] | log.cleaner.max.compaction.lag.ms
max.message.bytes | INT | 1048588 | [0,...] | message.max.bytes
message.timestamp.after.max.ms | LONG | 3600000 | [0,...] | log.message.timestamp.after.max.ms
message.timestamp.before.max.ms | LONG | 9223372036854775807 | [0,...] | log.message.timestamp.before.max.ms
message.timestamp.type | STRING | CreateTime | [CreateTime, LogAppendTime] | log.message.timestamp.type
min.cleanable.dirty.ratio | DOUBLE | 0.5 | [0,...,1] | log.cleaner.min.cleanable.ratio
min.compaction.lag.ms | LONG | 0 | [0,...] | log.cleaner.min.compaction.lag.ms
min.insync.replicas | INT | 1 | [1,...] | min.insync.replicas
preallocate | BOOLEAN | false | null | log.preallocate
remote.log.copy.disable | BOOLEAN | false | null |
remote.log.delete.on.disable | BOOLEAN | false | null |
remote.storage.enable | BOOLEAN | false | null |
retention.bytes | LONG | -1 | null | log.retention.bytes
retention.ms | LONG | 604800000 | [-1,...] | log.retention.ms
segment.bytes | INT | 1073741824 | [1048576,...] | log.segment.bytes
segment.index.bytes | INT | 10485760 | [4,...] | log.index.size.max.bytes
segment.jitter.ms | LONG | 0 | [0,...] | log.roll.jitter.ms
segment.ms | LONG | 604800000 | [1,...] | log.roll.ms
unclean.leader.election.enable | BOOLEAN | false | null | unclean.leader.election.enable
"""
LATER = """\
errors.deadletterqueue.group.enable | BOOLEAN | false | null |
"""
"""Of Kafka 4.4 (KIP-1191)."""
ROWS = [[cell.strip() for cell in line.split("|")] for line in (KAFKA_4_1 + LATER).splitlines()]


def test_no_key_is_missing_and_none_is_invented() -> None:
    assert [*CONFIG_KEYS, INTERNAL_SEGMENT_BYTES.name] == sorted(
        [row[0] for row in ROWS], key=lambda name: (name == "internal.segment.bytes", name)
    )


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_rows_are_kafkas(row: list[str]) -> None:
    name, kind, default, validator, server_key = row
    key = config_key(name)
    assert key.kind == kind.lower()
    assert key.default == default.strip("[]").replace("null", "")
    assert key.kafka == server_key
    if kind in ("INT", "LONG", "DOUBLE") and validator != "null":
        low, _, rest = validator.removeprefix("[").partition(",...")
        assert key.low == float(low)
        high = rest.partition("]")[0].removeprefix(",")
        assert key.high == (float(high) if high else None)
        assert key.also == (-1 if validator.endswith("or -1") else None)
    elif validator.startswith("[") and not validator.startswith("[partitionId]"):
        assert key.choices == tuple(validator.strip("[]").split(", "))


def test_every_key_names_its_effect() -> None:
    """Keys that Kafka enforces by default may not be among those without effect."""
    assert not [key.name for key in (*CONFIG_KEYS.values(), INTERNAL_SEGMENT_BYTES) if not key.doc]
    idle = {name: key.default for name, key in CONFIG_KEYS.items() if key.no_effect}
    assert idle == {
        "compression.gzip.level": "-1", "compression.lz4.level": "9", "compression.type": "producer",
        "compression.zstd.level": "3", "file.delete.delay.ms": "60000", "flush.messages": str((1 << 63) - 1),
        "flush.ms": str((1 << 63) - 1), "follower.replication.throttled.replicas": "",
        "leader.replication.throttled.replicas": "", "local.retention.bytes": "-2", "local.retention.ms": "-2",
        "min.insync.replicas": "1", "preallocate": "false", "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false", "remote.storage.enable": "false", "segment.jitter.ms": "0",
        "unclean.leader.election.enable": "false",
    }, "with these defaults Kafka refuses nothing and promises nothing that is not so here"  # fmt: skip


def test_every_default_is_legal() -> None:
    for key in CONFIG_KEYS.values():
        parse(key, key.default)


def test_log_config_defaults_are_the_same_table() -> None:
    assert log_config({}, {}) == LogConfig()


def test_log_config_takes_what_has_an_effect() -> None:
    topic = normalise(
        {
            "segment.bytes": 1 << 20,
            "segment.ms": 5,
            "segment.index.bytes": "4096",
            "index.interval.bytes": 1,
            "retention.ms": -1,
            "retention.bytes": 77,
            "max.message.bytes": 99,
            "message.timestamp.type": "LogAppendTime",
            "cleanup.policy": ["compact", "delete"],
            "delete.retention.ms": 8,
            "min.compaction.lag.ms": 6,
            "max.compaction.lag.ms": 7,
            "min.cleanable.dirty.ratio": 0.25,
            "message.timestamp.before.max.ms": 3,
            "message.timestamp.after.max.ms": 4,
        }
    )
    assert log_config(topic, {}) == LogConfig(
        1 << 20, 5, 4096, 1, -1, 77, 99, TimestampType.LOG_APPEND_TIME, ("compact", "delete"), 8, 6, 7, 0.25, 3, 4
    )
    acting = {name for name, key in CONFIG_KEYS.items() if not key.no_effect}
    for_tools = {"errors.deadletterqueue.group.enable"}
    assert acting - for_tools == set(topic)


def test_a_compacted_segment_ends_in_time_to_be_cleaned() -> None:
    """KIP-354: the active segment is not cleaned, so it must not be active for longer than the lag."""
    configs = normalise({"segment.ms": 500, "max.compaction.lag.ms": 100})
    assert log_config(configs, {}).segment_ms == 500
    assert log_config({**configs, "cleanup.policy": "compact"}, {}).segment_ms == 100
    assert log_config({**configs, "cleanup.policy": "compact", "max.compaction.lag.ms": "900"}, {}).segment_ms == 500


def test_internal_segment_bytes_goes_below_the_limit() -> None:
    assert log_config(normalise({"internal.segment.bytes": 100}), {}).segment_bytes == 100


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"retention.mss": "1"}, ["'retention.mss'", "did you mean 'retention.ms'"]),
        ({"log.retention.ms": "1"}, ["'log.retention.ms'", "for a topic write 'retention.ms'"]),
        ({"retention.ms": "-2"}, ["retention.ms='-2'", "a whole number of milliseconds, at least -1"]),
        ({"retention.ms": "1_000"}, ["retention.ms='1_000'"]),
        ({"retention.ms": "7d"}, ["retention.ms='7d'"]),
        ({"retention.ms": ""}, ["retention.ms=''"]),
        ({"retention.ms": "9" * 19}, ["9223372036854775807"]),
        ({"retention.ms": None}, ["retention.ms='None'"]),
        ({"segment.bytes": 1}, ["segment.bytes='1'", "from 1048576 to 2147483647", "internal.segment.bytes"]),
        ({"max.message.bytes": 1 << 31}, ["max.message.bytes='2147483648'", "0 to 2147483647"]),
        ({"cleanup.policy": "compacted"}, ["cleanup.policy='compacted'", "compact or delete"]),
        ({"cleanup.policy": "delete,delete"}, ["cleanup.policy='delete,delete'"]),
        ({"message.timestamp.type": "logappendtime"}, ["CreateTime or LogAppendTime"]),
        ({"preallocate": "yes"}, ["preallocate='yes'", "true or false"]),
        ({"min.cleanable.dirty.ratio": "1.5"}, ["min.cleanable.dirty.ratio='1.5'", "0 to 1"]),
        ({"min.cleanable.dirty.ratio": "nan"}, ["0 to 1"]),
        ({"compression.gzip.level": "0"}, ["1 to 9, or -1"]),
        ({"leader.replication.throttled.replicas": "1-2"}, ["PARTITION:BROKER"]),
    ],
)
def test_errors_name_key_value_and_range(wrong: dict[str, object], says: list[str]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        normalise(wrong)
    for text in says:
        assert text in str(caught.value)


def test_values_of_python_become_kafkas_text() -> None:
    given = {"preallocate": True, "retention.ms": 5, "cleanup.policy": ("compact", "delete"), "segment.ms": " 7 "}
    assert normalise(given) == {
        "preallocate": "true", "retention.ms": "5", "cleanup.policy": "compact,delete", "segment.ms": "7",
    }  # fmt: skip


def test_keys_that_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms=5 is above max\.compaction\.lag\.ms=4"):
        check_together(effective({"min.compaction.lag.ms": "5"}, {"max.compaction.lag.ms": "4"}))


def test_describe_tells_source_default_and_effect() -> None:
    entries = describe({"retention.ms": "9"}, {"retention.ms": "8", "segment.ms": "7"})
    assert len(entries) == len(CONFIG_KEYS)
    assert entries["retention.ms"][:3] == ("9", "8", "topic")
    assert entries["segment.ms"][:3] == ("7", "7", "broker")
    assert entries["segment.bytes"][:3] == ("1073741824", "1073741824", "default")
    assert entries["retention.ms"].no_effect == ""
    assert "one copy" in entries["min.insync.replicas"].no_effect

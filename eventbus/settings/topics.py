"""Every per-topic config of Kafka: name, type, default, range, and what it does here.

Names, types, defaults and ranges are those of Kafka 4.1's ``LogConfig`` (a test compares them with a table printed by
that class). A key without effect in the embedded log is still checked, stored and shown, so that the same scripts run
here and on a cluster, and ``describe`` says so. Defaults are text, as in Kafka's answers.
"""

from __future__ import annotations

from eventbus.settings.setting import Setting

_LONG_MAX = (1 << 63) - 1
_ONE_COPY = "stored only: there is one copy here, kafka:// replicates"
_NO_TIERS = "stored only: there is no tiered storage here"
_PRODUCER_CODEC = "stored only: batches keep the codec of their producer"
_FSYNC = "stored only: flushes follow the log's fsync setting"

ROWS = (
    Setting("topic", "cleanup.policy", "list", "delete",
            "Old segments are deleted, or the latest record of each key is kept.", choices=("compact", "delete"),
            kafka="log.cleanup.policy"),
    Setting("topic", "compression.gzip.level", "int", "-1", _PRODUCER_CODEC, 1, 9, also=-1,
            kafka="compression.gzip.level"),
    Setting("topic", "compression.lz4.level", "int", "9", _PRODUCER_CODEC, 1, 17, kafka="compression.lz4.level"),
    Setting("topic", "compression.type", "string", "producer", _PRODUCER_CODEC,
            choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), kafka="compression.type"),
    Setting("topic", "compression.zstd.level", "int", "3", _PRODUCER_CODEC, -131072, 22,
            kafka="compression.zstd.level"),
    Setting("topic", "delete.retention.ms", "long", "86400000",
            "A tombstone stays so long after it was first compacted.", kafka="log.cleaner.delete.retention.ms"),
    Setting("topic", "errors.deadletterqueue.group.enable", "boolean", "false",
            "Marks a topic of dead letters, for the tools and for share groups on Kafka.", kafka=""),
    Setting("topic", "file.delete.delay.ms", "long", "60000", "stored only: files are deleted at once",
            kafka="log.segment.delete.delay.ms"),
    Setting("topic", "flush.messages", "long", str(_LONG_MAX), _FSYNC, 1, kafka="log.flush.interval.messages"),
    Setting("topic", "flush.ms", "long", str(_LONG_MAX), _FSYNC, kafka="log.flush.interval.ms"),
    Setting("topic", "follower.replication.throttled.replicas", "list", "", _ONE_COPY, kafka=""),
    Setting("topic", "index.interval.bytes", "int", "4096", "One index entry for so many bytes of log.",
            kafka="log.index.interval.bytes"),
    Setting("topic", "leader.replication.throttled.replicas", "list", "", _ONE_COPY, kafka=""),
    Setting("topic", "local.retention.bytes", "long", "-2", _NO_TIERS, -2, kafka="log.local.retention.bytes"),
    Setting("topic", "local.retention.ms", "long", "-2", _NO_TIERS, -2, kafka="log.local.retention.ms"),
    Setting("topic", "max.compaction.lag.ms", "long", str(_LONG_MAX),
            "A log with an older uncompacted record is compacted, however little of it is new.", 1,
            kafka="log.cleaner.max.compaction.lag.ms"),
    Setting("topic", "max.message.bytes", "int", "1048588", "A larger batch is refused: MESSAGE_TOO_LARGE.",
            kafka="message.max.bytes"),
    Setting("topic", "message.timestamp.after.max.ms", "long", "3600000",
            "A record further in the future is refused: INVALID_TIMESTAMP.",
            kafka="log.message.timestamp.after.max.ms"),
    Setting("topic", "message.timestamp.before.max.ms", "long", str(_LONG_MAX),
            "A record further in the past is refused: INVALID_TIMESTAMP.", kafka="log.message.timestamp.before.max.ms"),
    Setting("topic", "message.timestamp.type", "string", "CreateTime",
            "The timestamp of the producer is kept, or replaced by the log.", choices=("CreateTime", "LogAppendTime"),
            kafka="log.message.timestamp.type"),
    Setting("topic", "min.cleanable.dirty.ratio", "double", "0.5",
            "A log is compacted when more than this part of it is new.", 0, 1, kafka="log.cleaner.min.cleanable.ratio"),
    Setting("topic", "min.compaction.lag.ms", "long", "0", "A segment with a younger record is not compacted.",
            kafka="log.cleaner.min.compaction.lag.ms"),
    Setting("topic", "min.insync.replicas", "int", "1", _ONE_COPY, 1, kafka="min.insync.replicas"),
    Setting("topic", "preallocate", "boolean", "false", "stored only: files grow as they are written",
            kafka="log.preallocate"),
    Setting("topic", "remote.log.copy.disable", "boolean", "false", _NO_TIERS, kafka=""),
    Setting("topic", "remote.log.delete.on.disable", "boolean", "false", _NO_TIERS, kafka=""),
    Setting("topic", "remote.storage.enable", "boolean", "false", _NO_TIERS, kafka=""),
    Setting("topic", "retention.bytes", "long", "-1",
            "The oldest segments are deleted while the rest is larger; -1: no limit.", None,
            kafka="log.retention.bytes"),
    Setting("topic", "retention.ms", "long", "604800000",
            "A segment is deleted when its newest record is older; -1: never.", -1, kafka="log.retention.ms"),
    Setting("topic", "segment.bytes", "int", "1073741824", "A segment is sealed before it grows larger.", 1 << 20,
            kafka="log.segment.bytes", note="; for smaller ones in tests Kafka has internal.segment.bytes"),
    Setting("topic", "segment.index.bytes", "int", "10485760", "A segment is sealed when an index is as large.", 4,
            kafka="log.index.size.max.bytes"),
    Setting("topic", "segment.jitter.ms", "long", "0", "stored only: one process has no herd of segments to spread",
            kafka="log.roll.jitter.ms"),
    Setting("topic", "segment.ms", "long", "604800000",
            "A segment is sealed when a record is so much later than its first.", 1, kafka="log.roll.ms"),
    Setting("topic", "unclean.leader.election.enable", "boolean", "false", _ONE_COPY,
            kafka="unclean.leader.election.enable"),
)  # fmt: skip

INTERNAL_SEGMENT_BYTES = Setting("topic", "internal.segment.bytes", "int", "", "as segment.bytes", 1, kafka="",
            note="; it overrides segment.bytes without its lower limit, for tests")  # fmt: skip
"""Kafka's hidden key for tests: shown by describe only where it is set."""

"""State machines over internal topics: topics and configs, groups and offsets, transactions. Synchronous and pure."""

from eventbus.coordinator.codec import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
    java_string_hash,
    partition_for_group,
)
from eventbus.coordinator.groups import GroupsShard
from eventbus.coordinator.shard import CoordinatorRecord, Decision, Shard, TransactionalShard
from eventbus.coordinator.topics import TopicsShard, TopicState
from eventbus.coordinator.transactions import TransactionsShard

__all__ = [
    "CoordinatorRecord",
    "Decision",
    "GroupsShard",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "Shard",
    "TopicState",
    "TopicsShard",
    "TransactionalShard",
    "TransactionsShard",
    "decode_offset_key",
    "decode_offset_value",
    "encode_offset_key",
    "encode_offset_value",
    "java_string_hash",
    "partition_for_group",
]

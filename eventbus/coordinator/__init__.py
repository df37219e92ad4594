"""State machines over internal topics: topics and configs, groups and offsets, transactions. Synchronous and pure."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from eventbus.coordinator.shard import CoordinatorRecord, Decision, IdentifyingShard, Shard, TransactionalShard
    from eventbus.coordinator.topics import TopicsShard, TopicState
    from eventbus.coordinator.transactions import TransactionsShard

__all__ = [
    "CoordinatorRecord",
    "Decision",
    "GroupsShard",
    "IdentifyingShard",
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

# Each is imported when it is asked for: what speaks of groups, and of access, needs no coordinators.
_HOMES = {
    "CoordinatorRecord": "shard",
    "Decision": "shard",
    "GroupsShard": "groups",
    "IdentifyingShard": "shard",
    "OffsetCommitKey": "codec",
    "OffsetCommitValue": "codec",
    "Shard": "shard",
    "TopicState": "topics",
    "TopicsShard": "topics",
    "TransactionalShard": "shard",
    "TransactionsShard": "transactions",
    "decode_offset_key": "codec",
    "decode_offset_value": "codec",
    "encode_offset_key": "codec",
    "encode_offset_value": "codec",
    "java_string_hash": "codec",
    "partition_for_group": "codec",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'eventbus.coordinator' has no attribute {name!r}")
    value = getattr(import_module(f"eventbus.coordinator.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

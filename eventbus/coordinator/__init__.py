"""State machines over internal topics: topics and configs, groups and offsets, transactions. Synchronous and pure.

- ``shard``: the pattern: decide, append, replay
- ``groups``, ``group``, ``group_rules``, ``members``, ``deadlines``: the classic protocol. ``group`` returns the old
  assignment to a static member that comes back
- ``consumer_groups``, ``consumer_group``, ``consumer_group_assigning``: KIP-848
- ``offsets``, ``codec``: committed offsets and their records
- ``assignors``, ``sticky``, ``strategies``, ``consumer_protocol``: assignment by the group's leader
- ``transactions``, ``transaction_states``, ``transaction_codec``: transactions, with the table of their states
- ``topics``, ``security``, ``acls``, ``credentials``, ``quotas``: stored next to the topics
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

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

# Names are imported on first use, so that code which only needs group or ACL types does not load the coordinators.
_HOMES = {
    "codec": (
        "OffsetCommitKey",
        "OffsetCommitValue",
        "decode_offset_key",
        "decode_offset_value",
        "encode_offset_key",
        "encode_offset_value",
        "java_string_hash",
        "partition_for_group",
    ),
    "groups": ("GroupsShard",),
    "shard": ("CoordinatorRecord", "Decision", "IdentifyingShard", "Shard", "TransactionalShard"),
    "topics": ("TopicState", "TopicsShard"),
    "transactions": ("TransactionsShard",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)

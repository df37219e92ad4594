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
    from eventbus.coordinator.codec import OffsetCommitKey as OffsetCommitKey
    from eventbus.coordinator.codec import OffsetCommitValue as OffsetCommitValue
    from eventbus.coordinator.codec import decode_offset_key as decode_offset_key
    from eventbus.coordinator.codec import decode_offset_value as decode_offset_value
    from eventbus.coordinator.codec import encode_offset_key as encode_offset_key
    from eventbus.coordinator.codec import encode_offset_value as encode_offset_value
    from eventbus.coordinator.codec import java_string_hash as java_string_hash
    from eventbus.coordinator.codec import partition_for_group as partition_for_group
    from eventbus.coordinator.groups import GroupsShard as GroupsShard
    from eventbus.coordinator.shard import CoordinatorRecord as CoordinatorRecord
    from eventbus.coordinator.shard import Decision as Decision
    from eventbus.coordinator.shard import IdentifyingShard as IdentifyingShard
    from eventbus.coordinator.shard import Shard as Shard
    from eventbus.coordinator.shard import TransactionalShard as TransactionalShard
    from eventbus.coordinator.topics import TopicsShard as TopicsShard
    from eventbus.coordinator.topics import TopicState as TopicState
    from eventbus.coordinator.transactions import TransactionsShard as TransactionsShard

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

"""A synchronous object that owns topics, logs and coordinators. Nothing inside awaits, so every call is atomic.

- ``broker``: the object, its opening and its tick
- ``logs``, ``partitions``, ``cleaning``: open, checkpoint, retain and compact partitions
- ``topic_admin``, ``configs``, ``names``, ``validation``: topics, their configs, and checks of batches
- ``groups``, ``transactions``: coordinators over internal topics
- ``transaction_ends``, ``transaction_timeouts``: markers, recovery, and the abort of transactions
  that are open too long
- ``shard_log``, ``latest_records``: replay of a coordinator's state
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.broker.broker import Broker
    from eventbus.broker.configs import CONFIG_KEYS, ConfigEntry
    from eventbus.broker.descriptions import (
        FetchData,
        OffsetCommitResult,
        PartitionDescription,
        TopicDescription,
        TopicSpec,
    )
    from eventbus.broker.names import CLUSTER_METADATA, CONSUMER_OFFSETS, INTERNAL_TOPICS, collision_warning
    from eventbus.broker.settings import BrokerConfig

__all__ = [
    "CLUSTER_METADATA",
    "CONFIG_KEYS",
    "CONSUMER_OFFSETS",
    "INTERNAL_TOPICS",
    "Broker",
    "BrokerConfig",
    "ConfigEntry",
    "FetchData",
    "OffsetCommitResult",
    "PartitionDescription",
    "TopicDescription",
    "TopicSpec",
    "collision_warning",
]

# Names are imported on first use: a client of a Kafka cluster needs the descriptions, but no broker.
_HOMES = {
    "broker": ("Broker",),
    "configs": ("CONFIG_KEYS", "ConfigEntry"),
    "descriptions": ("FetchData", "OffsetCommitResult", "PartitionDescription", "TopicDescription", "TopicSpec"),
    "names": ("CLUSTER_METADATA", "CONSUMER_OFFSETS", "INTERNAL_TOPICS", "collision_warning"),
    "settings": ("BrokerConfig",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)

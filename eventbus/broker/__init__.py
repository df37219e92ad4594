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
    from eventbus.broker.broker import Broker as Broker
    from eventbus.broker.configs import CONFIG_KEYS as CONFIG_KEYS
    from eventbus.broker.configs import ConfigEntry as ConfigEntry
    from eventbus.broker.descriptions import FetchData as FetchData
    from eventbus.broker.descriptions import OffsetCommitResult as OffsetCommitResult
    from eventbus.broker.descriptions import PartitionDescription as PartitionDescription
    from eventbus.broker.descriptions import TopicDescription as TopicDescription
    from eventbus.broker.descriptions import TopicSpec as TopicSpec
    from eventbus.broker.names import CLUSTER_METADATA as CLUSTER_METADATA
    from eventbus.broker.names import CONSUMER_OFFSETS as CONSUMER_OFFSETS
    from eventbus.broker.names import INTERNAL_TOPICS as INTERNAL_TOPICS
    from eventbus.broker.names import collision_warning as collision_warning
    from eventbus.broker.settings import BrokerConfig as BrokerConfig

# Names are imported on first use: a client of a Kafka cluster needs the descriptions, but no broker.
_HOMES = {
    "broker": ("Broker",),
    "configs": ("CONFIG_KEYS", "ConfigEntry"),
    "descriptions": ("FetchData", "OffsetCommitResult", "PartitionDescription", "TopicDescription", "TopicSpec"),
    "names": ("CLUSTER_METADATA", "CONSUMER_OFFSETS", "INTERNAL_TOPICS", "collision_warning"),
    "settings": ("BrokerConfig",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)

"""A synchronous object that owns topics, logs and coordinators. Nothing inside awaits, so every call is atomic."""

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

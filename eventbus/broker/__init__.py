"""One synchronous object that owns topics, logs and coordinators. Nothing inside awaits, so every call is atomic."""

from eventbus.broker.broker import Broker
from eventbus.broker.configs import CONFIG_KEYS, ConfigEntry, ConfigKey
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
    "ConfigKey",
    "FetchData",
    "OffsetCommitResult",
    "PartitionDescription",
    "TopicDescription",
    "TopicSpec",
    "collision_warning",
]

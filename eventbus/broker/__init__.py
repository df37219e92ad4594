"""One synchronous object that owns topics, logs and coordinators. Nothing inside awaits, so every call is atomic."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# Each is imported when it is asked for: a client of a Kafka needs descriptions, and no broker.
_HOMES = {
    "Broker": "broker",
    "BrokerConfig": "settings",
    "CLUSTER_METADATA": "names",
    "CONFIG_KEYS": "configs",
    "CONSUMER_OFFSETS": "names",
    "ConfigEntry": "configs",
    "ConfigKey": "configs",
    "FetchData": "descriptions",
    "INTERNAL_TOPICS": "names",
    "OffsetCommitResult": "descriptions",
    "PartitionDescription": "descriptions",
    "TopicDescription": "descriptions",
    "TopicSpec": "descriptions",
    "collision_warning": "names",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'eventbus.broker' has no attribute {name!r}")
    value = getattr(import_module(f"eventbus.broker.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

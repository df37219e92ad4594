"""Choose the partition of a record."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from eventbus.errors import ConfigError
from eventbus.records.murmur2 import murmur2, to_positive
from eventbus.suggest import nearest

PartitionFunction = Callable[[str, bytes | None, Any, int], int]
"""A custom partitioner: (topic, key bytes, value as given, number of partitions) -> partition."""

NAMES = ("murmur2", "murmur3", "round_robin")


class Partitioner(Protocol):
    """Chooses partitions for a topic and a producer."""

    by_key: bool
    """True if equal keys always get the same partition, so that it may be cached."""

    def partition(self, key: bytes | None, value: Any, data: bytes | None, count: int) -> int:
        """Return a partition from 0 to ``count - 1``. ``key`` and ``data`` are serialized, ``value`` is as given."""
        ...


class _Hashed:
    """Hashes the key. Records without a key stick to a partition until it got ``sticky_bytes`` (KIP-794).

    Unlike distributing single records, that makes few large batches instead of many small ones.
    """

    def __init__(self, hash_key: Callable[[bytes], int], sticky_bytes: int) -> None:
        self.by_key = True
        self._hash_key = hash_key
        self._sticky_bytes = sticky_bytes
        self._sticky_left = sticky_bytes
        self._sticky = 0

    def partition(self, key: bytes | None, value: Any, data: bytes | None, count: int) -> int:
        if key is None:
            if self._sticky_left <= 0:
                self._sticky_left = self._sticky_bytes
                self._sticky += 1
            self._sticky_left -= len(data) + 1 if data is not None else 1
            return self._sticky % count
        return to_positive(self._hash_key(key)) % count


class _Function:
    def __init__(self, topic: str, function: PartitionFunction) -> None:
        self.by_key = False
        self._topic = topic
        self._function = function

    def partition(self, key: bytes | None, value: Any, data: bytes | None, count: int) -> int:
        partition: Any = self._function(self._topic, key, value, count)
        if not isinstance(partition, int) or not 0 <= partition < count:
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise ConfigError(
                f"the partitioner {name} answered {partition!r} for topic {self._topic!r}: 0 to {count - 1} is allowed"
            )
        return partition


def _murmur3(key: bytes) -> int:
    import mmh3

    return mmh3.hash(key, signed=False)


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f'partitioner={name!r} cannot be imported: {error}; write "module:name"') from error


def make_partitioner(choice: str | PartitionFunction, topic: str, batch_size: int) -> Partitioner:
    """Return the partitioner of a topic.

    ``murmur2`` is the default and byte-exact with Kafka's Java client; ``murmur3`` is faster, but no Kafka client uses
    it. Both are sticky for records without a key. ``round_robin`` gives each record without a key the next partition. A
    function, or a class of callable objects (one object per topic), decides alone; ``"module:name"`` imports either, as
    ``partitioner.class`` does. Raises ConfigError.
    """
    found: Any = _imported(choice) if isinstance(choice, str) and ":" in choice else choice
    if isinstance(found, type):
        found = cast("type[Any]", found)()
    if callable(found):
        return _Function(topic, cast("PartitionFunction", found))
    if choice == "murmur2":
        return _Hashed(murmur2, batch_size)
    if choice == "murmur3":
        return _Hashed(_murmur3, batch_size)
    if choice == "round_robin":
        return _Hashed(murmur2, 0)
    raise ConfigError(
        f'unknown partitioner {choice!r}{nearest(str(choice), NAMES)}: {", ".join(NAMES)}, "module:name", or a '
        "function (topic, key bytes, value, number of partitions) -> partition"
    )

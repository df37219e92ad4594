"""Topics as the group coordinator sees them: names, ids and partition counts. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from eventbus.coordinator.topics import TopicState


class TopicFacts(NamedTuple):
    """The properties of a topic on which an assignment depends."""

    topic_id: bytes
    """16 bytes, as on the wire."""
    partitions: int


class TopicsView:
    """The topics of the log at present. ``version`` changes whenever they may have changed."""

    __slots__ = ("_ids", "_names", "_seen_version", "_topics", "_version")

    def __init__(self, topics: Mapping[str, TopicState], version: Callable[[], int]) -> None:
        """``topics`` is read again whenever ``version()`` returns another number."""
        self._topics = topics
        self._version = version
        self._seen_version: int | None = None
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    @property
    def version(self) -> int:
        """A number that changes with every change of topics or partition counts."""
        return self._version()

    def names(self) -> Iterable[str]:
        return self._topics.keys()

    def get(self, name: str) -> TopicFacts | None:
        topic = self._topics.get(name)
        if topic is None:
            return None
        self._look()
        topic_id = self._ids.get(name)
        if topic_id is None or self._names.get(topic_id) != name:
            topic_id = _bytes_of(topic.topic_id)
        return TopicFacts(topic_id, topic.partitions)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return None if no topic has this id: it was deleted, and perhaps created again with another id."""
        self._look()
        return self._names.get(topic_id)

    def _look(self) -> None:
        version = self._version()
        if version != self._seen_version:
            self._ids = {name: _bytes_of(topic.topic_id) for name, topic in self._topics.items()}
            self._names = {topic_id: name for name, topic_id in self._ids.items()}
            self._seen_version = version


NO_TOPICS = TopicsView({}, lambda: 0)


def metadata_hash(topics: TopicsView, names: Iterable[str]) -> int:
    """Return a number that changes if a topic is created, deleted, or gets another id or partition count (KIP-1101).

    It is 0 without topics. Kafka uses another hash function: a group written by Kafka is assigned once more on first
    use.
    """
    found = [(name, facts) for name in sorted(names) if (facts := topics.get(name)) is not None]
    if not found:
        return 0
    from hashlib import blake2b

    digest = blake2b(digest_size=8)
    for name, (topic_id, partitions) in found:
        digest.update(topic_id + partitions.to_bytes(4) + name.encode() + b"\0")
    return int.from_bytes(digest.digest(), signed=True)


def _bytes_of(topic_id: str) -> bytes:
    return base64.urlsafe_b64decode(topic_id + "==")

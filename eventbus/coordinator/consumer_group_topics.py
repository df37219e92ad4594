"""Topics as the group coordinator sees them: names, ids and partition counts. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from eventbus.coordinator.topics import TopicState


class TopicFacts(NamedTuple):
    """What an assignment needs to know of a topic."""

    topic_id: bytes
    """16 bytes, as on the wire."""
    partitions: int


class TopicsView:
    """The topics of the log as they are now. ``version`` tells whether they may have changed since."""

    __slots__ = ("_ids", "_names", "_seen_version", "_topics", "_version")

    def __init__(self, topics: Mapping[str, TopicState], version: Callable[[], int]) -> None:
        """``topics`` is looked at anew whenever ``version()`` gives another number."""
        self._topics = topics
        self._version = version
        self._seen_version: int | None = None
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    @property
    def version(self) -> int:
        """Another number after every change of topics or partition counts."""
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
        """None when no topic has this id: it was deleted, or made anew."""
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
    """Another number when one of the topics came, went, or has another id or partition count; 0 for none (KIP-1101).

    Kafka's is another function; whoever finds a number of another kind sees a change, and assigns once more.
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

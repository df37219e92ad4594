"""Read a log's directory with all of its topics, those without records included."""

from __future__ import annotations

from eventbus.coordinator.topics import TopicsShard, TopicState
from eventbus.log.reader import LogReader
from eventbus.records.batch import iter_batches
from eventbus.types import TopicPartition

_METADATA = TopicPartition("__cluster_metadata", 0)


class TopicReader(LogReader):
    """A `LogReader` that also knows the topics and partitions to which nothing was written yet.

    A partition gets its directory with its first record. Until then only ``__cluster_metadata-0`` names it, and each
    call reads that: use a `LogReader` to read records.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._records = LogReader(path)

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic. A topic that was deleted and created again has another id."""
        found = super().topic_id(topic)
        if not found and (declared := self._declared().get(topic)):
            return declared.topic_id
        return found

    def _topic_partitions(self) -> set[TopicPartition]:
        declared = self._declared().values()
        empty = {TopicPartition(topic.name, number) for topic in declared for number in range(topic.partitions)}
        return super()._topic_partitions() | empty

    def _declared(self) -> dict[str, TopicState]:
        shard = TopicsShard()
        first, end = self._records.offsets(_METADATA.topic).get(_METADATA.partition, (0, 0))
        for data in self._records.read(*_METADATA, first, end) if first < end else ():
            for batch in iter_batches(data, verify=False):
                for record in batch.records():
                    if record.key:  # without a key: users and their rights
                        shard.replay(record.key, record.value)
        return shard.topics

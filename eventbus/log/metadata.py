"""``partition.metadata``: which topic of its name a partition's directory belongs to.

Two topics of one name, one deleted and one created after it, differ in their id. What was written for the first must
never be applied to the second.
"""

from __future__ import annotations

from eventbus.log.storage import File, Storage, read_whole, write_atomic
from eventbus.types import TopicPartition

_ID_LENGTH = 22
"""A UUID in Kafka's text form. Less than that was torn in a crash, before anything here was acknowledged."""


def parse_directory(name: str) -> TopicPartition | None:
    """Return the partition that a directory name stands for; None for other names, such as ``orders-007``."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isdecimal() or str(int(partition)) != partition:
        return None
    return TopicPartition(topic, int(partition))


def write_partition_metadata(storage: Storage, directory: str, topic_id: str, *, sync: bool) -> None:
    """Write the file; what is not synced here must be flushed together with the log's first records."""
    write_atomic(storage, _metadata_path(directory), _encode(topic_id), sync=sync)


def secure_partition_metadata(storage: Storage, directory: str, topic_id: str) -> None:
    """Bring the file to the disk for certain, whatever became of an earlier flush.

    Content that is right is written again where it stands: that needs no room on a full disk, and a crash in the middle
    of it leaves the same bytes.
    """
    data = _encode(topic_id)
    if read_whole(storage, _metadata_path(directory)) != data:
        write_partition_metadata(storage, directory, topic_id, sync=True)
        return
    file = open_partition_metadata(storage, directory)
    try:
        file.pwrite(0, data)
        file.sync()
        storage.sync_dir(directory)
    finally:
        file.close()


def open_partition_metadata(storage: Storage, directory: str) -> File:
    """The file, to be flushed with the log's first records."""
    return storage.open(_metadata_path(directory))


def read_partition_metadata(storage: Storage, directory: str) -> str:
    """The topic id in ``partition.metadata``; empty when there is none that can be read."""
    data = read_whole(storage, _metadata_path(directory)) or b""
    lines = data.decode("ascii", "replace").split("\n")
    if len(lines) < 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        return ""
    topic_id = lines[1].removeprefix("topic_id: ")
    return topic_id if len(topic_id) == _ID_LENGTH and topic_id.isprintable() else ""


def _encode(topic_id: str) -> bytes:
    return f"version: 0\ntopic_id: {topic_id}".encode()


def _metadata_path(directory: str) -> str:
    return f"{directory}/partition.metadata"

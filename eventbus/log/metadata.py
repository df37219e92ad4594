"""``partition.metadata``: the id of the topic that a partition's directory belongs to.

A topic that is deleted and created again has another id. Data of the deleted topic must never be applied to its
successor.
"""

from __future__ import annotations

from eventbus.log.storage import File, Storage, read_whole, write_atomic
from eventbus.types import TopicPartition

_ID_LENGTH = 22
"""A UUID in Kafka's text form. A shorter id was torn by a crash, before anything in the directory was acknowledged."""


def parse_directory(name: str) -> TopicPartition | None:
    """Return the partition that a directory name denotes; None for other names, such as ``orders-007``."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isdecimal() or str(int(partition)) != partition:
        return None
    return TopicPartition(topic, int(partition))


def write_partition_metadata(storage: Storage, directory: str, topic_id: str, *, sync: bool) -> None:
    """Write the file. Without ``sync``, it must be flushed together with the log's first records."""
    write_atomic(storage, _metadata_path(directory), _encode(topic_id), sync=sync)


def secure_partition_metadata(storage: Storage, directory: str, topic_id: str) -> None:
    """Make the file durable, whatever happened to an earlier flush.

    Correct content is written again in place: that needs no space on a full disk, and a crash in the middle of it
    leaves the same bytes.
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
    """Open the file, to be flushed with the log's first records."""
    return storage.open(_metadata_path(directory))


def read_partition_metadata(storage: Storage, directory: str) -> str:
    """Return the topic id in ``partition.metadata``; empty if it does not exist or cannot be read."""
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

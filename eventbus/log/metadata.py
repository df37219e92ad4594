"""``partition.metadata``: which topic of its name a partition's directory belongs to.

Two topics of one name, one deleted and one created after it, differ in their id. What was written for the first must
never be applied to the second.
"""

from __future__ import annotations

from eventbus.log.storage import File, Storage, read_whole, write_atomic


def write_partition_metadata(storage: Storage, directory: str, topic_id: str) -> None:
    """Kafka's ``partition.metadata``: which topic of this name the directory belongs to."""
    text = f"version: 0\ntopic_id: {topic_id}"
    write_atomic(storage, _metadata_path(directory), text.encode(), sync=False)


def open_partition_metadata(storage: Storage, directory: str) -> File:
    """The file, to be flushed with the log's first records."""
    return storage.open(_metadata_path(directory))


def read_partition_metadata(storage: Storage, directory: str) -> str:
    """The topic id in ``partition.metadata``; empty when there is none that can be read."""
    data = read_whole(storage, _metadata_path(directory)) or b""
    lines = data.decode("ascii", "replace").split("\n")
    if len(lines) < 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        return ""
    return lines[1].removeprefix("topic_id: ").strip()


def _metadata_path(directory: str) -> str:
    return f"{directory}/partition.metadata"

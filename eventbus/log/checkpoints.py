"""The small files next to the partitions, in Kafka's text formats.

A checkpoint is a hint that saves work. It is always replaced as a whole; a checkpoint that cannot be right is reported
as damaged and rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from eventbus.errors import ConfigError
from eventbus.log.storage import Storage, read_whole, write_atomic
from eventbus.types import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
"""The durable watermark of each partition: below this offset, every byte is on disk in its own file."""
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
LAST_STABLE_OFFSETS = "last-stable-offset-checkpoint"
"""The offset up to which other processes may read. This file is not Kafka's; the others are."""
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
COORDINATOR_STATE = "coordinator.state"
"""A file in a partition's directory, not in the log's; its format is in broker/latest_records.py."""
"""The offset up to which each compacted log was cleaned. A value that is too low only causes more work."""
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"

_GUIDES = (RECOVERY_POINTS, LOG_START_OFFSETS)
"""The checkpoints that recovery depends on. They are written atomically: if a crash could tear them, "damaged" would
not mean damaged."""

_logger = logging.getLogger("eventbus.log")


def write_offsets(storage: Storage, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool) -> None:
    """Replace a checkpoint: version, count, then one line "topic partition offset" per partition.

    Without ``sync``, an older version may be there after a power cut; those that recovery depends on stay readable.
    """
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    # Kafka's format, version 0. The count in the second line shows a file that a power cut has shortened.
    data = f"0\n{len(lines)}\n{''.join(lines)}".encode()
    write_atomic(storage, name, data, sync=sync or (name in _GUIDES and storage.durable), sync_name=sync)


def read_offsets(storage: Storage, name: str) -> dict[TopicPartition, int] | None:
    """Return the offsets in a checkpoint; empty if it does not exist, None if it is damaged."""
    data = read_whole(storage, name)
    if data is None:
        return {}
    try:
        return _parse(data.decode("ascii"))
    except ValueError as error:
        _logger.warning("%s in %s is damaged (%s): it is not used", name, storage.describe(), error)
        return None


def lost_starts(points: Mapping[TopicPartition, int] | None, starts: Mapping[TopicPartition, int] | None) -> str:
    """Return why no log start offset is known, or an empty string. Both checkpoints are written together."""
    if starts is None:
        return f"{LOG_START_OFFSETS} is damaged"
    return f"{LOG_START_OFFSETS} is missing" if points and not starts else ""


def warn_of_lost_starts(
    storage: Storage, points: Mapping[TopicPartition, int] | None, starts: Mapping[TopicPartition, int] | None
) -> None:
    """Log the consequence of a lost checkpoint of log start offsets: they are recorded nowhere else."""
    lost = lost_starts(points, starts)
    if lost:
        _logger.warning(
            "%s in %s: every log starts at its first segment. Records that were deleted by request and whose segment "
            "is still there can be read again: delete them again (`eventbus topics delete-records`)",
            lost, storage.describe(),
        )  # fmt: skip


def _parse(text: str) -> dict[TopicPartition, int]:
    # Strict on purpose: a value that is almost right would move a watermark, which is worse than no value.
    version, count, *lines = text.split("\n")
    if version != "0" or not text.endswith("\n"):
        raise ValueError(f"version {version!r}")
    offsets: dict[TopicPartition, int] = {}
    for line in lines[:-1]:
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, _number(partition))] = _number(offset)
    if _number(count) != len(offsets) or len(lines) - 1 != len(offsets):
        raise ValueError(f"{count} entries announced, {len(offsets)} found")
    return offsets


def _number(text: str) -> int:
    if not text.isdecimal() or (len(text) > 1 and text[0] == "0"):
        raise ValueError(f"{text!r} is no offset")
    return int(text)


def mark_clean_shutdown(storage: Storage) -> None:
    """Record that everything was flushed and closed in order. A closing broker writes this file last."""
    write_atomic(storage, CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}', sync=storage.durable)


def take_clean_shutdown(storage: Storage) -> bool:
    """True if the last owner closed in order. The mark is removed durably, because the next owner may crash."""
    if not storage.exists(CLEAN_SHUTDOWN):
        return False
    # Removed and flushed before the first write of this process. Otherwise a power cut could bring the mark back, and
    # the next start would skip the recovery.
    storage.remove(CLEAN_SHUTDOWN)
    storage.sync_dir("")
    return True


def load_or_create_meta(storage: Storage, cluster_id: str) -> str:
    """Return the cluster id in ``meta.properties``, which is written with ``cluster_id`` if it does not exist."""
    data = read_whole(storage, META_PROPERTIES)
    if data is None:
        text = f"#\nversion=1\ncluster.id={cluster_id}\nnode.id=1\n"
        write_atomic(storage, META_PROPERTIES, text.encode(), sync=storage.durable)
        return cluster_id
    properties = _properties(data)
    if properties.get("version") not in ("0", "1"):
        raise ConfigError(
            f"{storage.describe()}/{META_PROPERTIES} is of version {properties.get('version')!r}; this release reads "
            "1. Is the directory a log of eventbus or Kafka? If the file is damaged, restore it from a backup, or move "
            "it away: the log then opens under a new cluster id"
        )
    return properties.get("cluster.id", cluster_id)


def meta_fault(storage: Storage) -> str:
    """Return why ``meta.properties`` cannot be used, or an empty string."""
    data = read_whole(storage, META_PROPERTIES)
    if data is None:
        return f"{META_PROPERTIES} is missing; the next start writes one with a new cluster id"
    properties = _properties(data)
    cluster_id = properties.get("cluster.id", "")
    if properties.get("version") in ("0", "1") and cluster_id.isascii() and cluster_id.isprintable() and cluster_id:
        return ""
    return f"{META_PROPERTIES} is damaged: it should hold version=1 and cluster.id=..."


def _properties(data: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def forget_coordinator_state(storage: Storage, directory: str) -> None:
    """Durably remove the records that a coordinator has saved of its partition, if there are any.

    They represent the log up to an offset, and opening replays only what follows it. Call this before anything in the
    partition is replaced. When compaction drops a tombstone after that offset, for example, nothing in the log would
    delete the saved record of its key any more. Raises OSError.
    """
    path = f"{directory}/{COORDINATOR_STATE}"
    if storage.exists(path):
        storage.remove(path)
        storage.sync_dir(directory)

"""The small files beside the partitions, in Kafka's text formats.

A checkpoint is a hint that saves work. It is replaced whole, and one that cannot be right is reported as damaged, to be
rebuilt, never believed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from eventbus.errors import ConfigError
from eventbus.log.storage import Storage, read_whole, write_atomic
from eventbus.types import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
"""Below these offsets everything is in its file on disk: the durable watermark."""
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
LAST_STABLE_OFFSETS = "last-stable-offset-checkpoint"
"""How far readers in other processes may go. Ours; the others are Kafka's."""
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
COORDINATOR_STATE = "coordinator.state"
"""Lies in the directory of a partition, not in that of the log; broker/latest_records.py has its format."""
"""How far each compacted log was cleaned. Too low is only more work."""
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"

_GUIDES = (RECOVERY_POINTS, LOG_START_OFFSETS)
"""What recovery goes by. A torn one would stop it: "damaged" could then mean "crashed"."""

_logger = logging.getLogger("eventbus.log")


def write_offsets(storage: Storage, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool) -> None:
    """Replace a checkpoint: version, count, then "topic partition offset" a line.

    Without ``sync`` a crash of the machine may bring back an older one; those that recovery goes by stay readable.
    """
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    data = f"0\n{len(lines)}\n{''.join(lines)}".encode()
    write_atomic(storage, name, data, sync=sync or (name in _GUIDES and storage.durable), sync_name=sync)


def read_offsets(storage: Storage, name: str) -> dict[TopicPartition, int] | None:
    """What a checkpoint says; empty when there is none, None when it is damaged."""
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
    """Log what a lost checkpoint of log start offsets means: nothing else records where a log starts."""
    lost = lost_starts(points, starts)
    if lost:
        _logger.warning(
            "%s in %s: every log starts at its first segment. Records that were deleted by request and whose segment "
            "is still there can be read again: delete them again (`eventbus topics delete-records`)",
            lost, storage.describe(),
        )  # fmt: skip


def _parse(text: str) -> dict[TopicPartition, int]:
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
    """Say that everything was flushed and closed in order. The last thing a closing broker writes."""
    write_atomic(storage, CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}', sync=storage.durable)


def take_clean_shutdown(storage: Storage) -> bool:
    """Whether the last owner closed in order. Asking removes the mark, durably: the next may not."""
    if not storage.exists(CLEAN_SHUTDOWN):
        return False
    storage.remove(CLEAN_SHUTDOWN)
    storage.sync_dir("")
    return True


def load_or_create_meta(storage: Storage, cluster_id: str) -> str:
    """The cluster id in ``meta.properties``, written with ``cluster_id`` if there is none yet."""
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

    They stand for the log up to an offset, and opening replays only what follows it. Call this before anything in the
    partition is replaced. When compaction drops a tombstone after that offset, for example, nothing in the log would
    delete the saved record of its key any more. Raises OSError.
    """
    path = f"{directory}/{COORDINATOR_STATE}"
    if storage.exists(path):
        storage.remove(path)
        storage.sync_dir(directory)

"""Remove from the directory what the log created and no longer needs, and nothing else.

A user may keep other files next to the log, restore a partition from a backup, or move a partition to another disk and
leave a link. So a name alone is never a reason to delete: only files that the log itself names this way are removed,
and a partition only when the metadata records that its topic id was deleted. Whatever cannot be removed (a mount, a
foreign file, missing permissions) is logged and left where it is. It never keeps the log from opening.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from eventbus.log.metadata import parse_directory, read_partition_metadata
from eventbus.log.storage import Storage
from eventbus.types import TopicPartition

DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

IsDeleted = Callable[[str, str], bool]
"""Return whether the metadata records that a topic, given by name and id (empty: unknown), was deleted."""

_NAME_BYTES = 255
LONG_NAME = 200
"""From this length on, the name of a directory may hold only the beginning of its topic's name."""
_ID_LENGTH = 22
_OWN_FILE = re.compile(
    r"\d{20}(\.(cleaned|swap))?\.(log|index|timeindex|txnindex|snapshot)(\.(tmp|deleted))?"
    r"|(partition\.metadata|leader-epoch-checkpoint|coordinator\.state)(\.tmp)?"
)
"""The files that the log creates in the directory of a partition."""
SIDE_FOLDER = "repair"
"""`eventbus log repair` keeps what it removes from the log in ``repair.<id>``."""

_logger = logging.getLogger("eventbus.log")


def is_own_file(name: str) -> bool:
    """True if the log itself gives files of a partition such names."""
    return _OWN_FILE.fullmatch(name) is not None


def remove_file(storage: Storage, path: str) -> None:
    """Remove a leftover that nothing depends on. If it cannot be removed, that is logged and it stays."""
    try:
        storage.remove(path)
    except OSError as error:
        _logger.warning("%s in %s cannot be removed, and is left alone: %s", path, storage.describe(), error)


def remove_directory(storage: Storage, directory: str) -> None:
    """Remove a partition in two steps: a crash leaves it whole, or under a name that marks it as deleted.

    Raises `OSError` when it cannot be renamed; then nothing was removed.
    """
    if not storage.exists(directory):
        return
    doomed = _renamed(storage, directory, DELETED_SUFFIX)
    _remove_partition(storage, doomed)


def set_aside(storage: Storage, directory: str, why: str) -> bool:
    """Keep a directory under another name, under which no topic finds it. Return False if it cannot be renamed."""
    try:
        aside = _renamed(storage, directory, STRAY_SUFFIX)
    except OSError as error:
        _logger.warning("%s in %s %s; left alone: %s", directory, storage.describe(), why, error)
        return False
    _logger.warning(
        "%s in %s %s: kept aside as %s. Move it away, or delete it, to free its space",
        directory, storage.describe(), why, aside,
    )  # fmt: skip
    return True


def finish_deletions(storage: Storage, is_deleted: IsDeleted) -> None:
    """Remove the partitions whose deletion a crash interrupted after they were renamed."""
    for name in storage.listdir(""):
        where = deleted_partition(name)
        if where is None:
            continue
        try:
            # A topic of this name may exist again. Only the id shows whose directory this is.
            topic_id = read_partition_metadata(storage, name)
        except OSError:
            topic_id = ""  # not even a directory, or its metadata went first
        if is_deleted(where.topic, topic_id):
            _remove_partition(storage, name)
        else:
            _logger.warning("%s in %s belongs to no topic that was deleted here: left alone", name, storage.describe())


def _renamed(storage: Storage, directory: str, suffix: str) -> str:
    """Rename a partition's directory out of the way, durably. As in Kafka a long topic name is cut short to fit."""
    topic, _, partition = directory.rpartition("-")
    ending = f"-{partition}.{storage.unique_id()}{suffix}"
    name = topic[: _NAME_BYTES - len(ending)] + ending
    # One rename decides: before it the topic's records are complete, after it no start mistakes the rest of them for a
    # log.
    storage.rename(directory, name)
    storage.sync_dir("")
    return name


def deleted_partition(name: str) -> TopicPartition | None:
    """Return the partition of a directory that `remove_directory` renamed; None for other names."""
    directory, dot, unique_id = name.removesuffix(DELETED_SUFFIX).rpartition(".")
    if not name.endswith(DELETED_SUFFIX) or not dot or len(unique_id) != _ID_LENGTH:
        return None
    return parse_directory(directory)


def _remove_partition(storage: Storage, directory: str) -> None:
    """Remove the log's own files, then the directory if nothing else is in it."""
    kept: list[str] = []
    try:
        for name in storage.listdir(directory):
            if is_own_file(name):
                storage.remove(f"{directory}/{name}")
            else:
                kept.append(name)
        if not kept:
            storage.remove_tree(directory)
    except OSError as error:
        _logger.warning(
            "%s in %s cannot be removed, and is left alone; the next start tries again: %s",
            directory, storage.describe(), error,
        )  # fmt: skip
        return
    if kept:
        _logger.warning(
            "%s in %s is not removed: it holds files that are not the log's (%s). Move them away, then delete it",
            directory, storage.describe(), ", ".join(kept[:3]),
        )  # fmt: skip
    else:
        _logger.info("%s in %s: removed with its records, because its topic was deleted", directory, storage.describe())

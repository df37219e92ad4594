"""Facts from the log itself: its topics, the members of groups, the directory and its disk. Writes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import msgspec

from eventbus.backends.urls import split_url
from eventbus.broker import CLUSTER_METADATA
from eventbus.client.bus import EventBus
from eventbus.coordinator.topics import TopicsShard
from eventbus.doctor.facts import Facts, LogFacts
from eventbus.errors import EventBusError, LogLocked
from eventbus.log.checkpoints import META_PROPERTIES
from eventbus.log.reader import LogReader
from eventbus.log.storage import FileStorage
from eventbus.records.decode import fetched_records


async def with_log(bus: EventBus, facts: Facts) -> Facts:
    """Add the facts of the bus's log."""
    scheme, rest, _ = split_url(bus.url)
    if scheme == "file":
        log = directory_facts(unquote(rest))
    elif scheme == "memory":
        log = LogFacts()  # a new log is empty: it will contain only what the bus declares
    else:
        log = await _asked(bus, facts)
    return msgspec.structs.replace(facts, log=log)


def directory_facts(name: str) -> LogFacts:
    """Return the facts of a log in a directory, which other processes may have open. Reads only what is published."""
    directory = Path(name).expanduser()
    nearest_there = next(one for one in (directory, *directory.absolute().parents) if one.exists())
    disk = shutil.disk_usage(nearest_there)
    exists = directory.is_dir()
    writable = os.access(nearest_there, os.W_OK | os.X_OK)
    topics: Mapping[str, int] = {}
    problem = locked_by = ""
    if exists:
        try:
            topics = _topics(LogReader(str(directory)))
            locked_by = _locked_by(directory) if writable else ""
        except (EventBusError, OSError, ValueError) as error:  # ValueError: metadata of a newer version
            problem = f"its log cannot be read: {error}"
    return LogFacts(
        topics=dict(topics),
        directory=str(directory),
        exists=exists,
        writable=writable,
        locked_by=locked_by,
        free_bytes=disk.free,
        total_bytes=disk.total,
        problem=problem,
    )


def _topics(reader: LogReader) -> dict[str, int]:
    """Replay the topics from the log's metadata, as far as it is published to readers."""
    shard = TopicsShard()
    for start, end in reader.offsets(CLUSTER_METADATA).values():
        for data in reader.read(CLUSTER_METADATA, 0, start, end):
            found = fetched_records(data, CLUSTER_METADATA, 0, start)
            for key, value in zip(found.keys, found.values, strict=True):
                shard.replay(key or b"", value)
    return {name: topic.partitions for name, topic in shard.topics.items()}


def _locked_by(directory: Path) -> str:
    """Return which process has the log open, or an empty string."""
    if not (directory / META_PROPERTIES).exists():  # not a log: locking would create one
        return ""
    storage = FileStorage(str(directory))
    try:
        storage.lock()
    except LogLocked as error:
        return error.held
    storage.unlock()
    return ""


async def _asked(bus: EventBus, facts: Facts) -> LogFacts:
    """Return the facts of a cluster. If it does not answer, that is a finding, not an error of the doctor."""
    backend = bus.context.backend
    try:
        await backend.start()
        try:
            topics = {one.name: len(one.partitions) for one in await backend.describe_topics()}
            groups = await backend.describe_groups(sorted({one.group for one in facts.handlers}))
            return LogFacts(topics=topics, members={one.group: len(one.members) for one in groups})
        finally:
            await backend.aclose()
    except (EventBusError, OSError) as error:
        return LogFacts(problem=str(error))

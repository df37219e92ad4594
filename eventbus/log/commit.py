"""Group commit: many appends, one flush, then the acknowledgements.

::

    loop thread    appended ... appended   begin()              appended ...        complete()  -> acks
    worker thread                                     run()

``begin`` takes a snapshot, ``run`` alone leaves the loop's thread, ``complete`` moves the watermarks of what the
snapshot covered. One flush is under way at a time; what arrives meanwhile is covered by the next, so the slower the
disk, the more appends share a flush. A failed flush is final: it is never retried and nothing it covered is
acknowledged.
"""

from __future__ import annotations

from eventbus.errors import ConfigError
from eventbus.log.partition_log import PartitionLog, Unsynced
from eventbus.log.storage import Storage

MODES = {
    "commit": "an acknowledged record is on disk",
    "interval": "a crash of the machine may lose what was acknowledged since the last flush (fsync_interval_ms)",
    "os": "a crash of the machine may lose what the operating system had not written yet (typically 5 to 30 s)",
}
"""The meaning of ``fsync``; a crash of the process alone loses nothing in any mode."""


class Flush:
    """One flush. Only `run` may be called from another thread."""

    __slots__ = ("_storage", "done_count", "works")

    def __init__(self, storage: Storage, works: list[Unsynced]) -> None:
        self._storage = storage
        self.works = works
        self.done_count = 0
        """How many of `works` are on disk for certain."""

    def run(self) -> None:
        """Bring the snapshot to the disk. Raises `OSError`; give it to `GroupCommit.complete`, never call again."""
        sync_dir = self._storage.sync_dir
        for work in self.works:
            for file in work.files:
                file.sync()
            for directory in work.directories:
                sync_dir(directory)
            self.done_count += 1


class GroupCommit:
    """What has been appended and is not yet on disk, over all logs of a storage."""

    def __init__(self, storage: Storage, mode: str = "commit") -> None:
        if mode not in MODES:
            raise ConfigError(f"fsync={mode!r} is unknown; choose one of {', '.join(MODES)}")
        self.mode = mode
        self._storage = storage
        self._dirty: dict[PartitionLog, list[bytearray]] = {}
        self._waits = mode == "commit" and storage.durable
        self._under_way: Flush | None = None

    @property
    def needs_sync(self) -> bool:
        """Whether a flush has something to do, and none is under way."""
        return bool(self._dirty) and self._under_way is None

    def appended(self, log: PartitionLog, batch: bytearray) -> None:
        """Call after every `PartitionLog.append`. The batch must not change afterwards."""
        if self._waits:
            batches = self._dirty.get(log)
            if batches is None:
                self._dirty[log] = [batch]
            else:
                batches.append(batch)
            return
        log.high_watermark = log.log_end_offset
        if self._storage.durable and (self.mode == "interval" or log.has_sealed_unsynced):
            self._dirty[log] = []

    def begin(self) -> Flush:
        """Snapshot everything appended so far."""
        assert self._under_way is None, "one flush at a time"
        dirty, self._dirty = self._dirty, {}
        works = [log.begin_sync() for log in dirty if not (log.closed or log.poisoned)]
        self._under_way = Flush(self._storage, works)
        return self._under_way

    def complete(self, flush: Flush, error: BaseException | None = None) -> list[PartitionLog]:
        """Move the watermarks of what is on disk; returns those logs. ``error`` is what `Flush.run` raised.

        The log whose flush failed is poisoned; those that were not reached stay dirty and are flushed with the next.
        """
        assert flush is self._under_way, "complete what begin() returned"
        self._under_way = None
        done = flush.done_count
        advanced: list[PartitionLog] = []
        for number, work in enumerate(flush.works):
            log = work.log
            log.complete_sync(work, synced=number < done)
            if number < done:
                advanced.append(log)
            elif number == done:
                log.poison(f"its flush to disk failed ({error})")
            elif not log.closed:
                log.take_back(work)
                self._dirty.setdefault(log, [])
        return advanced

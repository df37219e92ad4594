"""Group commit: many appends, one flush, then the acknowledgements.

::

    loop thread    appended ... appended   begin()              appended ...        complete()  -> acks
    worker thread                                     run()

``begin`` takes a snapshot, ``run`` alone leaves the loop's thread, ``complete`` moves the watermarks of what the
snapshot covered. One flush is under way at a time; what arrives meanwhile is covered by the next, so the slower the
disk, the more appends share a flush. A failed flush is final: it is never retried, and nothing it covered is
acknowledged.

A commit that touches few files flushes each. One that touches many goes into the redo journal (`eventbus.log.journal`),
which is flushed instead of them.
"""

from __future__ import annotations

from eventbus.errors import ConfigError
from eventbus.log.journal import Journal, Part
from eventbus.log.partition_log import PartitionLog, Unsynced
from eventbus.log.storage import File, Storage, storage_error

MODES = {
    "commit": "an acknowledged record is on disk",
    "interval": "a crash of the machine may lose what was acknowledged since the last flush (fsync_interval_ms)",
    "os": "a crash of the machine may lose what the operating system had not written yet (typically 5 to 30 s)",
}
"""The meaning of ``fsync``; a crash of the process alone loses nothing in any mode."""

JOURNAL_FROM_FILES = 3
"""From so many files on, one journal is cheaper than a flush of each (a flush: 80 us; the journal: 120 us)."""
JOURNAL_MEAN_BYTES = 64 << 10
"""Above this mean size writing everything twice costs more than it saves."""
JOURNAL_LIMIT_BYTES = 32 << 20
"""A larger journal is emptied by a checkpoint: it bounds what a restart has to replay."""
_HOLD_FILES = 64


class Flush:
    """One flush. Only `run` may be called from another thread."""

    __slots__ = ("_empties_journal", "_held", "_journal", "_storage", "failed", "journaled", "parts", "synced", "works")

    def __init__(
        self,
        storage: Storage,
        journal: Journal,
        works: list[Unsynced],
        parts: dict[PartitionLog, Part],
        *,
        empties_journal: bool,
    ) -> None:
        self._storage = storage
        self._journal = journal
        self._empties_journal = empties_journal
        self.works = works
        self.parts = parts
        """Of the logs that go into the journal: what goes there."""
        self.synced: list[Unsynced] = []
        self.journaled: list[Unsynced] = []
        self._held: list[File] = []
        self.failed: list[Unsynced] = []
        """Whose flush was begun and not finished: nobody knows what the disk holds of them."""

    def hold(self) -> None:
        """Keep the files' descriptors, so that the worker needs none of its own."""
        self._held = [file for work in self.works for file in work.files]
        for file in self._held:
            file.hold()

    def release(self) -> None:
        for file in self._held:
            file.release()

    def run(self) -> None:
        """Bring the snapshot to the disk. Raises `OSError`; give it to `GroupCommit.complete`, never call again."""
        parts = self.parts
        if parts:
            self.failed = [work for work in self.works if work.log in parts]
            if self._journal.write(list(parts.values())):
                self.journaled, self.failed = self.failed, []
            else:
                parts = {}
        named: set[str] = set()
        for work in self.works:
            if work.log in parts:
                continue
            self.failed = [work]
            for file in work.files:
                file.sync()
            for directory in work.directories:
                if directory not in named:
                    self._storage.sync_dir(directory)
                    named.add(directory)
            self.synced.append(work)
            self.failed = []
        if self._empties_journal:
            self._journal.reset()


class GroupCommit:
    """What has been appended and is not yet on disk, over all logs of a storage.

    Before any log is opened, what a crash left in the journal must be replayed (`recovery.remove_leftovers`).
    """

    def __init__(self, storage: Storage, mode: str = "commit") -> None:
        if mode not in MODES:
            raise ConfigError(f"fsync={mode!r} is unknown; choose one of {', '.join(MODES)}")
        self.mode = mode
        self._storage = storage
        self._dirty: dict[PartitionLog, list[bytearray] | None] = {}
        """By log, every batch since its last flush; None where they are not known."""
        self._journaled: dict[PartitionLog, None] = {}
        """Logs with bytes that only the journal has brought to the disk."""
        self._waits = mode == "commit" and storage.durable
        self._under_way: Flush | None = None
        self._journal = Journal(storage)

    @property
    def needs_sync(self) -> bool:
        """Whether a flush has something to do, and none is under way."""
        return bool(self._dirty) and self._under_way is None

    def appended(self, log: PartitionLog, batch: bytearray) -> None:
        """Call after every `PartitionLog.append`. The batch must not change afterwards."""
        if self._waits:
            if log in self._dirty:
                batches = self._dirty[log]
                if batches is not None:
                    batches.append(batch)
            else:
                self._dirty[log] = [batch]
            return
        log.high_watermark = log.log_end_offset
        if self._storage.durable and (self.mode == "interval" or log.has_sealed_unsynced):
            self._dirty[log] = None

    def begin(self) -> Flush:
        """Snapshot everything appended so far."""
        assert self._under_way is None, "one flush at a time"
        dirty, self._dirty = self._dirty, {}
        empties_journal = self._journal.size_bytes >= JOURNAL_LIMIT_BYTES
        parts: dict[PartitionLog, Part] = {}
        if empties_journal:
            dirty.update(dict.fromkeys(self._journaled))
        elif len(dirty) >= JOURNAL_FROM_FILES and self._waits:
            parts = self._journal_parts(dirty)
        return self._begin(list(dirty), parts, empties_journal=empties_journal)

    def complete(self, flush: Flush, error: BaseException | None = None) -> list[PartitionLog]:
        """Move the watermarks of what is on disk; returns those logs. ``error`` is what `Flush.run` raised.

        The log whose flush failed is poisoned; those that were not reached stay dirty and are flushed with the next.
        """
        assert flush is self._under_way, "complete what begin() returned"
        self._under_way = None
        flush.release()
        for work in flush.synced:
            work.log.complete_sync(work)
            self._journaled.pop(work.log, None)
        for work in flush.journaled:
            work.log.complete_journal(work.end_offset)
            self._journaled[work.log] = None
        done = [work.log for work in (*flush.synced, *flush.journaled)]
        if error is not None:
            self._fail(flush, error, {*done})
        return [log for log in done if not log.closed]

    def close(self) -> None:
        """Flush everything, each byte to its own file, and empty the journal. Then the logs may be closed."""
        assert self._under_way is None, "complete the flush that is under way first"
        flush = self._begin([*{**self._dirty, **self._journaled}], {}, empties_journal=True)
        self._dirty = {}
        try:
            flush.run()
        except OSError as error:
            self.complete(flush, error)
            raise storage_error(error, f"the last flush of {self._storage.describe()}") from error
        finally:
            self._journal.close()
        self.complete(flush)

    def _begin(self, logs: list[PartitionLog], parts: dict[PartitionLog, Part], *, empties_journal: bool) -> Flush:
        works = [log.begin_sync() for log in logs if not (log.closed or log.poisoned)]
        flush = Flush(self._storage, self._journal, works, parts, empties_journal=empties_journal)
        if len(works) <= _HOLD_FILES:
            flush.hold()
        self._under_way = flush
        return flush

    def _journal_parts(self, dirty: dict[PartitionLog, list[bytearray] | None]) -> dict[PartitionLog, Part]:
        """What goes into the journal: nothing, where flushing each file is cheaper."""
        parts: dict[PartitionLog, Part] = {}
        for log, batches in dirty.items():
            part = log.journal_part(batches) if batches else None
            if part is not None:
                parts[log] = part
        size = sum(len(batch) for part in parts.values() for batch in part.batches)
        worth = len(parts) >= JOURNAL_FROM_FILES and size <= JOURNAL_MEAN_BYTES * len(parts)
        return parts if worth and not self._journal.broken else {}

    def _fail(self, flush: Flush, error: BaseException, done: set[PartitionLog]) -> None:
        failed = {work.log for work in flush.failed}
        if self._journal.broken and flush.parts:
            failed.update(self._journaled)  # their bytes share pages with what could not be flushed
        for log in failed:
            log.poison(f"its flush to disk failed ({error})")
        for work in flush.works:
            log = work.log
            if log not in done and log not in failed and not log.closed:
                log.take_back(work)
                self._dirty[log] = None

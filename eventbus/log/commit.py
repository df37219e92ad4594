"""Group commit: many appends, one flush, then the acknowledgements.

::

    loop thread    appended ... appended   begin()              appended ...        complete()  -> acks
    worker thread                                     run()

``begin`` takes a snapshot, ``run`` alone leaves the loop's thread, ``complete`` moves the watermarks of what the
snapshot covered. Only one flush runs at a time; what arrives meanwhile is covered by the next, so the slower the disk,
the more appends share a flush. A failed flush is final: it is never retried, and nothing it covered is acknowledged.

A commit that touches few files flushes each. A commit that touches many goes into the redo journal
(`eventbus.log.journal`), which is flushed instead of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from eventbus.errors import ConfigError
from eventbus.log.journal import Journal
from eventbus.log.partition_log import Journaled, PartitionLog, Unsynced
from eventbus.log.storage import Buffer, File, OutOfDescriptors, Storage, storage_error
from eventbus.records.batch import WritableBuffer

MODES = {
    "commit": "an acknowledged record is on disk",
    "interval": "a crash of the machine may lose what was acknowledged since the last flush (fsync_interval_ms)",
    "os": "a crash of the machine may lose what the operating system had not written yet (typically 5 to 30 s)",
}
"""The meaning of ``fsync``; a crash of the process alone loses nothing in any mode."""

JOURNAL_FROM_FILES = 2
"""From this many files on, a journal is cheaper than a flush of each: 0.14 against 0.21 ms for two, 0.15 against 0.8
for eight, 0.3 against 10 for a hundred (virtual SSD, ext4)."""
JOURNAL_MEAN_BYTES = 64 << 10
"""Above this mean size writing everything twice costs more than the flushes it saves (80 us each)."""
JOURNAL_LIMIT_BYTES = 32 << 20
"""A larger journal is emptied by a checkpoint, which limits what a restart has to replay."""
_HOLD_FILES = 64


class Flush:
    """A single flush. Only `run` may be called from another thread."""

    __slots__ = ("_held", "_journal", "_storage", "direct", "empties_journal", "journaled", "parts", "reached")

    def __init__(
        self,
        storage: Storage,
        journal: Journal,
        direct: list[Unsynced],
        journaled: list[Journaled],
        parts: list[Buffer],
        *,
        empties_journal: bool,
    ) -> None:
        self._storage = storage
        self._journal = journal
        self.direct = direct
        """Logs whose own files are flushed."""
        self.journaled = journaled
        """Logs whose newest batches are in ``parts``, to be flushed in the journal."""
        self.parts = parts
        self.empties_journal = empties_journal
        self.reached = -1
        """The progress of `run`: -1 not begun, 0 the journal is flushed, n the first n of ``direct`` are flushed."""
        self._held: list[File] = []

    def hold(self) -> None:
        """Keep the files' descriptors open for the worker, unless there are too many: it then opens each in turn."""
        files = [file for work in self.direct for file in work.files]
        if len(files) > _HOLD_FILES:
            return
        try:
            for file in files:
                file.hold()
                self._held.append(file)
        except OSError:
            self.release()  # opening each file in turn needs a single descriptor, which may be available

    def release(self) -> None:
        for file in self._held:
            file.release()
        self._held.clear()

    def run(self) -> None:
        """Flush the snapshot to disk. Raises `OSError`; pass it to `GroupCommit.complete`, and never call `run`
        again."""
        # The journal first: what it covers is acknowledged even if a direct flush below fails.
        if self.journaled and not self._journal.write(self.parts):
            for entry in self.journaled:  # the journal could not be written: flush each file instead
                entry.file.sync()
        self.reached = 0
        named: set[str] = set()
        for work in self.direct:
            for file in work.files:
                file.sync()
            for directory in work.directories:
                if directory in named:
                    continue
                try:
                    self._storage.sync_dir(directory)
                except FileNotFoundError:
                    if not work.log.closed:
                        raise
                    break  # deleted meanwhile, on purpose
                named.add(directory)
            self.reached += 1
        if self.empties_journal:
            # Every log in the journal was flushed to its own file above, so nothing depends on the journal any more.
            self._journal.reset()


class GroupCommit:
    """Tracks what has been appended and is not yet on disk, over all logs of a storage.

    Replay the journal that a crash left (`eventbus.log.journal.replay`) before any log is opened.
    """

    def __init__(self, storage: Storage, mode: str = "commit") -> None:
        if mode not in MODES:
            raise ConfigError(f"fsync={mode!r} is unknown; choose one of {', '.join(MODES)}")
        self.mode = mode
        self._storage = storage
        self._dirty: dict[PartitionLog, list[WritableBuffer] | None] = {}
        """Every batch since a log's last flush, by log; None if the batches are not known."""
        self._lazy: set[PartitionLog] = set()
        """Logs in ``_dirty`` that need no flush for their own sake."""
        self._journaled: dict[PartitionLog, None] = {}
        """Logs with bytes that are on disk only in the journal."""
        self._waits = mode == "commit" and storage.durable
        self._under_way: Flush | None = None
        self._journal = Journal(storage)

    @property
    def needs_sync(self) -> bool:
        """True if a flush has something to do, and none is running."""
        return self._under_way is None and self.has_unsynced

    @property
    def has_unsynced(self) -> bool:
        """True if something was appended for which a caller may wait, and no flush has begun to cover it."""
        return len(self._dirty) > len(self._lazy)

    def appended(self, log: PartitionLog, batch: WritableBuffer) -> None:
        """Call after every `PartitionLog.append`. The batch must not change afterwards."""
        self._lazy.discard(log)
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

    def appended_lazily(self, log: PartitionLog, batch: WritableBuffer) -> None:
        """Call instead of `appended` if no caller waits: the next flush covers the batch, but none is started for
        it."""
        is_lazy = log not in self._dirty or log in self._lazy
        self.appended(log, batch)
        # A caller already waits for a log that is dirty and not lazy, so a later lazy append must not make it lazy.
        if is_lazy and log in self._dirty:
            self._lazy.add(log)

    def begin(self) -> Flush:
        """Snapshot everything appended so far."""
        assert self._under_way is None, "one flush at a time"
        # Appends during the flush go into the new dict: the kernel may or may not include them in this flush, so only
        # the next one may acknowledge them.
        dirty, self._dirty = self._dirty, {}
        self._lazy.clear()
        journaled: list[Journaled] = []
        parts: list[Buffer] = []
        empties_journal = self._journal.size_bytes >= JOURNAL_LIMIT_BYTES and self._may_empty_journal()
        if empties_journal:
            dirty.update(dict.fromkeys(self._journaled))
        elif len(dirty) >= JOURNAL_FROM_FILES and self._waits and not self._journal.broken:
            journaled = [
                entry
                for log, batches in dirty.items()
                if batches and not (log.closed or log.poisoned)
                if (entry := log.journal(batches, parts)) is not None
            ]
            size = sum([entry.size_bytes for entry in journaled])
            worth = len(journaled) >= JOURNAL_FROM_FILES and size <= JOURNAL_MEAN_BYTES * len(journaled)
            if not worth or not self._journal.open():
                journaled = []
            for entry in journaled:
                del dirty[entry.log]
        return self._begin(dirty, journaled, parts, empties_journal=empties_journal)

    def complete(self, flush: Flush, error: BaseException | None = None) -> list[PartitionLog]:
        """Move the watermarks of what is on disk; return those logs. ``error`` is what `Flush.run` raised.

        The log whose flush failed is poisoned; logs that the flush did not reach stay dirty and belong to the next.
        """
        assert flush is self._under_way, "complete what begin() returned"
        self._under_way = None
        flush.release()
        done: list[PartitionLog] = []
        if flush.reached >= 0:
            for log, _, end_offset, _ in flush.journaled:
                if end_offset > log.high_watermark:
                    log.high_watermark = end_offset
                self._journaled[log] = None
                if not log.closed:
                    done.append(log)
        for work in flush.direct[: max(flush.reached, 0)]:
            work.log.complete_sync(work)
            self._journaled.pop(work.log, None)
            if not work.log.closed:
                done.append(work.log)
        if error is not None:
            self._fail(flush, error)
        elif flush.empties_journal:
            self._journaled.clear()  # those left were closed or deleted meanwhile
        return done

    def close(self) -> None:
        """Flush everything, each byte to its own file, and empty the journal. Then the logs may be closed."""
        assert self._under_way is None, "complete the flush that is under way first"
        flush = self._begin({**self._dirty, **self._journaled}, [], [], empties_journal=self._may_empty_journal())
        self._dirty = {}
        self._lazy.clear()
        try:
            flush.run()
        except OSError as error:
            self.complete(flush, error)
            raise storage_error(error, f"the last flush of {self._storage.describe()}") from error
        finally:
            self._journal.close()
        self.complete(flush)

    def _may_empty_journal(self) -> bool:
        """False while the journal holds the only good copy of something: then it is kept, unused, for the next
        start."""
        if any(log.poisoned for log in self._journaled):
            self._journal.broken = True
        return not self._journal.broken

    def _begin(
        self, direct: Iterable[PartitionLog], journaled: list[Journaled], parts: list[Buffer], *, empties_journal: bool
    ) -> Flush:
        works = [log.begin_sync() for log in direct if not (log.closed or log.poisoned)]
        flush = Flush(self._storage, self._journal, works, journaled, parts, empties_journal=empties_journal)
        flush.hold()
        self._under_way = flush
        return flush

    def _fail(self, flush: Flush, error: BaseException) -> None:
        """Poison what was being flushed; return the rest to the dirty logs."""
        self._lazy.clear()
        unreached = flush.direct[max(flush.reached, 0) :]
        failed: list[PartitionLog] = []
        if flush.reached < 0:
            failed = [entry.log for entry in flush.journaled]
            if self._journal.broken:
                failed += self._journaled  # their bytes share pages with those that could not be flushed
        if isinstance(error, OutOfDescriptors):
            self._storage.close_idle_files()
            self._dirty.update(dict.fromkeys(failed))
            failed = []
        elif not failed and unreached:
            failed, unreached = [unreached[0].log], unreached[1:]
        for log in failed:
            log.poison(f"its flush to disk failed ({error})")
        for work in unreached:
            if not (work.log.closed or work.log.poisoned):
                work.log.take_back(work)
                self._dirty[work.log] = None

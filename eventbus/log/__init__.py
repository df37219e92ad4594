"""The log: batches in segments, in order, on disk or in memory. Synchronous; all I/O goes through one seam.

- ``partition_log``, ``segment``, ``index``, ``batch_iterator``: append and read
- ``commit``, ``journal``: flushes, also a failed one (``LogPoisoned``), and the redo journal of wide commits
- ``storage``, ``memory``: the only modules that do I/O; a full disk and other errors of the system
- ``recovery``, ``checkpoints``, ``metadata``, ``leftovers``, ``reserve``: opening after a crash, and the small files
- ``retention``, ``cleaner``, ``offset_map``, ``swap``: deletion and compaction
- ``producers``, ``producer_state``, ``snapshot``, ``transaction_index``: idempotence and aborted transactions
- ``reader``, ``inspect``, ``repair``: other processes, ``eventbus log verify`` and ``eventbus log repair``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.log.commit import Flush as Flush
    from eventbus.log.commit import GroupCommit as GroupCommit
    from eventbus.log.config import LogConfig as LogConfig
    from eventbus.log.partition_log import AppendInfo as AppendInfo
    from eventbus.log.partition_log import PartitionLog as PartitionLog
    from eventbus.log.storage import File as File
    from eventbus.log.storage import FileStorage as FileStorage
    from eventbus.log.storage import MemoryStorage as MemoryStorage
    from eventbus.log.storage import Storage as Storage

# Names are imported on first use: code that only chooses a storage does not load the log.
_HOMES = {
    "commit": ("Flush", "GroupCommit"),
    "config": ("LogConfig",),
    "partition_log": ("AppendInfo", "PartitionLog"),
    "storage": ("File", "FileStorage", "MemoryStorage", "Storage"),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)

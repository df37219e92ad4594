"""The log: batches in segments, in order, on disk or in memory. Synchronous; all I/O goes through one seam."""

from __future__ import annotations

from eventbus.log.commit import Flush, GroupCommit
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.storage import File, FileStorage, MemoryStorage, Storage

__all__ = [
    "AppendInfo",
    "File",
    "FileStorage",
    "Flush",
    "GroupCommit",
    "LogConfig",
    "MemoryStorage",
    "PartitionLog",
    "Storage",
]

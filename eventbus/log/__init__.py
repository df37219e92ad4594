"""The log: batches in segments, in order, on disk or in memory. Synchronous; all I/O goes through one seam."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# Each is imported when it is asked for: who chooses a storage need not have a log yet.
_HOMES = {
    "AppendInfo": "partition_log",
    "File": "storage",
    "FileStorage": "storage",
    "Flush": "commit",
    "GroupCommit": "commit",
    "LogConfig": "config",
    "MemoryStorage": "storage",
    "PartitionLog": "partition_log",
    "Storage": "storage",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'eventbus.log' has no attribute {name!r}")
    value = getattr(import_module(f"eventbus.log.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

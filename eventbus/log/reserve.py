"""Reserve a few blocks, so that topics and records can be deleted on a disk that is completely full.

A deletion has to be recorded, durably, before anything is removed: a tombstone in the metadata, the new log start
offset. A full disk has no room for that record, and without the record nothing may be removed to make room. So
the log keeps a small file and gives its blocks (and its inode) back at that moment. It is filled again once there is
room.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from eventbus.errors import StorageFull
from eventbus.log.storage import Storage

RESERVE = ".full-disk-reserve"
RESERVE_BYTES = 64 << 10

_Result = TypeVar("_Result")


class Reserve:
    """The reserve of one storage. It is never needed for correctness, so no error comes out of it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._is_filled = not storage.durable

    def fill(self) -> None:
        """Allocate the blocks unless they are allocated. On a full disk no partial file remains."""
        if self._is_filled:
            return
        try:
            file = self._storage.open(RESERVE, create=True)
            try:
                if file.size < RESERVE_BYTES:
                    file.append(bytes(RESERVE_BYTES - file.size))
            finally:
                file.close()
            self._is_filled = True
        except OSError:
            with contextlib.suppress(OSError):
                self._storage.remove(RESERVE)

    def spend(self, work: Callable[[], _Result]) -> _Result:
        """Do ``work``, if necessary with the space that the reserve releases.

        ``work`` must change nothing if it raises.
        """
        try:
            return work()
        except StorageFull:
            if not self._give_back():
                raise
        return work()

    def _give_back(self) -> bool:
        try:
            self._storage.remove(RESERVE)
        except OSError:
            return False  # it was spent before
        self._is_filled = False
        return True

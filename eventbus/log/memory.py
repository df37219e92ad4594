"""Storage in memory: a tree of byte arrays under the very code that writes files."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventbus.log.storage import Buffer, Storage

_logger = logging.getLogger("eventbus.log")


class MemoryFile:
    """A growing array of bytes."""

    __slots__ = ("data", "rewrites", "size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        self.rewrites = 0
        """How often anything but `append` changed it."""

    def append(self, data: Buffer) -> None:
        self.data += data
        self.size += len(data)

    def pread(self, position: int, length: int) -> bytes:
        return bytes(memoryview(self.data)[position : position + length])

    def pwrite(self, position: int, data: Buffer) -> None:
        if position > self.size:
            self.data.extend(bytes(position - self.size))
        self.data[position : position + len(data)] = data
        self.size = len(self.data)
        self.rewrites += 1

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.size = size
        self.rewrites += 1

    def sync(self) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def idle(self) -> None: ...

    def close(self) -> None: ...


class MemoryStorage:
    """A tree in memory. Nothing outlives the object, so nothing is ever synced."""

    durable = False

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._directories: set[str] = {""}
        self._ids = 0
        self._copies: list[Copy] = []

    def copy_to(self, to: Storage) -> Copy:
        """Keep a copy of everything in the directory ``to`` until it is closed. Raises OSError when it cannot begin."""
        copy = Copy(self, to)
        for path in sorted(self._directories):
            to.makedirs(path)
        copy.catch_up()
        self._copies.append(copy)
        return copy

    def files(self) -> dict[str, MemoryFile]:
        """All that there are now, by their paths."""
        return self._files

    def drop(self, copy: Copy) -> None:
        if copy in self._copies:
            self._copies.remove(copy)

    def open(self, path: str, create: bool = False) -> MemoryFile:
        file = self._files.get(path)
        if file is None:
            if not create or _parent(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            file = self._files[path] = MemoryFile()
        return file

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def listdir(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        names = [*self._files, *self._directories]
        return sorted(name.rpartition("/")[2] for name in names if name and _parent(name) == path)

    def makedirs(self, path: str) -> None:
        for copy in [*self._copies]:
            copy.makedirs(path)
        while path:
            self._directories.add(path)
            path = _parent(path)

    def rename(self, source: str, target: str) -> None:
        for copy in [*self._copies]:
            copy.rename(source, target)
        if source in self._files:
            self._files[target] = self._files.pop(source)
            return
        if source not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", source)
        self._directories = {_moved(path, source, target) for path in self._directories}
        self._files = {_moved(path, source, target): file for path, file in self._files.items()}

    def remove(self, path: str) -> None:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        for copy in [*self._copies]:
            copy.remove(path)
        del self._files[path]

    def remove_tree(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        for copy in [*self._copies]:
            copy.remove(path)
        inside = path + "/"
        self._directories = {name for name in self._directories if name != path and not name.startswith(inside)}
        self._files = {name: file for name, file in self._files.items() if not name.startswith(inside)}

    def sync_dir(self, path: str) -> None: ...

    def unique_id(self) -> str:
        self._ids += 1
        return f"{self._ids:022d}"

    def lock(self) -> None: ...

    def unlock(self) -> None: ...

    def check_root(self) -> str:
        return ""

    def close_idle_files(self) -> bool:
        return False

    def describe(self) -> str:
        return "memory"


class Copy:
    """A tree in memory, in a directory too: for readers in other processes.

    It goes through the changes of names that the tree goes through, in their order, and each finds the files as long as
    they were. So whoever reads a log there meets what readers of a log in files meet: a checkpoint (renamed into its
    place, see `write_atomic`) speaks of nothing that is not there, and segments are swapped as the cleaner swaps them.
    """

    def __init__(self, source: MemoryStorage, to: Storage) -> None:
        self._source = source
        self._to = to
        self._there: dict[str, tuple[int, int]] = {}
        """By path: as of which rewrite, and how many bytes."""
        self.error: OSError | None = None
        """What ended it before `close`: a full disk. The log itself goes on."""

    def close(self) -> None:
        """End it; what is there stays."""
        self._source.drop(self)

    def catch_up(self) -> None:
        """Copy what was written since. Raises OSError."""
        for path, file in self._source.files().items():
            there, now = self._there.get(path), (file.rewrites, file.size)
            if there != now:
                self._write(path, file, there[1] if there is not None and there[0] == now[0] else 0)
                self._there[path] = now

    def _write(self, path: str, file: MemoryFile, start: int) -> None:
        there = self._to.open(path, create=True)
        try:
            if there.size > start:
                there.truncate(start)
            there.append(file.pread(start, file.size - start))
        finally:
            there.close()

    def makedirs(self, path: str) -> None:
        try:
            self._to.makedirs(path)
        except OSError as error:
            self._fail(error)

    def rename(self, source: str, target: str) -> None:
        """Before it is done to the tree."""
        try:
            self.catch_up()
            if self._to.exists(source):
                self._to.rename(source, target)
            self._there.pop(target, None)
            self._there = {_moved(path, source, target): state for path, state in self._there.items()}
        except OSError as error:
            self._fail(error)

    def remove(self, path: str) -> None:
        """Before it is done to the tree."""
        try:
            if path in self._there:
                self._to.remove(path)
            elif self._to.exists(path):
                self._to.remove_tree(path)
        except OSError as error:
            self._fail(error)
        inside = path + "/"
        self._there = {name: at for name, at in self._there.items() if name != path and not name.startswith(inside)}

    def _fail(self, error: OSError) -> None:
        _logger.warning("the copy of a log in memory in %s has ended: %s", self._to.describe(), error)
        self.error = error
        self.close()


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _moved(path: str, source: str, target: str) -> str:
    return target + path[len(source) :] if path == source or path.startswith(source + "/") else path

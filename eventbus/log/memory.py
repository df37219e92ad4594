"""Storage in memory: a tree of byte arrays for the code that otherwise writes files."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventbus.log.storage import Buffer, Storage

_logger = logging.getLogger("eventbus.log")


class MemoryFile:
    """A file in memory."""

    __slots__ = ("data", "rewrites", "size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        self.rewrites = 0
        """The number of changes by anything except `append`."""

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
    """A tree in memory. Nothing outlives the object, so nothing needs to be synced."""

    durable = False

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._directories: set[str] = {""}
        self._ids = 0
        self._copies: list[Copy] = []

    def copy_to(self, to: Storage) -> Copy:
        """Maintain a copy of everything in the directory ``to`` until it is closed. Raises OSError if it cannot be
        begun."""
        copy = Copy(self, to)
        for path in sorted(self._directories):
            to.makedirs(path)
        copy.catch_up()
        self._copies.append(copy)
        return copy

    def files(self) -> dict[str, MemoryFile]:
        """Return all present files, by path."""
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
    """A copy of a tree in memory in a directory, for readers in other processes.

    Renames and removals are repeated in their order, each after the files were copied up to that moment. So readers see
    what they would see in a log on disk: a checkpoint (renamed into its place, see `write_atomic`) mentions nothing
    that is missing, and segments are swapped as the cleaner swaps them.
    """

    def __init__(self, source: MemoryStorage, to: Storage) -> None:
        self._source = source
        self._to = to
        self._there: dict[str, tuple[int, int]] = {}
        """The rewrite count and the size that were copied of each file, by path."""
        self.error: OSError | None = None
        """The error that ended copying before `close`, such as a full disk. The log itself continues."""

    def close(self) -> None:
        """Stop copying; existing copies stay."""
        self._source.drop(self)

    def catch_up(self) -> None:
        """Copy everything written since the last call. Raises OSError."""
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
        """Repeat a rename, before the tree does it."""
        try:
            self.catch_up()
            if self._to.exists(source):
                self._to.rename(source, target)
            self._there.pop(target, None)
            self._there = {_moved(path, source, target): state for path, state in self._there.items()}
        except OSError as error:
            self._fail(error)

    def remove(self, path: str) -> None:
        """Repeat a removal, before the tree does it."""
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

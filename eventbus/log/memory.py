"""Storage in memory: a tree of byte arrays under the very code that writes files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventbus.log.storage import Buffer


class MemoryFile:
    """A growing array of bytes."""

    __slots__ = ("data", "size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0

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

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.size = size

    def sync(self) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class MemoryStorage:
    """A tree in memory. Nothing outlives the object, so nothing is ever synced."""

    durable = False

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._directories: set[str] = {""}
        self._ids = 0

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
        while path:
            self._directories.add(path)
            path = _parent(path)

    def rename(self, source: str, target: str) -> None:
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
        del self._files[path]

    def remove_tree(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        inside = path + "/"
        self._directories = {name for name in self._directories if name != path and not name.startswith(inside)}
        self._files = {name: file for name, file in self._files.items() if not name.startswith(inside)}

    def sync_dir(self, path: str) -> None: ...

    def unique_id(self) -> str:
        self._ids += 1
        return f"{self._ids:022d}"

    def lock(self) -> None: ...

    def unlock(self) -> None: ...

    def describe(self) -> str:
        return "memory"


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _moved(path: str, source: str, target: str) -> str:
    return target + path[len(source) :] if path == source or path.startswith(source + "/") else path

"""Storages that fail on purpose: `CrashStorage` loses what was not synced, `FaultyStorage` fails a chosen call.

The code on top is the production code, so a power cut or a full disk at any point costs a test a fraction of a
millisecond.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Collection
from random import Random
from typing import NamedTuple

from eventbus.log.storage import Buffer, File, Storage

_SECTOR_BYTES = 16
"""Small, so that small test batches can be torn in many places. A real sector is 512 bytes or more."""


class SimulatedCrash(Exception):
    """Raised when the machine stops. Continue with `CrashStorage.crash`, the content of its disk then."""


# -- the crash model ---------------------------------------------------------------------------------------------------


class _Write(NamedTuple):
    order: int
    position: int
    data: bytes


class _Truncate(NamedTuple):
    order: int
    size: int


class _Names(NamedTuple):
    """A change of a directory's names that a file system makes completely or not at all; None removes a name."""

    order: int
    changes: tuple[tuple[str, _Node | None], ...]


class _FileNode:
    __slots__ = ("durable", "live", "pending")

    def __init__(self, content: bytes = b"") -> None:
        self.live = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[_Write | _Truncate] = []


class _DirectoryNode:
    __slots__ = ("durable", "live", "pending")

    def __init__(self) -> None:
        self.live: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.pending: list[_Names] = []


_Node = _FileNode | _DirectoryNode


class CrashStorage:
    """A tree in memory with two images: what programs see, and what is certainly on disk.

    It follows the strictest reading of POSIX: `File.sync` covers only the bytes of that file, `sync_dir` only the names
    in that directory, and whatever is not covered may survive a crash in part, torn, or in any order.

    ``crash_at_call`` / ``crash_at_sync`` raise `SimulatedCrash` instead of executing the n-th call that changes
    something, or the n-th sync of either kind; from then on every call does. ``fail_sync`` makes the n-th sync of a
    file fail as Linux does: the error is reported once, the bytes stay readable, and they never reach the disk unless
    they are written again.
    """

    durable = True

    def __init__(self) -> None:
        self.calls_count = 0
        self.syncs_count = 0
        self.crash_at_call = 0
        self.crash_at_sync = 0
        self.fail_sync = 0
        self.stopped = False
        self._root = _DirectoryNode()
        self._order = 0
        self._ids = 0
        self._locked = False

    # the calls of a storage

    def open(self, path: str, create: bool = False) -> CrashFile:
        self._alive()
        parent, name = self._parent(path)
        node = parent.live.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.changing()
            node = _FileNode()
            self._rename(parent, ((name, node),))
        if not isinstance(node, _FileNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return CrashFile(self, node)

    def exists(self, path: str) -> bool:
        self._alive()
        return self._find(path) is not None

    def listdir(self, path: str) -> list[str]:
        self._alive()
        return sorted(self._directory(path).live)

    def makedirs(self, path: str) -> None:
        self.changing()
        directory = self._root
        for name in path.split("/"):
            child = directory.live.get(name)
            if child is None:
                child = _DirectoryNode()
                self._rename(directory, ((name, child),))
            assert isinstance(child, _DirectoryNode)
            directory = child

    def rename(self, source: str, target: str) -> None:
        self.changing()
        parent, name = self._parent(source)
        target_parent, target_name = self._parent(target)
        node = parent.live.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", source)
        if parent is not target_parent:
            raise OSError(errno.EXDEV, "the simulation renames within one directory")
        self._rename(parent, ((name, None), (target_name, node)))

    def remove(self, path: str) -> None:
        self.changing()
        parent, name = self._parent(path)
        if name not in parent.live:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._rename(parent, ((name, None),))

    def remove_tree(self, path: str) -> None:
        directory = self._directory(path)
        for name, node in sorted(directory.live.items()):
            if isinstance(node, _DirectoryNode):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.remove(path)

    def sync_dir(self, path: str) -> None:
        self.syncing()
        directory = self._directory(path)
        for names in directory.pending:
            _apply_names(directory.durable, names)
        directory.pending.clear()

    def unique_id(self) -> str:
        self._ids += 1
        return f"{self._ids:022d}"

    def lock(self) -> None:
        self._alive()
        assert not self._locked, "two writers in one simulated directory"
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def check_root(self) -> str:
        return ""

    def close_idle_files(self) -> bool:
        return False

    def describe(self) -> str:
        return "crash-storage"

    # crashing

    def kill(self) -> CrashStorage:
        """Simulate the death of the process, not the machine: what was written stays visible, synced or not."""
        self.stopped = False
        self.crash_at_call = self.crash_at_sync = self.fail_sync = 0
        self._locked = False
        return self

    def crash(self, random: Random) -> CrashStorage:
        """Return a possible state of the disk after a power cut now, as a new storage. ``random`` decides which."""
        survivor = CrashStorage()
        survivor._ids = self._ids + 1_000_000
        survivor._root = _survive(self._root, _Fate(random, self._order))
        return survivor

    def tree(self) -> dict[str, bytes]:
        """Return every file that programs see, by path."""
        return _contents(self._root, "")

    # for the files

    def changing(self) -> int:
        """Count a call that changes something; return its number in the order of all."""
        self._alive()
        self.calls_count += 1
        if self.calls_count == self.crash_at_call:
            self._stop()
        self._order += 1
        return self._order

    def syncing(self) -> None:
        self.changing()
        self.syncs_count += 1
        if self.syncs_count == self.crash_at_sync:
            self._stop()

    def _alive(self) -> None:
        if self.stopped:
            raise SimulatedCrash

    def _stop(self) -> None:
        self.stopped = True
        raise SimulatedCrash

    def _rename(self, directory: _DirectoryNode, changes: tuple[tuple[str, _Node | None], ...]) -> None:
        names = _Names(self._order, changes)
        directory.pending.append(names)
        _apply_names(directory.live, names)

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in path.split("/") if path else ():
            if not isinstance(node, _DirectoryNode):
                return None
            node = node.live.get(name)
        return node

    def _directory(self, path: str) -> _DirectoryNode:
        node = self._find(path)
        if not isinstance(node, _DirectoryNode):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node

    def _parent(self, path: str) -> tuple[_DirectoryNode, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name


class CrashFile:
    """A file of a `CrashStorage`."""

    __slots__ = ("_node", "_storage")

    def __init__(self, storage: CrashStorage, node: _FileNode) -> None:
        self._storage = storage
        self._node = node

    @property
    def size(self) -> int:
        return len(self._node.live)

    def append(self, data: Buffer) -> None:
        self.pwrite(len(self._node.live), data)

    def pread(self, position: int, length: int) -> bytes:
        if self._storage.stopped:
            raise SimulatedCrash
        return bytes(self._node.live[position : position + length])

    def pwrite(self, position: int, data: Buffer) -> None:
        write = _Write(self._storage.changing(), position, bytes(data))
        self._node.pending.append(write)
        _apply(self._node.live, write)

    def truncate(self, size: int) -> None:
        truncate = _Truncate(self._storage.changing(), size)
        self._node.pending.append(truncate)
        _apply(self._node.live, truncate)

    def sync(self) -> None:
        storage = self._storage
        storage.syncing()
        node = self._node
        if storage.syncs_count == storage.fail_sync:
            node.pending.clear()
            raise OSError(errno.EIO, "simulated write-back error")
        for change in node.pending:
            _apply(node.durable, change)
        node.pending.clear()

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def idle(self) -> None: ...

    def close(self) -> None: ...


def _apply(content: bytearray, change: _Write | _Truncate) -> None:
    if isinstance(change, _Truncate):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    content.extend(bytes(max(change.position - len(content), 0)))
    content[change.position : change.position + len(change.data)] = change.data


def _apply_names(names: dict[str, _Node], change: _Names) -> None:
    for name, node in change.changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class _Fate:
    """Decides which changes survive, in one of several styles, because each finds other bugs."""

    def __init__(self, random: Random, last_order: int) -> None:
        self.random = random
        style = random.choice(("nothing", "everything", "prefix", "few", "half", "most", "names", "bytes"))
        keep = {"nothing": 0.0, "everything": 1.0, "prefix": 1.0, "few": 0.15, "half": 0.5, "most": 0.9}
        self._bytes = keep.get(style, 1.0 if style == "bytes" else 0.1)
        self._names = keep.get(style, 1.0 if style == "names" else 0.1)
        self._torn = 0.0 if style in ("nothing", "everything") else random.choice((0.0, 0.3, 0.8))
        self._limit = random.randint(0, last_order) if style == "prefix" else last_order

    def keeps_names(self, change: _Names) -> bool:
        return change.order <= self._limit and self.random.random() < self._names

    def surviving(self, change: _Write | _Truncate, durable_bytes: int) -> list[_Write | _Truncate]:
        """Return the remains of a change to a file that has ``durable_bytes`` on disk."""
        random = self.random
        if change.order > self._limit or random.random() >= self._bytes:
            return []
        if isinstance(change, _Truncate) or random.random() >= self._torn:
            return [change]
        return _tear(change, random, durable_bytes)


def _tear(write: _Write, random: Random, durable_bytes: int) -> list[_Write | _Truncate]:
    """Return a part of a write: a piece of its beginning, zeros in its place, or some of its sectors.

    Zeros occur only where the file grew: there its size may be on disk before its bytes. Bytes that were on disk
    already are old or new, sector by sector.
    """
    order, position, data = write
    how = random.randrange(3)
    if how == 0:
        return [_Write(order, position, data[: random.randint(0, len(data))])]
    if how == 1:
        grown = max(position, min(durable_bytes, position + len(data)))
        return [_Write(order, grown, bytes(position + len(data) - grown))]
    end = position + len(data)
    cuts = [position, *range(position - position % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    return [
        _Write(order, start, data[start - position : stop - position])
        for start, stop in itertools.pairwise(cuts)
        if random.random() < 0.6
    ]


def _contents(directory: _DirectoryNode, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, node in directory.live.items():
        if isinstance(node, _DirectoryNode):
            found.update(_contents(node, f"{prefix}{name}/"))
        else:
            found[prefix + name] = bytes(node.live)
    return found


def _survive(directory: _DirectoryNode, fate: _Fate) -> _DirectoryNode:
    names = dict(directory.durable)
    for change in directory.pending:
        if fate.keeps_names(change):
            _apply_names(names, change)
    survivor = _DirectoryNode()
    for name, node in names.items():
        if isinstance(node, _DirectoryNode):
            survivor.live[name] = _survive(node, fate)
            continue
        content = bytearray(node.durable)
        for change in node.pending:
            for left in fate.surviving(change, len(node.durable)):
                _apply(content, left)
        survivor.live[name] = _FileNode(bytes(content))
    survivor.durable = dict(survivor.live)
    return survivor


# -- failing calls -----------------------------------------------------------------------------------------------------

Failure = Callable[[], OSError]


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def io_error() -> OSError:
    return OSError(errno.EIO, "Input/output error")


class FaultyStorage:
    """Another storage, of which the n-th call fails: once, or from then on until `heal`.

    All calls that may fail are counted, or only those in ``only`` (``"append"``, ``"sync"``, ...). A failing append
    writes a part of its bytes first, as a nearly full disk does.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        fail_at: int = 0,
        error: Failure = io_error,
        persistent: bool = False,
        only: Collection[str] = (),
    ) -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.error = error
        self.persistent = persistent
        self.only = frozenset(only)
        self.calls_count = 0
        self.failures_count = 0

    @property
    def durable(self) -> bool:
        return self.inner.durable

    def heal(self) -> None:
        """Let all calls succeed again."""
        self.fail_at = 0

    def fails(self, name: str) -> bool:
        """Count a call; return True if it must fail."""
        if self.only and name not in self.only:
            return False
        self.calls_count += 1
        failing = self.calls_count == self.fail_at or (self.persistent and 0 < self.fail_at < self.calls_count)
        self.failures_count += failing
        return failing

    def may_fail(self, name: str) -> None:
        if self.fails(name):
            raise self.error()

    def open(self, path: str, create: bool = False) -> FaultyFile:
        self.may_fail("open")
        return FaultyFile(self, self.inner.open(path, create))

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def listdir(self, path: str) -> list[str]:
        self.may_fail("listdir")
        return self.inner.listdir(path)

    def makedirs(self, path: str) -> None:
        self.may_fail("makedirs")
        self.inner.makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self.may_fail("rename")
        self.inner.rename(source, target)

    def remove(self, path: str) -> None:
        self.may_fail("remove")
        self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        self.may_fail("remove_tree")
        self.inner.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self.may_fail("sync_dir")
        self.inner.sync_dir(path)

    def unique_id(self) -> str:
        return self.inner.unique_id()

    def lock(self) -> None:
        self.inner.lock()

    def unlock(self) -> None:
        self.inner.unlock()

    def check_root(self) -> str:
        return self.inner.check_root()

    def close_idle_files(self) -> bool:
        return self.inner.close_idle_files()

    def describe(self) -> str:
        return self.inner.describe()


class FaultyFile:
    """A file of a `FaultyStorage`."""

    __slots__ = ("_inner", "_storage", "size")

    def __init__(self, storage: FaultyStorage, inner: File) -> None:
        self._storage = storage
        self._inner = inner
        self.size = inner.size

    def append(self, data: Buffer) -> None:
        if self._storage.fails("append"):
            self._inner.pwrite(self.size, data[: len(data) // 2])
            raise self._storage.error()
        self._inner.pwrite(self.size, data)
        self.size += len(data)

    def pread(self, position: int, length: int) -> bytes:
        self._storage.may_fail("pread")
        return self._inner.pread(position, length)

    def pwrite(self, position: int, data: Buffer) -> None:
        self._storage.may_fail("pwrite")
        self._inner.pwrite(position, data)
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        self._storage.may_fail("truncate")
        self._inner.truncate(size)
        self.size = size

    def sync(self) -> None:
        self._storage.may_fail("sync")
        self._inner.sync()

    def hold(self) -> None:
        self._inner.hold()

    def release(self) -> None:
        self._inner.release()

    def idle(self) -> None:
        self._inner.idle()

    def close(self) -> None:
        self._inner.close()

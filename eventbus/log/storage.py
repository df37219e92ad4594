"""The storage interface: about a dozen calls, through which all durable I/O happens.

`FileStorage` is a directory, `MemoryStorage` a tree in memory; the code above them is the same. Two test storages are
in `eventbus.testing.storage`: one crashes, one fails. Paths are relative and POSIX
(``"flights-0/00000000000000000000.log"``).

This is the only module of the lower layers that calls the operating system. It raises `OSError`; the layer above turns
that into our own errors (`storage_error`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import Any, Protocol

from eventbus.errors import ConfigError, LogLocked, StorageError, StorageFull
from eventbus.forks import watch_forks
from eventbus.log.memory import MemoryStorage

__all__ = ["Buffer", "File", "FileStorage", "MemoryStorage", "Storage", "storage_error", "write_atomic"]

Buffer = bytes | bytearray | memoryview

_FULL = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_BINARY = getattr(os, "O_BINARY", 0)
_LOCK_FILE = ".lock"
_LOCK_ATTEMPTS = 3
_WRITE_BYTES = 32_768
"""The most bytes per system call: Linux allocates larger blocks of memory for larger writes, and a MiB at once cost
two to six times as much as in such pieces (ext4, 6.18)."""


class OutOfDescriptors(OSError):
    """The process had no file descriptor left to open the file. Nothing was read, written or flushed: try again."""


class NoInodes(OSError):
    """The file system has room for bytes, but not for another file: it has run out of inodes."""

    free_bytes = 0


class File(Protocol):
    """An open file. All calls come from one thread, except `sync`, which may run in a worker during appends."""

    @property
    def size(self) -> int:
        """The bytes in the file, without those of a failed `append`."""
        ...

    def append(self, data: Buffer) -> None:
        """Write all of ``data`` at the end, or raise. After an error, bytes may follow `size`: truncate to it."""
        ...

    def pread(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def pwrite(self, position: int, data: Buffer) -> None:
        """Overwrite existing bytes. Only recovery does this: a log only grows."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when every byte written so far is on disk. Never call it again after it raised."""
        ...

    def hold(self) -> None:
        """Keep the file open until `release`, because a worker thread is about to `sync` it, which is cheaper then."""
        ...

    def release(self) -> None: ...

    def idle(self) -> None:
        """Keep a descriptor only between `hold` and `release` from now on: the file is still flushed, but not read."""
        ...

    def close(self) -> None: ...


class Storage(Protocol):
    """A directory tree on disk or in memory."""

    @property
    def durable(self) -> bool:
        """True if the content outlives the process; otherwise syncing is unnecessary."""
        ...

    def open(self, path: str, create: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted. The root is ``""``."""
        ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing a file with the target's name."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make created, renamed and removed names in this directory durable."""
        ...

    def unique_id(self) -> str:
        """Return a unique id: 22 characters, Kafka's text form of a UUID."""
        ...

    def lock(self) -> None:
        """Become the only writer. Raises `LogLocked` with the present writer."""
        ...

    def unlock(self) -> None: ...

    def check_root(self) -> str:
        """Return why the locked directory is not the one that its path leads to; an empty string if it is.

        A lock file that was deleted meanwhile is created again.
        """
        ...

    def close_idle_files(self) -> bool:
        """Close the descriptors that are only kept for the next use. Return False if there were none."""
        ...

    def describe(self) -> str: ...


def is_full(error: OSError) -> bool:
    """True if the disk, or the user's quota, has no more room."""
    return error.errno in _FULL


def storage_error(error: OSError, doing: str) -> StorageError:
    """Return our error for an error of the operating system. ``doing`` is what failed, with the path in it."""
    if isinstance(error, NoInodes):
        return StorageFull(
            f"{doing}: the file system has no free inodes, though it has {error.free_bytes:,} free bytes. Delete some "
            "files: writing continues automatically, nothing acknowledged is lost"
        )
    if is_full(error):
        return StorageFull(
            f"{doing}: the disk is full. Free some space: writing continues automatically, nothing acknowledged is lost"
        )
    return StorageError(f"{doing}: {error.strerror or error}. Check the disk, its permissions and `ulimit`, then retry")


def write_atomic(storage: Storage, path: str, data: bytes, *, sync: bool, sync_name: bool = True) -> None:
    """Replace a small file: a reader sees the old content or the new content, never a mixture.

    With ``sync`` this also holds after a power cut, and with ``sync_name`` the new content is there. Without ``sync`` a
    crash may leave anything: for files that can be lost.
    """
    temporary = path + ".tmp"
    file = storage.open(temporary, create=True)
    try:
        if file.size:
            file.truncate(0)
        file.append(data)
        if sync:
            file.sync()
    finally:
        file.close()
    storage.rename(temporary, path)
    if sync and sync_name:
        storage.sync_dir(path.rpartition("/")[0])


def read_whole(storage: Storage, path: str) -> bytes | None:
    """Return the content of a small file, or None if it does not exist."""
    try:
        file = storage.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(0, file.size)
    finally:
        file.close()


def _open(path: str, flags: int, dir_fd: int | None) -> int:
    try:
        return os.open(path, flags | _BINARY, 0o600, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR:
            raise OutOfDescriptors(error.errno, error.strerror, path) from error
        raise


# -- what differs between operating systems ---------------------------------------------------------------------------

if sys.platform == "win32":  # pragma: no cover

    def _pread(fd: int, length: int, position: int) -> bytes:
        os.lseek(fd, position, os.SEEK_SET)
        return os.read(fd, length)

    def _pwrite(fd: int, data: Buffer, position: int) -> int:
        os.lseek(fd, position, os.SEEK_SET)
        return os.write(fd, data)

    _fdatasync = os.fsync

    def _open_root(path: str) -> int | None:
        """Return None: Windows opens no directories, and refuses to rename a directory that has open files."""

    def _sync_directory(path: str, dir_fd: int | None) -> None:
        """Do nothing: NTFS journals names."""

    def _try_lock(fd: int) -> None:
        import msvcrt

        # A byte far beyond the text, so that others can still read who holds the lock.
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _open_files_limit() -> int:
        return 512

else:
    _pread = os.pread
    _pwrite = os.pwrite

    if sys.platform == "darwin":  # pragma: no cover

        def _fdatasync(fd: int) -> None:
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone stops at the drive's cache
    else:
        _fdatasync = os.fdatasync

    def _open_root(path: str) -> int | None:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync_directory(path: str, dir_fd: int | None) -> None:
        fd = _open(path, os.O_RDONLY, dir_fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _try_lock(fd: int) -> None:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _open_files_limit() -> int:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(16, min(4096, soft // 2)) if soft > 0 else 4096


# -- a directory -------------------------------------------------------------------------------------------------------


class FileStorage:
    """A directory of the operating system.

    Any number of files may be open: only recently used ones keep a descriptor, the others are reopened as needed.

    `lock` opens the directory itself, and from then on every file is reached relative to that descriptor. So the
    directory that was locked is the one that is written to, even if its path leads somewhere else by now: it was
    renamed, a symbolic link was switched, a file system was mounted over it. `check_root` reports that. A storage that
    is not locked follows symbolic links once, when it is created, so that a reader never mixes two directories.
    """

    durable = True

    def __init__(self, root: str, *, read_only: bool = False, max_open_files: int | None = None) -> None:
        self._lock_fd = -1  # before anything that may fail, because `__del__` reads it
        self._root_fd: int | None = None
        self.root = os.path.abspath(root)
        self.read_only = read_only
        self._real_root = os.path.realpath(root)
        self._max_open_files = max_open_files or _open_files_limit()
        self._open_files: list[_File] = []
        self._hand = 0
        self._forked = False
        watch_forks(self)

    def __del__(self) -> None:
        """Close the descriptors of a log that was dropped without being closed, which releases its lock."""
        self._close_locks()

    def open(self, path: str, create: bool = False) -> _File:
        return _File(self, path, create)

    def exists(self, path: str) -> bool:
        try:
            os.stat(self._path(path), dir_fd=self._root_fd)
        except OSError:
            return False
        return True

    def listdir(self, path: str) -> list[str]:
        if self._root_fd is None:
            return sorted(os.listdir(self._path(path)))
        fd = self._open_at(path, os.O_RDONLY)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def makedirs(self, path: str) -> None:
        try:
            if self._root_fd is None:
                os.makedirs(self._path(path), mode=0o700, exist_ok=True)
                return
            parent, _, name = path.rpartition("/")
            if parent:
                self.makedirs(parent)
            if name:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700, dir_fd=self._root_fd)
        except OSError as error:
            raise self._out_of_inodes(error) or error from None

    def rename(self, source: str, target: str) -> None:
        fd = self._root_fd
        os.replace(self._path(source), self._path(target), src_dir_fd=fd, dst_dir_fd=fd)

    def remove(self, path: str) -> None:
        os.unlink(self._path(path), dir_fd=self._root_fd)

    def remove_tree(self, path: str) -> None:
        if stat.S_ISLNK(self._mode(path)):  # its target is not in this directory
            self.remove(path)
            return
        for name in self.listdir(path):
            child = f"{path}/{name}"
            if stat.S_ISDIR(self._mode(child)):
                self.remove_tree(child)
            else:
                self.remove(child)
        os.rmdir(self._path(path), dir_fd=self._root_fd)

    def _mode(self, path: str) -> int:
        return os.stat(self._path(path), dir_fd=self._root_fd, follow_symlinks=False).st_mode

    def sync_dir(self, path: str) -> None:
        _sync_directory(self._path(path), self._root_fd)

    def unique_id(self) -> str:
        from eventbus.protocol.uuids import random_uuid, uuid_text

        return uuid_text(random_uuid(lambda: os.urandom(16)))

    def lock(self) -> None:
        if self._lock_fd >= 0:
            return
        try:
            for _ in range(_LOCK_ATTEMPTS):
                os.makedirs(self.root, mode=0o700, exist_ok=True)
                self._real_root = os.path.realpath(self.root)
                self._take_locks()
                # The path may lead elsewhere since the directory was opened, for instance if its former owner deleted
                # it.
                if self._leads_to_root():
                    return
                self._close_locks()
        except OSError as error:
            self._close_locks()
            raise ConfigError(
                f"{self.root} cannot be used as a log: {error.strerror}. Name a directory this user may write to"
            ) from error
        except BaseException:
            self._close_locks()
            raise
        raise StorageError(f"{self.root} was replaced while it was being opened. Try again when nothing changes it.")

    def _take_locks(self) -> None:
        """Lock the directory, then the lock file in it. Raises LogLocked.

        The lock of the directory is the one that counts: users delete lock files. The lock file names the holder. It is
        locked as well, for file systems that cannot lock directories (NFS) and for releases that lock only the file.
        """
        self._root_fd = _open_root(self.root)
        if self._root_fd is not None:
            try:
                _try_lock(self._root_fd)
            except BlockingIOError as error:
                raise self._locked_by_another() from error
            except OSError:
                pass  # this file system cannot lock directories: the lock of the file must suffice
        try:
            self._lock_fd = self._sign_lock_file()
        except BlockingIOError as error:
            raise self._locked_by_another() from error

    def _sign_lock_file(self) -> int:
        """Lock the lock file, which is created if it is missing. Return its descriptor, to be kept open."""
        import socket

        fd = _open(self._path(_LOCK_FILE), os.O_RDWR | os.O_CREAT, self._root_fd)
        try:
            try:
                _try_lock(fd)
            except OSError as error:  # Windows and some network file systems report a held lock as EACCES
                raise BlockingIOError(errno.EWOULDBLOCK, "locked by another process") from error
            holder = f"pid={os.getpid()} host={socket.gethostname()}\n".encode()
            with contextlib.suppress(OSError):  # a full disk: the holder's name is only a courtesy
                _pwrite(fd, holder, 0)
                os.ftruncate(fd, len(holder))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _locked_by_another(self) -> LogLocked:
        try:
            holder = (read_whole(self, _LOCK_FILE) or b"")[:200].decode("utf-8", "replace").strip()
        except OSError:
            holder = ""
        return LogLocked(
            f"{self.root} is in use by {_describe_holder(holder)}",
            f"Stop it first; or, for several to write, have one hold it, `eventbus serve {self.root}`, and be its "
            "clients: kafka://HOST:PORT as the URL, --bootstrap-server HOST:PORT at the command line. Others may read "
            "the directory meanwhile",
        )

    def unlock(self) -> None:
        """Release the directory and every descriptor."""
        for file in [*self._open_files]:
            file.close()
        self._close_locks()  # the file stays: removing it would let two holders lock two files of one name

    def _close_locks(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        if self._root_fd is not None and self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = None

    def check_root(self) -> str:
        if self._lock_fd < 0:
            return ""
        if not self._leads_to_root():
            return (
                f"{self.root} does not lead to the directory of this log any more{self._present_path()}. The directory "
                "was moved or deleted, or a link or mount was switched; records are still written to it. Put it back, "
                "or restart to use what is at the path now."
            )
        try:
            if not self._is_lock_file_there():
                fd = self._sign_lock_file()
                os.close(self._lock_fd)
                self._lock_fd = fd
        except BlockingIOError:
            return (
                f"Two processes write to {self.root}. Its lock file was deleted, its file system locks no directories, "
                "and another process has locked a new file. Stop one of them and run `eventbus log verify`."
            )
        except OSError:
            pass  # a full disk, or no descriptor: the directory itself is locked, and the next check tries again
        return ""

    def _leads_to_root(self) -> bool:
        """True if the path leads to the directory that was locked."""
        if self._root_fd is None:
            return True
        try:
            return os.path.samestat(os.stat(self.root), os.fstat(self._root_fd))
        except OSError:
            return False

    def _is_lock_file_there(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path(_LOCK_FILE), dir_fd=self._root_fd), os.fstat(self._lock_fd))
        except FileNotFoundError:
            return False

    def _present_path(self) -> str:
        """Return the present path of the directory in parentheses, or nothing outside Linux."""
        try:
            return f" (it is now {os.readlink(f'/proc/self/fd/{self._root_fd}')})"
        except OSError:
            return ""

    def describe(self) -> str:
        return self.root

    def _path(self, path: str) -> str:
        """Return the path to pass to the operating system, together with ``_root_fd``."""
        if self._root_fd is not None:
            return path or "."
        return f"{self._real_root}/{path}" if path else self._real_root

    def _open_fd(self, path: str, create: bool) -> int:
        if self._forked:
            raise OSError(errno.EBADF, "this log was opened before a fork; open it again in the child process")
        if self.read_only:
            return self._open_at(path, os.O_RDONLY)
        try:
            return self._open_at(path, os.O_RDWR | (os.O_CREAT if create else 0))
        except OSError as error:
            raise self._out_of_inodes(error) or error from None

    def _out_of_inodes(self, error: OSError) -> NoInodes | None:
        """Distinguish a lack of inodes from a lack of space: the operating system reports both alike."""
        if error.errno != errno.ENOSPC or sys.platform == "win32":
            return None
        status = os.statvfs(self.root if self._root_fd is None else self._root_fd)
        if not status.f_files or status.f_favail:
            return None
        named = NoInodes(error.errno, "No free inodes", error.filename)
        named.free_bytes = status.f_bavail * status.f_frsize
        return named

    def _open_at(self, path: str, flags: int) -> int:
        """Open; if the process has no descriptor left, close those that are only cached and try once more."""
        try:
            return _open(self._path(path), flags, self._root_fd)
        except OutOfDescriptors:
            if not self.close_idle_files():
                raise
        return _open(self._path(path), flags, self._root_fd)

    def close_idle_files(self) -> bool:
        idle = [file for file in self._open_files if not file.holds]
        self._open_files = [file for file in self._open_files if file.holds]
        for file in idle:
            file.let_go()
        return bool(idle)

    @property
    def has_too_many_open(self) -> bool:
        """True while held files keep more descriptors open than intended."""
        return len(self._open_files) > self._max_open_files

    def _opened(self, file: _File) -> None:
        """Register an open descriptor; if there are too many, close one that was not used lately (second chance)."""
        files = self._open_files
        files.append(file)
        if len(files) <= self._max_open_files:
            return
        for _ in range(2 * len(files)):
            self._hand = (self._hand + 1) % len(files)
            candidate = files[self._hand]
            if candidate.used:
                candidate.used = False
            elif not candidate.holds and candidate is not file:
                files[self._hand] = files[-1]
                files.pop()
                candidate.let_go()
                return

    def _closed(self, file: _File) -> None:
        with contextlib.suppress(ValueError):
            self._open_files.remove(file)

    def after_fork_in_child(self) -> None:
        """Close the child's copies of the parent's files, so that the lock ends with the parent."""
        for file in self._open_files:
            file.let_go()
        self._open_files = []
        if self._root_fd is not None:
            self._close_locks()
            self._root_fd = -1  # no call of the child's reaches the directory any more
        self._forked = True


class _File:
    """A file, whose descriptor is opened and closed as needed."""

    __slots__ = ("_fd", "_is_idle", "_storage", "closed", "holds", "path", "size", "used")

    def __init__(self, storage: FileStorage, path: str, create: bool) -> None:
        self._storage = storage
        self.path = path
        self.holds = 0
        self.closed = False
        self.used = True
        self._is_idle = False
        self._fd = -1  # before anything that may fail, because `__del__` reads it
        self._fd = storage._open_fd(path, create)  # pyright: ignore[reportPrivateUsage]
        self.size = os.fstat(self._fd).st_size
        storage._opened(self)  # pyright: ignore[reportPrivateUsage]

    def __del__(self) -> None:
        self.let_go()

    def append(self, data: Buffer) -> None:
        fd = self._fd
        if fd < 0:
            fd = self._reopen()
        self.used = True
        length = len(data)
        written = _pwrite(fd, data if length <= _WRITE_BYTES else memoryview(data)[:_WRITE_BYTES], self.size)
        if written != length:
            self._write_rest(fd, data, self.size, written)
        self.size += length

    def pread(self, position: int, length: int) -> bytes:
        fd = self._fd
        if fd < 0:
            fd = self._reopen()
        self.used = True
        data = _pread(fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]  # a signal, a network file system, or more than 2 GiB requested
        got = len(data)
        while data and got < length:
            data = _pread(fd, length - got, position + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, position: int, data: Buffer) -> None:
        fd = self._fd if self._fd >= 0 else self._reopen()
        self._write_rest(fd, data, position, 0)
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd if self._fd >= 0 else self._reopen(), size)
        self.size = size

    def sync(self) -> None:
        """Flush the file. Runs in a worker thread, so it uses a separate descriptor unless the file is held open."""
        if self.holds:
            _fdatasync(self._fd)
            return
        try:
            # Not through the storage: closing cached descriptors is for the thread that uses them.
            fd = _open(self._storage._path(self.path), os.O_RDWR, self._storage._root_fd)  # pyright: ignore[reportPrivateUsage]
        except FileNotFoundError:
            if self.closed:
                return  # deleted meanwhile, on purpose
            raise
        try:
            _fdatasync(fd)
        finally:
            os.close(fd)

    def hold(self) -> None:
        if self._fd < 0:
            self._reopen()
        self.holds += 1

    def release(self) -> None:
        self.holds -= 1
        if not self.holds and (self.closed or self._is_idle or self._storage.has_too_many_open):
            self._storage._closed(self)  # pyright: ignore[reportPrivateUsage]
            self.let_go()

    def idle(self) -> None:
        self._is_idle = True
        if not self.holds:
            self._storage._closed(self)  # pyright: ignore[reportPrivateUsage]
            self.let_go()

    def close(self) -> None:
        self.closed = True
        self._storage._closed(self)  # pyright: ignore[reportPrivateUsage]
        if not self.holds:
            self.let_go()

    def let_go(self) -> None:
        """Close the descriptor. The kernel reports a write-back error to the next sync of the file (Linux 4.16)."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reopen(self) -> int:
        if self.closed:
            raise OSError(errno.EBADF, f"{self.path} is closed")
        self._fd = self._storage._open_fd(self.path, create=False)  # pyright: ignore[reportPrivateUsage]
        self.used = True
        self._storage._opened(self)  # pyright: ignore[reportPrivateUsage]
        return self._fd

    def _write_rest(self, fd: int, data: Buffer, position: int, written: int) -> None:
        """Write the remaining bytes: the kernel may write less than requested, as a nearly full disk does before it
        fails."""
        view = memoryview(data)
        while written < len(view):
            count = _pwrite(fd, view[written : written + _WRITE_BYTES], position + written)
            if count == 0:
                raise OSError(errno.ENOSPC, "the operating system takes no more bytes")
            written += count


def _describe_holder(holder: str) -> str:
    """ "pid=12 host=box" in words; a holder that has not signed yet is just "another process"."""
    fields: dict[str, Any] = dict(item.split("=", 1) for item in holder.split() if "=" in item)
    if "pid" not in fields:
        return "another process"
    who = "this very process" if fields["pid"] == str(os.getpid()) else f"process {fields['pid']}"
    return f"{who} on {fields.get('host', 'this machine')}"

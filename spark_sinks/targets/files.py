"""The few file operations of a table, so that a test can stand in for the disk.

Paths are relative to the table's directory and use ``/``. Whatever returns normally from a method called ``sync_*``,
`makedirs` or `create` survives a power cut; the others only a dying process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, Protocol

from eventbus.errors import LogLocked, StorageError, StorageFull

_METADATA = "http://169.254.169.254"
"""The service of a cloud that gives a machine its credentials, which clients try last."""
_FULL = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}


class Files(Protocol):
    """The operations that the commit protocol needs of a file system or an object store."""

    parallel: int
    """How many files it is worth to rename at once."""

    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...
    def size(self, path: str) -> int: ...
    def files_below(self, path: str, *, hidden: bool = False) -> list[str]:
        """All files below a directory, sorted; directories whose name begins with ``_`` or ``.`` only if asked for."""
        ...

    def makedirs(self, path: str) -> None: ...
    def create(self, path: str, data: bytes) -> bool:
        """Create a file with all of ``data`` or not at all; False if it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a staged file its name. In an object store it is a copy, and the staged one goes with the stage."""
        ...

    def remove(self, *paths: str) -> None: ...
    def remove_empty(self, path: str, prefix: str) -> None:
        """Remove the directories of this prefix right below a directory, as far as nothing is left in them."""
        ...

    def exchange(self, one: str, other: str) -> None:
        """Let two directories change places, on Linux in one step; ``one`` may be missing.

        Elsewhere a crash may leave ``one`` missing: do it again then.
        """
        ...

    def sync_dir(self, path: str) -> None: ...
    def sync_file(self, path: str) -> None:
        """Flush a file to disk that another library wrote without doing so."""
        ...


class LocalFiles:
    """`Files` on a local directory. Foreign errors leave as `StorageError`, a full disk as `StorageFull`."""

    parallel = 1

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def read(self, path: str) -> bytes:
        with disk_errors(self.root / path, "read"):
            return (self.root / path).read_bytes()

    def size(self, path: str) -> int:
        with disk_errors(self.root / path, "read"):
            return (self.root / path).stat().st_size

    def files_below(self, path: str, *, hidden: bool = False) -> list[str]:
        found: list[str] = []
        with disk_errors(self.root / path, "list"):
            for directory, names, files in os.walk(self.root / path, onerror=_unless_gone):
                if not hidden:
                    names[:] = [name for name in names if not name.startswith(("_", "."))]
                found += [(Path(directory) / name).relative_to(self.root).as_posix() for name in files]
        return sorted(found)

    def makedirs(self, path: str) -> None:
        target = self.root / path
        with disk_errors(target, "create"):
            missing = [each for each in (target, *target.parents) if not each.exists()]
            target.mkdir(parents=True, exist_ok=True)
            for each in reversed(missing):
                _sync_dir(each.parent)

    def create(self, path: str, data: bytes) -> bool:
        target = self.root / path
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        with disk_errors(target, "create"):
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                created = _publish(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            _sync_dir(target.parent)
        return created

    def rename(self, source: str, target: str) -> None:
        with disk_errors(self.root / target, "rename to"):
            try:
                (self.root / source).rename(self.root / target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _move_across(self.root / source, self.root / target)

    def remove(self, *paths: str) -> None:
        for path in paths:
            with disk_errors(self.root / path, "remove"):
                (self.root / path).unlink(missing_ok=True)

    def remove_empty(self, path: str, prefix: str) -> None:
        with disk_errors(self.root / path, "remove directories below"):
            for top in (self.root / path).glob(f"{prefix}*/"):
                for directory, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        Path(directory).rmdir()

    def exchange(self, one: str, other: str) -> None:
        with disk_errors(self.root / one, "exchange"):
            if not (self.root / one).exists():
                (self.root / other).rename(self.root / one)
            elif not _exchange(self.root / one, self.root / other):
                aside = (self.root / other).with_name(f".{(self.root / other).name}.aside")
                (self.root / one).rename(aside)
                (self.root / other).rename(self.root / one)
                aside.rename(self.root / other)

    def sync_dir(self, path: str) -> None:
        with disk_errors(self.root / path, "sync"):
            _sync_dir(self.root / path)

    def sync_file(self, path: str) -> None:
        with disk_errors(self.root / path, "sync"), (self.root / path).open("rb") as file:
            os.fsync(file.fileno())


class DirectoryLock:
    """An exclusive lock by the operating system on a file: it falls with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> DirectoryLock:
        with disk_errors(self._path, "open"):
            file = self._path.open("a+", encoding="utf-8")
        if not try_lock(file):
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise LogLocked(f"{self._path.parent.parent} is being landed by {holder}: wait for it, or stop it")
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def try_lock(file: IO[str]) -> bool:
    """Lock an open file exclusively; False if it is locked already. Closing the file releases the lock."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0x7FFF0000)  # beyond the text: Windows locks forbid reading as well
            getattr(msvcrt, "locking")(file.fileno(), getattr(msvcrt, "LK_NBLCK"), 1)  # noqa: B009 - Windows only
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unless_gone(error: OSError) -> None:
    """Raise the error unless the directory is missing or was removed meanwhile: unreadable does not mean empty."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _publish(temporary: Path, target: Path) -> bool:
    """Give a complete file its name, unless the name is taken."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: the directory lock keeps others away between the two steps
        if target.exists():
            return False
        temporary.rename(target)
    return True


def _move_across(source: Path, target: Path) -> None:
    """A rename from one disk to another: the name appears when the content is complete."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with source.open("rb") as reading, temporary.open("wb") as writing:
            shutil.copyfileobj(reading, writing, 1 << 20)
            writing.flush()
            os.fsync(writing.fileno())
        temporary.rename(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    source.unlink()


def _exchange(one: Path, other: Path) -> bool:
    """Linux's exchange of two names in one step; False where there is none."""
    rename: Any = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    at_cwd, exchange = -100, 2
    return rename is not None and rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0


def _sync_dir(path: Path) -> None:
    if os.name == "nt":  # directories cannot be opened there; NTFS journals its names
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def disk_errors(path: object, what: str) -> Generator[None]:
    """Turn an error of a disk or an object store into our own, naming the path and what was done to it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError):
            kind = StorageFull if error.errno in _FULL else StorageError
            raise kind(f"cannot {what} {path}: {error.strerror or _first_line(error)}") from error
        if type(error).__module__.startswith("obstore."):  # which need not be installed
            hint = ". No credentials were found. See docs/how-to/spark.md" if _METADATA in str(error) else ""
            raise StorageError(f"cannot {what} {path}: {_first_line(error)}{hint}") from error
        raise


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

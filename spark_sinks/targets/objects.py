"""`ObjectFiles`: the file operations of a table in an object store, with `obstore`.

**A conditional put is what fences a second landing**: `ObjectFiles.create` succeeds for one of two writers. A request
that succeeded may be answered with an error, and a client that tries it again then loses against itself. So each put
carries a mark of its writer, by which the writer recognises its own object.

Every request may be repeated: a put is conditional or of a new name, and what is copied or removed stays so.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from eventbus.errors import ConfigError
from spark_sinks.targets.files import disk_errors
from spark_sinks.targets.place import ObjectPath, place_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CLIENT = ("allow_http", "allow_invalid_certificates", "connect_timeout", "read_timeout", "timeout", "proxy_url")
_WRITER = "writer"


class ObjectFiles:
    """`Files` below a path in a bucket. Every request that succeeded is durable, and directories do not exist."""

    parallel = 16

    def __init__(self, root: ObjectPath) -> None:
        self.root = root
        self._store = store_of(root)

    def exists(self, path: str) -> bool:
        import obstore

        with disk_errors(self.root / path, "read"):
            try:
                obstore.head(self._store, self._key(path))
            except FileNotFoundError:
                return False
        return True

    def read(self, path: str) -> bytes:
        import obstore

        with disk_errors(self.root / path, "read"):
            return obstore.get(self._store, self._key(path)).bytes().to_bytes()

    def size(self, path: str) -> int:
        import obstore

        with disk_errors(self.root / path, "read"):
            return obstore.head(self._store, self._key(path))["size"]

    def files_below(self, path: str, *, hidden: bool = False) -> list[str]:
        import obstore

        top = self._key(path)
        with disk_errors(self.root / path, "list"):
            found = [each["path"] for batch in obstore.list(self._store, top) for each in batch]
        kept = [key for key in found if hidden or not _is_hidden(key.removeprefix(top).lstrip("/"))]
        return sorted(key.removeprefix(f"{self.root.key}/") for key in kept)

    def makedirs(self, path: str) -> None:
        pass

    def create(self, path: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        writer = uuid.uuid4().hex
        key = self._key(path)
        mark = {_WRITER: writer}
        with disk_errors(self.root / path, "create"):
            try:
                _twice(lambda: obstore.put(self._store, key, data, mode="create", attributes=mark, use_multipart=False))
            except AlreadyExistsError:
                return obstore.get(self._store, key).attributes.get(_WRITER) == writer
        return True

    def rename(self, source: str, target: str) -> None:
        """Copy within the bucket. The source goes with the rest of its stage after the commit."""
        import obstore

        staged = place_of(source)
        assert isinstance(staged, ObjectPath) and staged.bucket == self.root.bucket, "see `Stage`"
        with disk_errors(self.root / target, "copy to"):
            _twice(lambda: obstore.copy(self._store, staged.key, self._key(target)))

    def remove(self, *paths: str) -> None:
        import obstore

        keys = [self._key(path) for path in paths]
        with disk_errors(self.root, "remove objects below"), contextlib.suppress(FileNotFoundError):
            if keys:
                _twice(lambda: obstore.delete(self._store, keys))

    def remove_empty(self, path: str, prefix: str) -> None:
        pass

    def exchange(self, one: str, other: str) -> None:
        raise NotImplementedError("no store exchanges directories")  # `ParquetTarget.compact` refuses it

    def sync_dir(self, path: str) -> None:
        pass

    def sync_file(self, path: str) -> None:
        pass

    def upload(self, path: str, file: IO[bytes]) -> None:
        """Put a file from its beginning. It is visible when all of it is there."""
        import obstore

        def put() -> None:
            file.seek(0)
            obstore.put(self._store, self._key(path), file)

        with disk_errors(self.root / path, "write"):
            _twice(put)

    def reader(self, path: str) -> ObjectReader:
        """Return an object as a file that reads ranges."""
        return ObjectReader(self._store, self.root / path, self.size(path))

    def _key(self, path: str) -> str:
        return (self.root / path).key


class ObjectReader(io.RawIOBase):
    """An object as a file. pyarrow reads few and large ranges, so nothing is buffered here."""

    def __init__(self, store: ObjectStore, place: ObjectPath, size_bytes: int) -> None:
        self._store = store
        self._place = place
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        import obstore

        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        with disk_errors(self._place, "read"):
            data = obstore.get_range(self._store, self._place.key, start=self._at, end=end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def require_obstore(place: ObjectPath) -> None:
    """Raise `ConfigError`, with the command, when the library is missing, and for options that it does not know."""
    try:
        import obstore as _  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'A table in {place.bucket} needs obstore. Install it: pip install "eventbus-log[spark,object-store]"'
        ) from error
    store_of(place)


def store_of(place: ObjectPath) -> ObjectStore:
    """Return the store of a place: one of each bucket in a process, because it keeps its connections."""
    return _store(place.bucket, place.options)


@cache
def _store(bucket: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    scheme, _, name = bucket.partition("://")
    stores: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    client: dict[str, Any] = {key: text for key, text in options if key in _CLIENT}
    for key in ("allow_http", "allow_invalid_certificates"):
        if key in client:
            client[key] = client[key].lower() == "true"
    config = {key: text for key, text in options if key not in _CLIENT}
    try:
        return stores[scheme](name, config=config, client_options=client or None)
    except BaseError as error:
        raise ConfigError(f"The options of {bucket} cannot be used. {str(error).splitlines()[0]}") from error


def _twice(request: Callable[[], object]) -> None:
    """Repeat a request that was not answered. obstore does not, because it cannot know that ours may be repeated."""
    from obstore.exceptions import GenericError

    try:
        request()
    except GenericError:
        request()


def _is_hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in Path(path).parts[:-1])

"""Keep large values in a store outside of the log, with a reference in the record (the claim check pattern)."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import anyio.to_thread
import msgspec

from eventbus.client.consuming.restoring import CLAIM_CHECK
from eventbus.client.handling.middleware import Middleware
from eventbus.client.interceptors import ProducerInterceptor, ProducerRecord
from eventbus.errors import ClaimError, ConfigError
from eventbus.middleware.base import whole
from eventbus.types import ConsumerRecord
from serdes import Serde
from serdes.base import Encode, SchemaSerde, bind_encoder
from serdes.choose import serde_of_topic

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

logger = logging.getLogger("eventbus.claim_check")

HEADER = CLAIM_CHECK
"""Holds the size of the value; the record's own value is its name in the store, the SHA-256 of its bytes."""
_NAME = re.compile(r"[0-9a-f]{64}")


@runtime_checkable
class Store(Protocol):
    """A store for large values; implement it for S3 or others. Called in worker threads; `put` for
    `Producer.send_nowait` on the event loop."""

    def put(self, name: str, data: bytes) -> None:
        """Store ``data``; durable on return. A name always has the same data."""
        ...

    def get(self, name: str) -> bytes:
        """Return stored data. Raises KeyError or FileNotFoundError if it does not exist."""
        ...

    def delete(self, name: str) -> None:
        """Delete stored data, if it exists."""
        ...


class Directory:
    """A store of files, each named after its content; a value that is sent twice is stored once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Create the directory if it does not exist."""
        self._given = str(path)
        self._path = Path(path).absolute()  # the program may change its working directory
        self._path.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return f"Directory({self._given!r})"

    def put(self, name: str, data: bytes) -> None:
        target = self._file(name)
        if target.exists():
            os.utime(target)  # as young as its newest record
            return
        handle, temporary = tempfile.mkstemp(dir=self._path, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        directory = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def get(self, name: str) -> bytes:
        return self._file(name).read_bytes()

    def delete(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def delete_older(self, seconds: float) -> int:
        """Delete files that were last put longer ago; return how many. Use more than the topics' retention."""
        oldest = time.time() - seconds
        old = [one for one in self._path.iterdir() if one.stat().st_mtime < oldest and _NAME.fullmatch(one.name)]
        for one in old:
            one.unlink(missing_ok=True)
        return len(old)

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise KeyError(name)  # never a path from outside
        return self._path / name


class ClaimCheck(ProducerInterceptor):
    """Puts values above ``above_bytes`` into ``store`` when they are sent, and gets them before the handler is called.

    Include it where records are sent and where they are handled: ``bus.include(ClaimCheck(Directory("claims")))``. The
    value is durable in the store before the record goes to the log. Handlers notice nothing; a separate consumer calls
    `fetched`. Values of a schema registry are left alone. Raises ClaimError, like an error of the handler, for a value
    that is gone or damaged. If `Store.put` fails, that is logged, and the record is sent unchanged, which the log
    refuses if it is too large.
    """

    def __init__(self, store: Store, *, above_bytes: int = 512 * 1024) -> None:
        """Check the arguments. Raises ConfigError."""
        if not isinstance(cast(Any, store), Store):
            raise ConfigError(f"ClaimCheck({store!r}): a store has put, get and delete: Directory('claims')")
        self._store = store
        self._above_bytes = whole("ClaimCheck(above_bytes", above_bytes)
        self._serdes: dict[type, Serde] = {}
        self._encoders: dict[tuple[str, type], Encode | None] = {}

    def __repr__(self) -> str:
        return f"ClaimCheck({self._store!r})"

    async def start(self, bus: EventBus) -> None:
        """Start as a `Part` of the bus."""
        self._serdes, self._encoders = dict(bus.context.serdes), {}

    async def aclose(self) -> None:
        """Close as a `Part` of the bus."""

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Return the middleware, see `Surrounds`. All readers restore values, not only handlers."""
        return ()

    @property
    def header(self) -> str:
        """The mark of records whose values are in the store, see `Restores`."""
        return HEADER

    @property
    def interceptors(self) -> Sequence[ProducerInterceptor]:
        """Return the interceptors, see `Surrounds`."""
        return (self,)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record, or one that refers to its value. For `Producer.send_nowait`, which cannot wait."""
        data = self._large(record)
        return record if data is None else self._put(record, data)

    async def on_send_async(self, record: ProducerRecord) -> ProducerRecord:
        """Do what `on_send` does, in a worker thread: making a file durable takes milliseconds."""
        data = self._large(record)
        return record if data is None else await anyio.to_thread.run_sync(self._put, record, data)

    def _large(self, record: ProducerRecord) -> bytes | None:
        """Return the bytes of its value, if they must go into the store."""
        if record.value is None or any(name == HEADER for name, _ in record.headers):
            return None
        data = self._bytes_of(record)
        return None if data is None or len(data) <= self._above_bytes else data

    def _put(self, record: ProducerRecord, data: bytes) -> ProducerRecord:
        name = hashlib.sha256(data).hexdigest()
        self._store.put(name, data)
        headers = (*record.headers, (HEADER, str(len(data))))
        return msgspec.structs.replace(record, value=name.encode(), headers=headers)

    def _bytes_of(self, record: ProducerRecord) -> bytes | None:
        value = record.value
        if isinstance(value, bytes):
            return value
        kind = cast("type[Any]", type(value))
        where = record.topic, kind
        if where not in self._encoders:
            serde = serde_of_topic(kind, record.topic, self._serdes)
            self._encoders[where] = None if isinstance(serde, SchemaSerde) else bind_encoder(serde, record.topic, kind)
        encode = self._encoders[where]
        try:
            return None if encode is None else encode(value)
        except Exception:  # a serde may raise anything; the producer gets the error too, and raises it to its caller
            return None

    async def restored(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return the record with its value from the store, see `Restores`."""
        return await self.fetched(record)

    async def fetched(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return the record with its value, or unchanged if it refers to none. Raises ClaimError.

        The original record stays small, as it goes to retry and dead-letter topics.
        """
        size = record.header(HEADER)
        if size is None or record.value is None:
            return record
        name = bytes(record.value).decode("ascii", "replace")
        where = f"{record.topic}-{record.partition} offset {record.offset}"
        what = f"{where}: its value of {size.decode('ascii', 'replace')} bytes, {name},"
        try:
            data = await anyio.to_thread.run_sync(self._store.get, name)
        except (KeyError, FileNotFoundError) as error:
            raise ClaimError(
                f"{what} is not in {self._store!r}: bring it back from a copy, or skip the record"
            ) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise ClaimError(f"{what} is damaged in {self._store!r}: it has {len(data)} bytes of another content")
        one = copy.copy(record)
        one.value = data
        return one

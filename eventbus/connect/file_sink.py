"""``FileStreamSink``: writes each record as a line of a file, exactly once.

The file ``FILE.offsets`` next to it stores how long the file was, and which offsets were next, when it was last made
durable. After a crash the file is truncated to that length, and later records are written again.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import msgspec

from eventbus.connect.connector import Context, Refused, SinkConnector, SinkRecord
from eventbus.connect.settings import Key
from eventbus.errors import ConfigError
from eventbus.types import TopicPartition


class _Committed(msgspec.Struct):
    length: int
    offsets: list[tuple[str, int, int]]
    topic_ids: dict[str, str] = {}


class FileStreamSink(SinkConnector):
    """Appends values of records to ``file``; without ``file`` to standard output."""

    keys: ClassVar[Sequence[Key]] = (
        Key("file", default="", doc="to append to; standard output without one"),
    )  # fmt: skip

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._path = Path(self.settings["file"]) if self.settings["file"] else None
        if self._path is not None and not self._path.absolute().parent.is_dir():
            raise ConfigError(f"{context.place('file')}: there is no directory {self._path.absolute().parent}")
        self._file: BinaryIO | None = None
        self._keeps = False
        """True for a file that can be truncated, and not a pipe."""
        self._offsets: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}
        """The ids of the topics to which the offsets belong."""

    def start(self) -> None:
        if self._path is None:
            self._file = sys.stdout.buffer
            return
        try:
            self._file = self._path.open("ab")
        except OSError as error:
            raise ConfigError(f"{self.context.place('file')}: {self._path}: {error.strerror or error}") from None
        self._keeps = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        if self._keeps:
            _lock(self._file, self._path)
            self._cut_back(self._file, self._path)
            self._commit(self._file, self._path)

    def _cut_back(self, file: BinaryIO, path: Path) -> None:
        found = _read(_offsets_path(path))
        if found is None:
            return
        self._offsets = {TopicPartition(topic, partition): offset for topic, partition, offset in found.offsets}
        self._topic_ids = found.topic_ids
        size = os.fstat(file.fileno()).st_size
        if size > found.length:
            os.ftruncate(file.fileno(), found.length)
            self.context.note(
                f"{self.context.name}: {size - found.length:,} byte(s) after the last commit of {path} are taken "
                "back; their records come again"
            )

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        for topic, topic_id in topic_ids.items():
            stored = self._topic_ids.get(topic)
            if self._path is not None and stored and topic_id and stored != topic_id:
                raise ConfigError(
                    f"{self._path} holds the records of another topic {topic!r}. The topic was deleted and created "
                    f"again, or this is another log. Name another file, or delete {_offsets_path(self._path)} to "
                    "append the records of the present topic"
                )
        self._topic_ids = {**self._topic_ids, **topic_ids}

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._offsets

    def put(self, records: Sequence[SinkRecord]) -> Iterable[Refused] | None:
        assert self._file is not None
        self._file.write(b"".join([_line(one.value) for one in records]))
        self._file.flush()
        return None

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self._path is not None and self._keeps and self._file is not None:
            self._offsets = {**self._offsets, **offsets}
            self._commit(self._file, self._path)

    def _commit(self, file: BinaryIO, path: Path) -> None:
        """Make the lines durable first, then the file that makes them count."""
        os.fsync(file.fileno())
        content = _Committed(
            os.fstat(file.fileno()).st_size,
            [(one.topic, one.partition, at) for one, at in sorted(self._offsets.items())],
            {topic: topic_id for topic, topic_id in self._topic_ids.items() if topic_id},
        )
        offsets_path = _offsets_path(path)
        new = offsets_path.with_name(f"{offsets_path.name}.new")
        with new.open("wb") as written:
            written.write(msgspec.json.encode(content))
            written.flush()
            os.fsync(written.fileno())
        new.replace(offsets_path)

    def stop(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
        self._file = None


def _offsets_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.offsets")


def _read(offsets_path: Path) -> _Committed | None:
    try:
        return msgspec.json.decode(offsets_path.read_bytes(), type=_Committed)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{offsets_path} is not what this sink has written ({error}): delete it, and the sink continues after what "
            "its group has committed"
        ) from None


def _line(value: Any) -> bytes:
    """Format a value as it would be printed; null as Kafka's sink writes it."""
    match value:
        case bytes():
            return value + b"\n"
        case str():
            return value.encode("utf-8", "surrogateescape") + b"\n"
        case _:
            return msgspec.json.encode(cast("object", value)) + b"\n"


def _lock(file: BinaryIO, path: Path) -> None:
    """Lock the file: two sinks that truncate and append would destroy each other's lines."""
    try:
        import fcntl
    except ImportError:  # Windows lets only one process open it
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"{path}: another sink writes to it; give each one a file of its own") from None

"""A disk that loses, at a power cut, what was not synced."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import msgspec
import pyarrow as pa

from spark_sinks.targets.rewrite import Rewritten
from tests.spark.targets.kit import Crash, Record

Names = dict[str, bytes]


class FakeDisk:
    """Files whose names are durable only after their directory was synced; it dies before the n-th step.

    Contents are durable when a file is there: who writes one syncs it.
    """

    def __init__(self, durable: Names | None = None) -> None:
        self.durable = dict(durable or {})
        self.live = dict(self.durable)
        self.exchanged: tuple[str, str] | None = None
        self.steps = 0
        self.crash_at = -1

    def step(self) -> None:
        if self.steps == self.crash_at:
            raise Crash
        self.steps += 1

    def write(self, path: str, records: Sequence[Record]) -> None:
        """What a task does."""
        self.step()
        self.live[path] = msgspec.json.encode(records)

    def rewrite(
        self, sources: Sequence[Path], columns: pa.Schema, name: Callable[[int], Path], compression: str
    ) -> list[Rewritten]:
        """What compaction does with rows."""
        records = [record for path in sources for record in msgspec.json.decode(self.live[path.as_posix()])]
        self.write(name(0).as_posix(), records)
        return [Rewritten(name(0), len(records), 10)]

    def after_kill(self) -> FakeDisk:
        """What is there after the death of the process alone: everything."""
        return FakeDisk(self.live)

    def after_power_cut(self, seed: int) -> FakeDisk:
        """What is there after a power cut: any mixture of old and new among the names not synced."""
        choose = random.Random(seed)
        left, live = dict(self.durable), self.live
        if self.exchanged is not None:
            if choose.random() < 0.5:
                left = exchange(left, *self.exchanged)
            else:
                live = exchange(live, *self.exchanged)
        for name in sorted({*live, *left}):
            if live.get(name) != left.get(name) and choose.random() < 0.5:
                put(left, name, live.get(name))
        return FakeDisk(left)


class FakeFiles:
    """`Files` of a directory on a `FakeDisk`."""

    parallel = 1

    def __init__(self, disk: FakeDisk, root: Path) -> None:
        self._disk = disk
        self._root = PurePosixPath(root.as_posix())

    def _at(self, path: str) -> str:
        return str(self._root / path)

    def exists(self, path: str) -> bool:
        return self._at(path) in self._disk.live

    def read(self, path: str) -> bytes:
        return self._disk.live[self._at(path)]

    def size(self, path: str) -> int:
        return len(self.read(path))

    def files_below(self, path: str, *, hidden: bool = False) -> list[str]:
        top = PurePosixPath(self._at(path))
        below = [PurePosixPath(name) for name in self._disk.live if PurePosixPath(name).is_relative_to(top)]
        kept = [
            name
            for name in below
            if hidden or not any(part.startswith(("_", ".")) for part in name.relative_to(top).parts[:-1])
        ]
        return sorted(str(name.relative_to(self._root)) for name in kept)

    def makedirs(self, path: str) -> None:
        self._disk.step()

    def create(self, path: str, data: bytes) -> bool:
        target = PurePosixPath(self._at(path))
        temporary = str(target.with_name(f".{target.name}.1"))
        disk = self._disk
        disk.step()
        disk.live[temporary] = data
        disk.step()
        if str(target) in disk.live:
            return False
        disk.live[str(target)] = data
        disk.step()
        del disk.live[temporary]
        self.sync_dir(str(target.parent))
        return True

    def rename(self, source: str, target: str) -> None:
        self._disk.step()
        self._disk.live[self._at(target)] = self._disk.live.pop(self._at(source))

    def remove(self, *paths: str) -> None:
        for path in paths:
            self._disk.step()
            del self._disk.live[self._at(path)]

    def remove_empty(self, path: str, prefix: str) -> None:
        self._disk.step()

    def exchange(self, one: str, other: str) -> None:
        self._disk.step()
        self._disk.exchanged = (self._at(one), self._at(other))
        self._disk.live = exchange(self._disk.live, *self._disk.exchanged)

    def sync_file(self, path: str) -> None:
        self._disk.step()

    def sync_dir(self, path: str) -> None:
        disk, directory = self._disk, self._at(path)
        disk.step()
        if disk.exchanged is not None and directory in {str(PurePosixPath(each).parent) for each in disk.exchanged}:
            disk.durable, disk.exchanged = exchange(disk.durable, *disk.exchanged), None
        for name in {*disk.live, *disk.durable}:
            if str(PurePosixPath(name).parent) == directory:
                put(disk.durable, name, disk.live.get(name))


def exchange(names: Names, one: str, other: str) -> Names:
    """The names after two directories changed places."""

    def renamed(name: str) -> str:
        for old, new in ((one, other), (other, one)):
            if PurePosixPath(name).is_relative_to(old):
                return str(PurePosixPath(new) / PurePosixPath(name).relative_to(old))
        return name

    return {renamed(name): data for name, data in names.items()}


def put(names: Names, name: str, data: bytes | None) -> None:
    if data is None:
        names.pop(name, None)
    else:
        names[name] = data

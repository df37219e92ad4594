"""A tree in memory and its copy in a directory are the same, whatever happens to the tree."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from eventbus.log import checkpoints
from eventbus.log.memory import MemoryStorage
from eventbus.log.reader import LogReader
from eventbus.log.storage import FileStorage, write_atomic
from eventbus.records import iter_batches
from eventbus.testing.storage import FaultyStorage, disk_full
from eventbus.types import TopicPartition
from tests.log.conftest import Logs

ORDERS = TopicPartition("orders", 0)


def tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def in_memory(storage: MemoryStorage) -> dict[str, bytes]:
    return {path: bytes(file.data) for path, file in storage.files().items()}


def change(storage: MemoryStorage, random: Random) -> None:
    """Something that may be done to a log's tree."""
    directories = [name for name in storage.listdir("") if name.startswith("d")]
    files = [f"{each}/{name}" for each in directories for name in storage.listdir(each)]
    at = random.choice(files) if files else ""
    match random.randrange(8) if files else min(len(directories), 1):
        case 0:
            storage.makedirs(f"d{random.randrange(4)}")
        case 1:
            storage.open(f"{random.choice(directories)}/{random.randrange(5)}", create=True)
        case 2:
            storage.open(at).truncate(random.randrange(20))
        case 3:
            storage.open(at).pwrite(random.randrange(20), random.randbytes(3))
        case 4:
            storage.remove(at)
        case 5:
            storage.rename(at, f"{random.choice(directories)}/{random.randrange(5)}")
        case 6:
            target = f"d{random.randrange(4)}"
            if not storage.exists(target):
                storage.rename(at.partition("/")[0], target)
        case _:
            storage.remove_tree(at.partition("/")[0])
    for path in files:
        if random.random() < 0.5 and storage.exists(path):
            storage.open(path).append(random.randbytes(random.randrange(10)))


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_goes_through_what_the_tree_goes_through(tmp_path: Path, seed: int) -> None:
    storage, random = MemoryStorage(), Random(seed)
    for _ in range(20):
        change(storage, random)
    copy = storage.copy_to(FileStorage(str(tmp_path)))
    for _ in range(100):
        change(storage, random)
        write_atomic(storage, "checkpoint", random.randbytes(4), sync=False)
        assert tree(tmp_path) == in_memory(storage)
    copy.close()
    before = tree(tmp_path)
    change(storage, random)
    write_atomic(storage, "checkpoint", b"later", sync=False)
    assert tree(tmp_path) == before, "it has ended"


def test_a_log_is_read_in_its_copy_as_far_as_it_was_published(tmp_path: Path, logs: Logs) -> None:
    storage = MemoryStorage()
    log = logs.open(storage, ORDERS, segment_bytes=2_000)
    logs.fill(log, 50)
    storage.copy_to(FileStorage(str(tmp_path)))
    reader = LogReader(str(tmp_path))
    assert reader.offsets("orders") == {0: (0, 0)}
    for end in (50, 90):
        logs.fill(log, end - log.log_end_offset)
        checkpoints.write_offsets(storage, checkpoints.LAST_STABLE_OFFSETS, {ORDERS: end}, sync=False)
        assert reader.offsets("orders") == {0: (0, end)}
        chunks = list(reader.read("orders", 0, 0, end))
        assert [batch.header.base_offset for chunk in chunks for batch in iter_batches(chunk)] == [*range(end)]


def test_a_full_disk_ends_the_copy_and_not_the_log(tmp_path: Path) -> None:
    storage = MemoryStorage()
    copy = storage.copy_to(FaultyStorage(FileStorage(str(tmp_path)), only=("append",), fail_at=1, error=disk_full))
    write_atomic(storage, "one", b"1", sync=False)
    write_atomic(storage, "two", b"2", sync=False)
    assert copy.error is not None
    assert copy.error.errno == errno.ENOSPC
    assert in_memory(storage) == {"one": b"1", "two": b"2"}

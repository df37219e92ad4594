"""The storages themselves: short writes, many files, locks between processes, and that all of them behave alike."""

from __future__ import annotations

import errno
import gc
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from eventbus.errors import ConfigError, LogLocked, StorageError, StorageFull
from eventbus.log import storage as storage_module
from eventbus.log.storage import (
    FileStorage,
    MemoryStorage,
    OutOfDescriptors,
    Storage,
    read_whole,
    storage_error,
    write_atomic,
)
from eventbus.testing.storage import CrashStorage, FaultyStorage, SimulatedCrash, disk_full
from tests.descriptors import open_descriptors

HOLD_THE_LOCK = """
import sys
from eventbus.log.storage import FileStorage
storage = FileStorage(sys.argv[1])
storage.lock()
print("locked", flush=True)
sys.stdin.read()
"""

FILL_THE_FILE = """
import resource, signal, sys
from eventbus.log.storage import FileStorage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = FileStorage(sys.argv[1]).open("f", create=True)
file.append(b"a" * 600)
try:
    file.append(b"b" * 600)
except OSError as error:
    print(error.errno, file.size)
file.truncate(file.size)
file.append(b"c" * 100)
print(file.size, file.pread(590, 1000))
"""


FORK = """
import os, sys
from eventbus.log.storage import FileStorage
storage = FileStorage(sys.argv[1])
storage.lock()
file = storage.open("f", create=True)
answer, told = os.pipe()
wait, go = os.pipe()
child = os.fork()
if not child:
    os.close(go)
    try:
        file.append(b"child")
    except OSError as error:
        os.write(told, str(error).encode())
    os.close(told)
    os.read(wait, 1)
    os._exit(0)
os.close(told)
print(os.read(answer, 1000).decode())
file.append(b"parent")
storage.unlock()
other = FileStorage(sys.argv[1])
other.lock()
print("free while the child lives")
os.write(go, b"!")
os.waitpid(child, 0)
"""


@pytest.fixture(params=["file", "memory", "crash", "faulty"])
def any_storage(request, tmp_path) -> Storage:
    return {
        "file": lambda: FileStorage(str(tmp_path)),
        "memory": MemoryStorage,
        "crash": CrashStorage,
        "faulty": lambda: FaultyStorage(FileStorage(str(tmp_path))),
    }[request.param]()


# -- what all of them do -----------------------------------------------------------------------------------------------


def test_a_file_grows_and_is_read_anywhere(any_storage):
    any_storage.makedirs("d")
    file = any_storage.open("d/f", create=True)
    file.append(b"hello ")
    file.append(memoryview(bytearray(b"world")))
    assert file.size == 11
    assert file.pread(0, 5) == b"hello"
    assert file.pread(6, 100) == b"world"
    assert file.pread(11, 5) == b""
    file.sync()
    file.close()
    assert any_storage.open("d/f").pread(0, 100) == b"hello world"


def test_a_file_is_cut_written_over_and_grows_on(any_storage):
    file = any_storage.open("f", create=True)
    file.append(b"0123456789")
    file.truncate(4)
    assert file.size == 4
    file.append(b"abc")
    file.pwrite(1, b"XY")
    assert (file.size, file.pread(0, 100)) == (7, b"0XY3abc")


def test_names(any_storage):
    any_storage.makedirs("t-0")
    for name in ("t-0/b", "t-0/a", "root"):
        any_storage.open(name, create=True).close()
    assert any_storage.listdir("t-0") == ["a", "b"]
    assert any_storage.listdir("") == ["root", "t-0"]
    any_storage.rename("t-0/a", "t-0/c")
    any_storage.remove("t-0/b")
    assert any_storage.listdir("t-0") == ["c"]
    any_storage.rename("t-0", "t-1")
    assert any_storage.exists("t-1/c")
    assert not any_storage.exists("t-0/c")
    any_storage.sync_dir("t-1")
    any_storage.remove_tree("t-1")
    assert any_storage.listdir("") == ["root"]


@pytest.mark.parametrize("act", [
    lambda storage: storage.open("missing"),
    lambda storage: storage.open("missing/f", create=True),
    lambda storage: storage.remove("missing"),
    lambda storage: storage.rename("missing", "m"),
    lambda storage: storage.listdir("missing"),
    lambda storage: storage.remove_tree("missing"),
])  # fmt: skip
def test_what_is_not_there_is_not_found(any_storage, act):
    with pytest.raises(FileNotFoundError):
        act(any_storage)


def test_a_file_is_replaced_whole(any_storage):
    write_atomic(any_storage, "f", b"a long first version", sync=True)
    any_storage.open("f.tmp", create=True).append(b"left over from a crash, and longer than what follows")
    write_atomic(any_storage, "f", b"second", sync=False)
    assert read_whole(any_storage, "f") == b"second"
    assert any_storage.listdir("") == ["f"]
    assert read_whole(any_storage, "none") is None


def test_no_two_ids_are_equal(any_storage):
    ids = {any_storage.unique_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(each) for each in ids} == {22}


# -- files of the operating system -------------------------------------------------------------------------------------


def test_short_writes_are_continued(tmp_path, monkeypatch):
    original = storage_module._pwrite
    monkeypatch.setattr(storage_module, "_pwrite", lambda fd, data, position: original(fd, data[:3], position))
    file = FileStorage(str(tmp_path)).open("f", create=True)
    file.append(b"0123456789")
    file.append(bytearray(b"abcd"))
    assert file.size == 14
    assert (tmp_path / "f").read_bytes() == b"0123456789abcd"


def test_a_large_append_is_written_in_pieces(tmp_path, monkeypatch):
    original, sizes = storage_module._pwrite, []

    def write(fd, data, position):
        sizes.append(len(data))
        return original(fd, data, position)

    monkeypatch.setattr(storage_module, "_pwrite", write)
    file = FileStorage(str(tmp_path)).open("f", create=True)
    data = bytes(range(256)) * 300
    for whole in (data, bytearray(data), memoryview(bytearray(data))):
        file.append(whole)
    assert (tmp_path / "f").read_bytes() == data * 3 and file.size == 3 * len(data)
    assert max(sizes) == 32_768


def test_a_write_that_makes_no_progress_is_a_full_disk(tmp_path, monkeypatch):
    file = FileStorage(str(tmp_path)).open("f", create=True)
    monkeypatch.setattr(storage_module, "_pwrite", lambda fd, data, position: 0)
    with pytest.raises(OSError, match="no more bytes"):
        file.append(b"x")


def test_short_reads_are_continued(tmp_path, monkeypatch):
    file = FileStorage(str(tmp_path)).open("f", create=True)
    file.append(b"0123456789")
    original = storage_module._pread
    monkeypatch.setattr(storage_module, "_pread", lambda fd, length, position: original(fd, min(length, 3), position))
    assert file.pread(1, 8) == b"12345678"
    assert file.pread(5, 100) == b"56789"


@pytest.mark.system
def test_a_real_file_that_may_not_grow(tmp_path):
    """The kernel takes a part of the last write before it refuses; a size limit stands for the full disk."""
    ran = subprocess.run([sys.executable, "-c", FILL_THE_FILE, tmp_path], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [f"{errno.EFBIG} 600", f"700 {b'a' * 10 + b'c' * 100!r}"]


def test_more_files_than_descriptors(tmp_path):
    storage = FileStorage(str(tmp_path), max_open_files=8)
    before = open_descriptors(tmp_path)
    files = [storage.open(f"f{number}", create=True) for number in range(50)]
    for turn in range(3):
        for number, file in enumerate(files):
            file.append(b"%d.%d " % (number, turn))
    assert open_descriptors(tmp_path) <= before + 8
    for number, file in enumerate(files):
        assert file.pread(0, 100) == b"%d.0 %d.1 %d.2 " % (number, number, number)
        file.sync()
        file.close()
    assert open_descriptors(tmp_path) == before
    storage.unlock()


def test_cached_descriptors_are_closed_before_one_is_missed(tmp_path, few_descriptors):
    storage = FileStorage(str(tmp_path))
    files = [storage.open(f"f{number}", create=True) for number in range(8)]
    few_descriptors(tmp_path, 8)
    storage.open("another", create=True).append(b"x")
    assert files[0].pread(0, 1) == b""
    few_descriptors(tmp_path, 0)
    storage.close_idle_files()
    with pytest.raises(OutOfDescriptors):
        files[1].append(b"x")


def test_an_idle_file_has_a_descriptor_only_while_it_is_held(tmp_path):
    storage = FileStorage(str(tmp_path))
    file = storage.open("f", create=True)
    file.idle()
    assert open_descriptors(tmp_path) == 0
    file.hold()
    file.sync()
    assert open_descriptors(tmp_path) == 1
    file.release()
    assert open_descriptors(tmp_path) == 0


def test_a_held_file_keeps_its_descriptor(tmp_path):
    """A worker thread syncs it while others are opened; a descriptor that changed hands would sync another file."""
    storage = FileStorage(str(tmp_path), max_open_files=2)
    held = storage.open("held", create=True)
    held.hold()
    fd = held._fd
    for number in range(10):
        storage.open(f"f{number}", create=True)
    assert held._fd == fd
    held.close()
    assert held._fd == fd, "closed while a flush needs it"
    held.sync()
    held.release()
    assert held._fd == -1


def test_a_file_deleted_during_its_flush_is_no_error(tmp_path):
    storage = FileStorage(str(tmp_path))
    file = storage.open("f", create=True)
    file.close()
    storage.remove("f")
    file.sync()
    other = storage.open("g", create=True)
    storage.remove("g")
    with pytest.raises(FileNotFoundError):
        other.sync()


def test_a_read_only_storage_changes_nothing(tmp_path):
    FileStorage(str(tmp_path)).open("f", create=True).append(b"x")
    storage = FileStorage(str(tmp_path), read_only=True)
    file = storage.open("f")
    assert file.pread(0, 1) == b"x"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append(b"y")
    with pytest.raises(FileNotFoundError):
        storage.open("g", create=True)


def test_a_closed_file_stays_closed(tmp_path):
    file = FileStorage(str(tmp_path)).open("f", create=True)
    file.close()
    with pytest.raises(OSError, match="is closed"):
        file.append(b"x")


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_of_the_system_get_our_names():
    full = storage_error(disk_full(), "appending to orders-0")
    assert isinstance(full, StorageFull)
    assert "appending to orders-0: the disk is full" in str(full)
    other = storage_error(OSError(errno.EMFILE, "Too many open files"), "opening orders-0")
    assert type(other) is StorageError
    assert "opening orders-0: Too many open files" in str(other)


# -- locks -------------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_second_process_is_told_who_holds_the_log(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "locked\n"
        storage = FileStorage(str(tmp_path))
        with pytest.raises(LogLocked) as refused:
            storage.lock()
        message = str(refused.value)
        assert f"process {holder.pid} on {socket.gethostname()}" in message
        assert f"eventbus serve {tmp_path}" in message
        holder.stdin.close()
    storage.lock()
    storage.unlock()


@pytest.mark.system
def test_the_lock_of_a_killed_process_is_free(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "locked\n"
        holder.kill()
    storage = FileStorage(str(tmp_path))
    storage.lock()
    assert (tmp_path / ".lock").read_text() == f"pid={os.getpid()} host={socket.gethostname()}\n"
    storage.unlock()


def test_one_process_locks_itself_out_by_name(tmp_path):
    first = FileStorage(str(tmp_path))
    first.lock()
    first.lock()
    with pytest.raises(LogLocked, match="this very process"):
        FileStorage(str(tmp_path)).lock()
    first.unlock()


def test_a_deleted_lock_file_lets_nobody_in_and_is_created_again(tmp_path):
    first, second = FileStorage(str(tmp_path)), FileStorage(str(tmp_path))
    first.lock()
    (tmp_path / ".lock").unlink()
    with pytest.raises(LogLocked, match="another process"):
        second.lock()
    assert first.check_root() == ""
    with pytest.raises(LogLocked, match="this very process"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


@pytest.mark.parametrize("is_link", [True, False])
def test_the_locked_directory_is_written_to_wherever_its_path_leads(tmp_path, is_link):
    path, locked, other = tmp_path / "data", tmp_path / ("a" if is_link else "moved"), tmp_path / "b"
    other.mkdir()
    if is_link:
        locked.mkdir()
        path.symlink_to(locked)
    storage = FileStorage(str(path), max_open_files=1)
    storage.lock()
    storage.makedirs("t-0")
    files = [storage.open(f"t-0/{name}", create=True) for name in "xyz"]
    reader = FileStorage(str(path), read_only=True) if is_link else None
    if is_link:
        path.unlink()
    else:
        path.rename(locked)
    path.symlink_to(other)
    for file in files:
        file.append(b"1")
        file.sync()
    storage.makedirs("t-1")
    write_atomic(storage, "t-1/new", b"2", sync=True)
    write_atomic(storage, "u", b"3", sync=True)
    storage.remove("t-0/z")
    storage.rename("t-0", "t-2")
    storage.remove_tree("t-1")
    assert storage.exists("t-2/x")
    assert storage.listdir("") == [".lock", "t-2", "u"] == sorted(entry.name for entry in locked.iterdir())
    assert storage.listdir("t-2") == ["x", "y"]
    assert reader is None or reader.open("u").pread(0, 9) == b"3", "a reader does not mix two directories"
    assert list(other.iterdir()) == []
    assert "does not lead to the directory of this log" in storage.check_root()
    successor = FileStorage(str(path))
    successor.lock()  # it has another directory
    successor.unlock()
    path.unlink()
    path.symlink_to(locked)
    assert storage.check_root() == ""
    storage.unlock()


def test_a_file_system_that_locks_no_directories_has_the_lock_file(tmp_path, monkeypatch):
    original = storage_module._try_lock

    def try_lock(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")  # NFS: only what is open for writing
        original(fd)

    monkeypatch.setattr(storage_module, "_try_lock", try_lock)
    first, second = FileStorage(str(tmp_path)), FileStorage(str(tmp_path))
    first.lock()
    with pytest.raises(LogLocked, match="this very process"):
        second.lock()
    (tmp_path / ".lock").unlink()
    second.lock()
    assert "Two processes write to" in first.check_root()
    second.unlock()
    assert first.check_root() == ""
    first.unlock()


def test_a_directory_that_is_replaced_while_it_is_locked_is_not_used(tmp_path, monkeypatch):
    """Its former owner deletes the directory between our open and our lock."""
    path = tmp_path / "data"
    original = storage_module._try_lock
    swaps = iter([True])

    def try_lock(fd):
        if next(swaps, False):
            path.rename(tmp_path / "gone")
        original(fd)

    monkeypatch.setattr(storage_module, "_try_lock", try_lock)
    storage = FileStorage(str(path))
    storage.lock()
    write_atomic(storage, "f", b"1", sync=False)
    assert (path / "f").read_bytes() == b"1" and storage.check_root() == ""
    storage.unlock()


def test_an_unsigned_lock_names_nobody(tmp_path):
    first = FileStorage(str(tmp_path))
    first.lock()
    (tmp_path / ".lock").write_bytes(b"")
    with pytest.raises(LogLocked, match="another process"):
        FileStorage(str(tmp_path)).lock()
    first.unlock()


@pytest.mark.system
def test_a_forked_child_can_neither_write_nor_keep_the_lock(tmp_path):
    ran = subprocess.run([sys.executable, "-c", FORK, tmp_path], capture_output=True, text=True, check=True, timeout=20)
    refusal, freed = ran.stdout.splitlines()
    assert "before a fork" in refusal
    assert freed == "free while the child lives"
    assert (tmp_path / "f").read_bytes() == b"parent"


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be used as a log"):
        FileStorage(str(tmp_path / "file" / "data")).lock()


# -- the crash model ---------------------------------------------------------------------------------------------------


def survivors(storage: CrashStorage) -> set[tuple[tuple[str, bytes], ...]]:
    return {tuple(sorted(storage.crash(Random(seed)).tree().items())) for seed in range(300)}


def test_what_was_synced_survives_and_nothing_else_must():
    storage = CrashStorage()
    file = storage.open("f", create=True)
    file.append(b"durable")
    file.sync()
    assert () in survivors(storage), "a name that was not synced may be lost"
    storage.sync_dir("")
    file.append(b"!" * 40)
    found = {dict(survivor)["f"] for survivor in survivors(storage)}
    assert all(content.startswith(b"durable") for content in found)
    assert {b"durable", b"durable" + b"!" * 40} < found
    assert any(len(content) < 47 for content in found - {b"durable"}), "never torn"
    assert any(b"\0" in content for content in found), "never zeros"


def test_writes_survive_in_any_order():
    storage = CrashStorage()
    file = storage.open("f", create=True)
    storage.sync_dir("")
    file.append(b"first.")
    file.append(b"second")
    assert b"\0" * 6 + b"second" in {dict(survivor)["f"] for survivor in survivors(storage)}


def test_a_rename_is_whole_or_not_at_all():
    storage = CrashStorage()
    write_atomic(storage, "f", b"old", sync=True)
    write_atomic(storage, "f", b"new", sync=True, sync_name=False)
    assert {dict(survivor).get("f") for survivor in survivors(storage)} == {b"old", b"new"}


def test_a_failed_sync_loses_what_can_still_be_read():
    storage = CrashStorage()
    file = storage.open("f", create=True)
    storage.sync_dir("")
    file.append(b"gone")
    storage.fail_sync = storage.syncs_count + 1
    with pytest.raises(OSError, match="write-back"):
        file.sync()
    file.sync()
    assert file.pread(0, 4) == b"gone"
    assert survivors(storage) == {(("f", b""),)}


def test_what_is_on_disk_is_torn_into_old_and_new_and_never_into_zeros():
    storage = CrashStorage()
    file = storage.open("f", create=True)
    file.append(b"old " * 10)
    file.sync()
    storage.sync_dir("")
    file.pwrite(0, b"new!" * 20)
    found = [dict(one)["f"] for one in survivors(storage)]
    assert any(b"\0" in content[40:] for content in found), "a file that grew may be longer than its bytes"
    assert any(content[:40] not in (b"old " * 10, b"new!" * 10) for content in found)
    for content in found:
        assert all(byte in (old, new) for byte, old, new in zip(content, b"old " * 10, b"new!" * 10, strict=False)), (
            content
        )


def test_after_the_crash_every_call_crashes():
    storage = CrashStorage()
    file = storage.open("f", create=True)
    storage.crash_at_call = storage.calls_count + 2
    file.append(b"x")
    for _ in range(2):
        with pytest.raises(SimulatedCrash):
            file.append(b"y")
    with pytest.raises(SimulatedCrash):
        storage.listdir("")
    assert storage.kill().open("f").pread(0, 9) == b"x"


def test_a_faulty_append_leaves_a_part_behind(tmp_path):
    storage = FaultyStorage(FileStorage(str(tmp_path)), fail_at=2, only=("append",), error=disk_full)
    file = storage.open("f", create=True)
    file.append(b"1234")
    with pytest.raises(OSError, match="No space"):
        file.append(b"5678")
    assert file.size == 4
    assert Path(tmp_path, "f").read_bytes() == b"123456"
    file.append(b"abcd")
    assert Path(tmp_path, "f").read_bytes() == b"1234abcd"


@pytest.mark.system
def test_a_storage_that_is_dropped_takes_its_descriptors_and_its_lock_along(tmp_path: Path) -> None:
    storage = FileStorage(str(tmp_path))
    storage.lock()
    file = storage.open("log", create=True)
    file.append(b"kept")
    descriptor = file._fd
    del storage, file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    again = FileStorage(str(tmp_path))
    again.lock()
    assert again.open("log").pread(0, 10) == b"kept"
    again.unlock()

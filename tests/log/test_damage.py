"""Damage where none may be: every byte of a small log flipped, every length cut to, every index spoiled.

Below the durable watermark nothing is ever cut, skipped or changed silently: the error names file and position, or the
flipped byte means nothing. Indexes and checkpoints are caches: a bad one is replaced.
"""

from __future__ import annotations

import logging
from random import Random

import pytest

from eventbus.errors import CorruptRecord
from eventbus.log import checkpoints, journal, recovery
from eventbus.log.commit import GroupCommit
from eventbus.log.inspect import verify
from eventbus.log.partition_log import PartitionLog
from eventbus.log.reader import LogReader
from eventbus.log.storage import FileStorage, MemoryStorage
from eventbus.records import iter_batches, read_header
from eventbus.testing.storage import CrashStorage
from eventbus.types import TopicPartition
from tests.tiers import quick

ORDERS = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
COUNT = 14
CONFIG = {"segment_bytes": 380, "index_interval_bytes": 100}


@pytest.fixture
def files(logs) -> dict[str, bytes]:
    """A log of a few small segments, closed in order: its files."""
    storage = MemoryStorage()
    log = logs.open(storage, **CONFIG)
    for number in range(COUNT):
        logs.append(log, timestamp_ms=NOW_MS + 10 * number)
    log.close()
    assert len(log.segments) == 4
    return {path: bytes(file.data) for path, file in storage._files.items()}


def restore(files: dict[str, bytes]) -> MemoryStorage:
    storage = MemoryStorage()
    storage.makedirs("orders-0")
    for path, content in files.items():
        storage.open(path, create=True).append(content)
    return storage


def log_paths(files: dict[str, bytes]) -> list[str]:
    return sorted(path for path in files if path.endswith(".log"))


def read_all(log: PartitionLog) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while offset < log.log_end_offset:
        for batch in iter_batches(log.read(offset, 350, max_offset=log.log_end_offset)):
            found.append(bytes(batch.buffer[batch.position : batch.position + batch.header.size_bytes]))
            offset = batch.header.next_offset
    return found


def open_and_read(storage: MemoryStorage, logs, **opening) -> list[bytes]:
    log = logs.open(storage, recovery_point=COUNT, **CONFIG, **opening)
    log.closed = True
    found = read_all(log)
    for timestamp_ms in (NOW_MS, NOW_MS + 55, NOW_MS + 10 * COUNT - 10):
        assert log.offset_for_timestamp(timestamp_ms) is not None
    return found


def without_epoch(batch: bytes) -> bytes:
    return batch[:12] + batch[16:]


# -- the log itself ----------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("flip", quick([0x01, 0x80, 0xFF], [0x01]), ids=hex)
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_every_flipped_byte_below_the_watermark_is_named_or_means_nothing(files, logs, clean, flip):
    want = open_and_read(restore(files), logs, clean_shutdown=clean)
    assert len(want) == COUNT
    harmless = 0
    for path in log_paths(files):
        for position in range(len(files[path])):
            content = bytearray(files[path])
            content[position] ^= flip
            storage = restore({**files, path: bytes(content)})
            try:
                found = open_and_read(storage, logs, clean_shutdown=clean)
            except CorruptRecord as error:
                assert path in str(error), (position, error)
                assert "position" in str(error)
                assert "eventbus log repair" in str(error)
                assert bytes(storage.open(path).data) == content, "damage was changed"
                continue
            harmless += 1
            assert found != want, "not even the flip is to be seen"
            assert [*map(without_epoch, found)] == [*map(without_epoch, want)], (path, position)
    assert harmless == 4 * COUNT, "the leader epochs, and nothing else"


@pytest.mark.system
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_every_cut_below_the_watermark_is_named(files, logs, clean):
    for path in log_paths(files):
        for size in range(len(files[path])):
            storage = restore({**files, path: files[path][:size]})
            with pytest.raises(CorruptRecord, match="orders-0"):
                open_and_read(storage, logs, clean_shutdown=clean)
            assert storage.open(path).size == size


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_missing_segment_is_named(files, logs, clean, number):
    left = {path: content for path, content in files.items() if path != log_paths(files)[number]}
    with pytest.raises(CorruptRecord, match=r"too early|does not join|offsets up to"):
        open_and_read(restore(left), logs, clean_shutdown=clean)


def test_good_batches_before_the_damage_are_read(files, logs):
    path = log_paths(files)[0]
    content = bytearray(files[path])
    content[-1] ^= 1
    log = logs.open(restore({**files, path: bytes(content)}), recovery_point=COUNT, clean_shutdown=True, **CONFIG)
    log.closed = True
    got = log.read(0, 1 << 20, max_offset=COUNT)
    last = [batch.header.next_offset for batch in iter_batches(got)][-1]
    with pytest.raises(CorruptRecord, match=f"{path} at position {len(got)} .offset {last}.: the CRC does not match"):
        log.read(last, 1 << 20, max_offset=COUNT)
    assert log.read(last, 1 << 20, max_offset=COUNT, check_crcs=False), "left to a client that checks"


@pytest.mark.parametrize("watermark", range(0, COUNT + 1, 2))
def test_only_what_lies_beyond_the_watermark_is_cut(files, logs, watermark, caplog):
    """The same damage at every place of the last segment's tail: cut or refused, by the watermark alone."""
    path = log_paths(files)[-1]
    base_offset = read_header(files[path]).base_offset
    batches = [batch.header for batch in iter_batches(files[path])]
    position = 0
    for header in batches:
        content = bytearray(files[path])
        content[position + 70] ^= 1
        storage = restore({**files, path: bytes(content)})
        caplog.clear()
        if header.base_offset < watermark:
            with pytest.raises(CorruptRecord, match=f"{path} at position {position} .offset {header.base_offset}"):
                logs.open(storage, recovery_point=watermark, **CONFIG)
        else:
            log = logs.open(storage, recovery_point=watermark, **CONFIG)
            assert log.log_end_offset == header.base_offset
            assert storage.open(path).size == position
            assert f"cutting {len(content) - position} bytes at position {position}" in caplog.text
            assert caplog.records[0].levelno == logging.WARNING
        position += header.size_bytes
    assert base_offset < COUNT


def test_segments_after_a_cut_go_too(files, logs, caplog):
    path = log_paths(files)[1]
    content = bytearray(files[path])
    content[70] ^= 1
    storage = restore({**files, path: bytes(content)})
    log = logs.open(storage, recovery_point=2, **CONFIG)
    assert log.log_end_offset == read_header(content).base_offset
    assert "dropping" in caplog.text
    assert log_paths({path: b"" for path in storage._files}) == log_paths(files)[:2]


# -- a watermark that nobody knows -------------------------------------------------------------------------------------


def test_without_a_watermark_a_torn_end_is_cut(files, logs):
    path = log_paths(files)[-1]
    storage = restore({**files, path: files[path][:-7]})
    log = logs.open(storage, recovery_point=recovery.UNKNOWN, **CONFIG)
    assert log.log_end_offset == COUNT - 1


def test_without_a_watermark_a_hole_is_not(files, logs):
    for number, path in enumerate(log_paths(files)):
        content = bytearray(files[path])
        content[70] ^= 1
        with pytest.raises(CorruptRecord, match=f"{path} at position 0"):
            logs.open(restore({**files, path: bytes(content)}), recovery_point=recovery.UNKNOWN, **CONFIG)
        assert number < 4


# -- indexes -----------------------------------------------------------------------------------------------------------


def check_answers(storage: MemoryStorage, logs, **opening) -> PartitionLog:
    log = logs.open(storage, recovery_point=COUNT, **CONFIG, **opening)
    for offset in range(COUNT):
        assert read_header(log.read(offset, 1, max_offset=COUNT)).base_offset == offset
    for timestamp_ms in range(NOW_MS - 5, NOW_MS + 10 * COUNT, 5):
        found = log.offset_for_timestamp(timestamp_ms)
        want = max(0, -(-(timestamp_ms - NOW_MS) // 10))
        assert found == ((want, NOW_MS + 10 * want) if want < COUNT else None)
    return log


@pytest.mark.system
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_no_flipped_byte_of_an_index_changes_an_answer(files, logs, clean):
    for path in sorted(files):
        if not path.endswith("index"):
            continue
        for position in range(len(files[path])):
            for flip in (0x01, 0x10, 0xFF):
                content = bytearray(files[path])
                content[position] ^= flip
                check_answers(restore({**files, path: bytes(content)}), logs, clean_shutdown=clean)
        logs.opened.clear()


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: None,
        lambda content: b"",
        lambda content: content[:-3],
        lambda content: content[: len(content) // 2],
        lambda content: content + bytes(96),
        lambda content: content + content,
        lambda content: b"\xff" * len(content),
        lambda content: Random(1).randbytes(240),
    ],
    ids=["deleted", "empty", "cut", "half", "preallocated", "doubled", "ones", "noise"],
)
def test_a_spoiled_index_is_rebuilt(files, logs, spoil, clean):
    spoiled = {path: spoil(content) if path.endswith("index") else content for path, content in files.items()}
    storage = restore({path: content for path, content in spoiled.items() if content is not None})
    log = check_answers(storage, logs, clean_shutdown=clean)
    log.close()
    log = check_answers(storage, logs, clean_shutdown=True)
    for batch in range(3):
        logs.append(log, timestamp_ms=NOW_MS + 1000 + batch)


def test_indexes_that_ran_ahead_are_written_over(logs, tmp_path):
    """A crash lost the log's tail, not the index of it; what comes instead gets entries of its own."""
    storage = FileStorage(str(tmp_path))
    log = logs.open(storage, index_interval_bytes=1)
    logs.fill(log, 20)
    log.close()
    storage.open(log.segments[0].path).truncate(log.size_bytes // 2)
    log = logs.open(storage, recovery_point=4, index_interval_bytes=1)
    logs.fill(log, 30, value_bytes=37)
    log.close()
    [report] = verify(str(tmp_path)).partitions
    assert (report.log_end_offset, report.index_damage) == (40, [])


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoints_have_the_format_of_kafka(storage):
    offsets = {TopicPartition("b-c", 11): 7, TopicPartition("a", 0): 1 << 40}
    checkpoints.write_offsets(storage, checkpoints.RECOVERY_POINTS, offsets, sync=True)
    file = storage.open("recovery-point-offset-checkpoint")
    assert file.pread(0, 100) == b"0\n2\na 0 1099511627776\nb-c 11 7\n"
    assert checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS) == offsets
    assert checkpoints.read_offsets(storage, checkpoints.HIGH_WATERMARKS) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"0", b"0\n", b"1\n0\n", b"0\n1\n", b"0\n1\na 0 5", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"0\n1\na 0 -5\n",
        b"0\n2\na 0 5\n", b"0\n2\na 0 5\na 0 6\n", b"0\n1\na 0 5 5\n", b"0\n1\na 0 05\n", b"\xff\n0\n", bytes(20),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_reported_and_not_used(storage, content, caplog):
    storage.open(checkpoints.RECOVERY_POINTS, create=True).append(content)
    assert checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS) is None
    assert "recovery-point-offset-checkpoint" in caplog.text
    assert "is damaged" in caplog.text


def test_the_mark_of_a_clean_shutdown_counts_once(storage):
    assert not checkpoints.take_clean_shutdown(storage)
    checkpoints.mark_clean_shutdown(storage)
    assert checkpoints.take_clean_shutdown(storage)
    assert not checkpoints.take_clean_shutdown(storage)


def test_meta_properties_keep_the_cluster_id(storage):
    assert checkpoints.load_or_create_meta(storage, "first") == "first"
    assert checkpoints.load_or_create_meta(storage, "second") == "first"
    content = read = storage.open("meta.properties").pread(0, 200)
    assert b"version=1\n" in content
    assert b"node.id=1\n" in read


# -- the journal -------------------------------------------------------------------------------------------------------


def journaled(logs) -> tuple[CrashStorage, int]:
    """Three logs, two of whose commits only the journal brought to the disk; and where its second frame starts."""
    storage = CrashStorage()
    group = GroupCommit(storage)
    opened = [logs.open(storage, TopicPartition("t", number)) for number in range(3)]
    sizes = []
    for _ in range(3):
        for log in opened:
            batch = logs.batch()
            log.append(batch, read_header(batch), NOW_MS)
            group.appended(log, batch)
        flush = group.begin()
        flush.run()
        group.complete(flush)
        sizes.append(group._journal.size_bytes)
    assert sizes[0] == 0 < sizes[1] < sizes[2]
    assert [(log.recovery_point, log.high_watermark) for log in opened] == [(1, 3)] * 3
    for log in opened:
        log.closed = True
    return storage, sizes[1]


def ends(storage: CrashStorage, logs) -> list[int]:
    journal.replay(storage)
    opened = [logs.open(storage, TopicPartition("t", number), recovery_point=1) for number in range(3)]
    assert not storage.exists(journal.JOURNAL) or not storage.open(journal.JOURNAL).size
    return [log.log_end_offset for log in opened]


def test_what_only_the_journal_holds_comes_back(logs):
    storage, _ = journaled(logs)
    for seed in range(20):
        assert ends(storage.crash(Random(seed)), logs) == [3, 3, 3]


@pytest.mark.system
def test_a_damaged_last_frame_is_a_torn_one(logs):
    storage, second = journaled(logs)
    size = storage.open(journal.JOURNAL).size
    for position in range(second, size, 5):
        survivor = storage.crash(Nothing())
        file = survivor.open(journal.JOURNAL)
        file.pwrite(position, bytes([file.pread(position, 1)[0] ^ 0x40]))
        assert ends(survivor, logs) == [2, 2, 2]


def test_a_damaged_frame_before_a_good_one_is_named(logs):
    storage, second = journaled(logs)
    for position in range(28, second, 5):
        survivor = storage.crash(Nothing())
        file = survivor.open(journal.JOURNAL)
        file.pwrite(position, bytes([file.pread(position, 1)[0] ^ 0x40]))
        with pytest.raises(CorruptRecord, match=f"{journal.JOURNAL} is damaged at position 0"):
            ends(survivor, logs)


class Nothing(Random):
    """A crash that keeps nothing that was not synced."""

    def choice(self, seq):
        return seq[0]


# -- the same, seen from outside ---------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(files, tmp_path) -> FileStorage:
    storage = FileStorage(str(tmp_path))
    storage.makedirs("orders-0")
    for path, content in files.items():
        storage.open(path, create=True).append(content)
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LAST_STABLE_OFFSETS):
        checkpoints.write_offsets(storage, name, {ORDERS: COUNT}, sync=False)
    return storage


@pytest.mark.system
def test_readers_and_verify_find_every_flipped_byte(on_disk, files):
    root = on_disk.root
    for path in log_paths(files):
        file = on_disk.open(path)
        starts = [batch.position for batch in iter_batches(files[path])]
        for position in range(0, len(files[path]), 3):
            original = files[path][position]
            file.pwrite(position, bytes([original ^ 0x20]))
            report = verify(root).partitions[0]
            start = max(start for start in starts if start <= position)
            if 12 <= position - start < 16:
                assert not report.damage
            else:
                assert path in report.damage
                with pytest.raises(CorruptRecord, match="orders-0"):
                    list(LogReader(root).read("orders", 0, 0, COUNT, 300))
            file.pwrite(position, bytes([original]))
    assert verify(root).ok
    assert len(b"".join(LogReader(root).read("orders", 0, 0, COUNT, 300))) == sum(
        len(files[path]) for path in log_paths(files)
    )

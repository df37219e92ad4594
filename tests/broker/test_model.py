"""The broker against a model so dumb that it is obviously right: a list of (timestamp, value) per partition.

Hypothesis drives both through the same steps, restarts of both kinds included, and compares all that can be read.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.errors import KafkaError, OffsetOutOfRange
from eventbus.log.storage import FileStorage, MemoryStorage
from eventbus.records import BatchBuilder, fetched_records
from eventbus.types import Compression, IsolationLevel, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tests.tiers import quick

pytestmark = pytest.mark.system

TOPICS = ("a", "b")
GROUPS = ("g", "h")
SEGMENT_BYTES = 300
RETENTION_MS = 50


class Model:
    """One partition: every record ever appended, and how many of the oldest are gone."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.start = 0
        self.readable = 0


class BrokerAgainstLists(RuleBasedStateMachine):
    directory: Path | None = None
    """Where to run; None: in memory."""
    fsync = "commit"

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1000
        self.ids = 0
        self.topics: dict[str, list[Model]] = {}
        self.offsets: dict[str, dict[TopicPartition, int]] = {group: {} for group in GROUPS}
        self.advanced: set[TopicPartition] = set()
        if self.directory is None:
            self.storage = MemoryStorage()
        else:
            self.root = Path(tempfile.mkdtemp(dir=self.directory))
            self.storage = FileStorage(str(self.root))
        self.shows_at_once = self.directory is None or self.fsync != "commit"

    @initialize()
    def open(self) -> None:
        config = BrokerConfig(
            fsync=self.fsync,
            log_retention_check_interval_ms=10,
            offsets_topic_num_partitions=2,
            offsets_topic_segment_bytes=SEGMENT_BYTES,
            log_defaults={"internal.segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 100},
        )
        self.broker = Broker.open(self.storage, config, now_ms=self.now_ms, new_id=self.new_id)
        self.broker.on_advance = self.advanced.add

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    # steps -----------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS), count=st.integers(0, 2), retained=st.booleans())
    def create(self, name: str, count: int, retained: bool) -> None:
        configs = {"retention.ms": -1 if retained else RETENTION_MS}
        result = self.broker.create_topics([TopicSpec(name, count, configs=configs)], self.now_ms)[name]
        assert isinstance(result, KafkaError) == (name in self.topics or count == 0)
        if not isinstance(result, KafkaError):
            self.topics[name] = [Model() for _ in range(count)]

    @rule(name=st.sampled_from(TOPICS))
    def delete(self, name: str) -> None:
        error = self.broker.delete_topics([name], self.now_ms)[name]
        assert (error is None) == (name in self.topics)
        self.topics.pop(name, None)
        for committed in self.offsets.values():
            for tp in [tp for tp in committed if tp.topic == name]:
                del committed[tp]

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        self.broker.add_partitions(name, len(self.topics[name]) + 1, self.now_ms)
        self.topics[name].append(Model())

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        values=st.lists(st.binary(max_size=40), min_size=1, max_size=4),
        age_ms=st.integers(-20, 60),
        codec=st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4]),
        trusted=st.booleans(),
    )
    def produce(self, data: st.DataObject, values: list[bytes], age_ms: int, codec: Compression, trusted: bool) -> None:
        tp = self.draw_partition(data)
        model = self.model(tp)
        builder = BatchBuilder(codec)
        for number, value in enumerate(values):
            builder.append(b"key", value, (), self.now_ms - age_ms + number)
        info = self.broker.produce(tp, builder.build(), self.now_ms, trusted=trusted)
        assert info.base_offset == len(model.records)
        model.records += [(self.now_ms - age_ms + number, value) for number, value in enumerate(values)]
        assert info.last_offset == len(model.records) - 1
        if self.shows_at_once:
            model.readable = len(model.records)

    @rule()
    def flush(self) -> None:
        if self.broker.needs_sync:
            flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)
        for partitions in self.topics.values():
            for model in partitions:
                model.readable = len(model.records)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), group=st.sampled_from(GROUPS), offset=st.integers(0, 9))
    def commit(self, data: st.DataObject, group: str, offset: int) -> None:
        tp = self.draw_partition(data)
        self.broker.groups.commit_offsets(group, {tp: OffsetAndMetadata(offset, group)}, self.now_ms)
        self.offsets[group][tp] = offset

    @rule(group=st.sampled_from(GROUPS))
    def forget(self, group: str) -> None:
        if self.offsets[group]:
            assert self.broker.groups.delete(group, self.now_ms) == len(self.offsets[group])
            self.offsets[group] = {}
        else:
            assert group not in [listing.group for listing in self.broker.groups.list()]

    @rule(passed_ms=st.integers(0, 40))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.broker.tick(self.now_ms)
        for name, partitions in self.topics.items():
            for number, model in enumerate(partitions):
                start = self.broker.list_offsets(TopicPartition(name, number), -2).offset
                # How much goes depends on where segments end; what may go does not.
                assert model.start <= start <= model.readable
                kept_too_long = self.now_ms - RETENTION_MS
                assert all(timestamp_ms < kept_too_long for timestamp_ms, _ in model.records[model.start : start])
                model.start = start

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """A killed process leaves all it wrote to the operating system."""
        if clean:
            self.broker.close(self.now_ms)
        elif self.directory is not None:
            self.storage.unlock()
            self.storage = FileStorage(str(self.root))
        self.open()
        for partitions in self.topics.values():
            for model in partitions:
                model.readable = len(model.records)

    # comparisons -----------------------------------------------------------------------------------------------------

    @invariant()
    def reads_agree(self) -> None:
        if not hasattr(self, "broker"):
            return
        for name, partitions in self.topics.items():
            assert self.broker.partition_count(name) == len(partitions)
            for number, model in enumerate(partitions):
                self.compare(TopicPartition(name, number), model)
        assert [t for t in self.broker.list_topics() if not t.startswith("__")] == sorted(self.topics)

    def compare(self, tp: TopicPartition, model: Model) -> None:
        fetch = self.broker.fetch
        data = fetch(tp, model.start, 1 << 20, IsolationLevel.READ_COMMITTED)
        assert (data.log_start_offset, data.high_watermark) == (model.start, model.readable)
        found: list[tuple[int, bytes | None]] = []
        offset = model.start
        while data.records:
            records = fetched_records(data.records, *tp, offset)
            found += zip(records.timestamps_ms, records.values, strict=True)
            offset = records.next_offset
            data = fetch(tp, offset, 1, IsolationLevel.READ_UNCOMMITTED)  # batch by batch from here on
        assert found == model.records[model.start : model.readable]
        for outside in (model.start - 1, len(model.records) + 1):
            with pytest.raises(OffsetOutOfRange):
                fetch(tp, outside, 100, IsolationLevel.READ_COMMITTED)
        assert self.broker.list_offsets(tp, -1) == (model.readable, -1)
        for when in (self.now_ms - 30, self.now_ms):
            assert self.broker.list_offsets(tp, when) == first_at(model, when), f"{tp} at {when}"

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "broker"):
            return
        for group, committed in self.offsets.items():
            expected = {tp: OffsetAndMetadata(offset, group) for tp, offset in committed.items()}
            assert self.broker.groups.fetch_offsets(group) == expected
        assert [listing.group for listing in self.broker.groups.list()] == sorted(
            group for group, committed in self.offsets.items() if committed
        )

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.check()
            self.broker.close(self.now_ms)
        if self.directory is not None:
            shutil.rmtree(self.root)

    # help ------------------------------------------------------------------------------------------------------------

    def draw_partition(self, data: st.DataObject) -> TopicPartition:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        return TopicPartition(name, data.draw(st.integers(0, len(self.topics[name]) - 1)))

    def model(self, tp: TopicPartition) -> Model:
        return self.topics[tp.topic][tp.partition]


def first_at(model: Model, when: int) -> OffsetAndTimestamp:
    for offset in range(model.start, len(model.records)):
        if model.records[offset][0] >= when:
            break
    else:
        return OffsetAndTimestamp(-1, -1)
    return (
        OffsetAndTimestamp(offset, model.records[offset][0]) if offset < model.readable else OffsetAndTimestamp(-1, -1)
    )


def run(machine: type[BrokerAgainstLists], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def machine_on(directory: Path | None, mode: str) -> type[BrokerAgainstLists]:
    return type("Machine", (BrokerAgainstLists,), {"directory": directory, "fsync": mode})


def test_in_memory() -> None:
    run(machine_on(None, "commit"), 40)


@pytest.mark.parametrize("mode", quick(["commit", "interval", "os"], 1))
def test_on_disk(tmp_path: Path, mode: str) -> None:
    run(machine_on(tmp_path, mode), 12)


@pytest.mark.slow
def test_in_memory_for_long() -> None:
    run(machine_on(None, "commit"), 1000)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["commit", "interval", "os"])
def test_on_disk_for_long(tmp_path: Path, mode: str) -> None:
    run(machine_on(tmp_path, mode), 200)

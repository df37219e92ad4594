"""Power cuts at any call of random workloads of topics, records and commits.

After each: what was acknowledged is there, what was deleted is not, and no record or offset of a deleted topic is met
in a new one of its name. The last tests plant bugs to show that they would be found.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from random import Random

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicDescription, TopicSpec
from eventbus.broker.broker import EARLIEST
from eventbus.broker.logs import Logs
from eventbus.records import BatchBuilder, fetched_records
from eventbus.testing.storage import CrashStorage, SimulatedCrash
from eventbus.types import OffsetAndMetadata, TopicPartition
from tests.tiers import of_today, quick

NOW_MS = 1_700_000_000_000
NAMES = ("a", "b")
GROUPS = ("g", "h", "i")
CONFIG = BrokerConfig(
    offsets_topic_num_partitions=2,
    offsets_topic_segment_bytes=600,
    log_defaults={"internal.segment.bytes": 400, "retention.ms": -1},
)

Key = tuple[str, str, int]
"""Group (or nothing), topic id, partition."""


class Machine:
    """A broker on a storage that can lose power, and what it may and must hold then."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.storage = CrashStorage()
        self.ids = 0
        self.number = 0
        self.exists: dict[str, str | None] = {}
        """By name: the id of the topic that must exist; None: none must."""
        self.may_be: dict[str, set[str | None]] = {name: set() for name in NAMES}
        """By name: other outcomes of the one call a power cut interrupted."""
        self.records: dict[Key, list[bytes]] = defaultdict(list)
        self.acked_records: dict[Key, int] = defaultdict(int)
        self.commits: dict[Key, list[int]] = defaultdict(list)
        self.acked_commits: dict[Key, int] = defaultdict(int)
        self.start()

    def start(self) -> None:
        self.broker = Broker.open(self.storage, CONFIG, now_ms=NOW_MS, new_id=self.new_id)

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    # work ------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        weights = {self.produce: 8, self.commit: 6, self.flush: 5, self.create: 3, self.delete: 2, self.restart: 1}
        self.random.choices(list(weights), list(weights.values()))[0]()

    def create(self) -> None:
        name = self.random.choice(NAMES)
        if self.exists.get(name) is not None:
            return
        coming = TopicIds(self).coming()
        self.may_be[name] = {coming}
        result = self.broker.create_topics([TopicSpec(name, 2)], NOW_MS)[name]
        assert isinstance(result, TopicDescription)
        assert result.topic_id == coming
        self.settle(name, coming)

    def delete(self) -> None:
        name = self.random.choice(NAMES)
        if self.exists.get(name) is None:
            return
        self.may_be[name] = {None}
        assert self.broker.delete_topics([name], NOW_MS)[name] is None
        self.settle(name, None)

    def settle(self, name: str, topic_id: str | None) -> None:
        self.exists[name] = topic_id
        self.may_be[name] = set()

    def pick(self) -> tuple[TopicPartition, str] | None:
        names = [name for name, topic_id in self.exists.items() if topic_id is not None]
        if not names:
            return None
        name = self.random.choice(names)
        topic_id = self.exists[name]
        assert topic_id is not None
        return TopicPartition(name, self.random.randrange(2)), topic_id

    def produce(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        tp, topic_id = picked
        builder = BatchBuilder()
        history = self.records["", topic_id, tp.partition]
        for _ in range(self.random.randint(1, 3)):
            self.number += 1
            value = b"%d." % self.number * self.random.randint(1, 9)
            builder.append(b"k", value, (), NOW_MS)
            history.append(value)
        self.broker.produce(tp, builder.build(), NOW_MS, trusted=True)

    def commit(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        tp, topic_id = picked
        group = self.random.choice(GROUPS)
        self.number += 1
        self.commits[group, topic_id, tp.partition].append(self.number)
        self.broker.groups.commit_offsets(group, {tp: OffsetAndMetadata(self.number)}, NOW_MS)

    def flush(self) -> None:
        if not self.broker.needs_sync:
            return
        flush = self.broker.begin_sync()
        flush.run()
        self.broker.complete_sync(flush)
        for acked, history in ((self.acked_records, self.records), (self.acked_commits, self.commits)):
            for key, values in history.items():
                acked[key] = len(values)
        if self.random.random() < 0.3:
            self.broker.publish_checkpoints(NOW_MS)

    def restart(self) -> None:
        if self.random.random() < 0.5:
            self.broker.close(NOW_MS)
        else:
            self.storage.kill()
        self.start()

    # the end of the world --------------------------------------------------------------------------------------------

    def power_cut(self) -> None:
        self.storage = self.storage.crash(self.random)
        self.start()
        self.check()
        before = self.seen()
        self.storage.kill()
        self.start()
        assert self.seen() == before, "a second recovery changed something"

    def seen(self) -> tuple[str, dict[str, bytes]]:
        """The state, and the files but for checkpoints and saved records, which may be newer the second time."""
        files = self.storage.tree()
        return repr(self.broker), {
            path: files[path] for path in files if not path.endswith(("-checkpoint", ".state", ".tmp"))
        }

    def check(self) -> None:
        """What is there is allowed, and from now on it is what must be there."""
        self.broker.check()
        for name in NAMES:
            found = self.broker.describe_topics([name])[0].topic_id if self.broker.has_topic(name) else None
            assert found in {self.exists.get(name), *self.may_be[name]}, f"{name}: {found}"
            self.settle(name, found)
            for partition in range(2):
                self.check_partition(TopicPartition(name, partition), found)

    def check_partition(self, tp: TopicPartition, topic_id: str | None) -> None:
        for group in GROUPS:
            found = self.broker.groups.fetch_offsets(group, [tp]).get(tp)
            if topic_id is None:
                assert found is None, f"{group} has an offset in {tp}, which does not exist"
                continue
            history = self.commits[group, topic_id, tp.partition]
            acked = self.acked_commits[group, topic_id, tp.partition]
            allowed = history[max(acked - 1, 0) :]
            assert found[0] in allowed if found else not acked, f"{group} in {tp}: {found}, allowed {allowed}"
            self.commits[group, topic_id, tp.partition] = [found[0]] if found else []
            self.acked_commits[group, topic_id, tp.partition] = 1 if found else 0
        if topic_id is not None:
            key = ("", topic_id, tp.partition)
            found_records = read_all(self.broker, tp)
            history = self.records[key]
            # Before the first flush of a partition, a power cut may keep the name of its second segment and not of its
            # first. Nothing of that was acknowledged, and what is left is in order, but it is no prefix.
            start = 0 if self.acked_records[key] or not found_records else history.index(found_records[0])
            assert found_records == history[start : start + len(found_records)], f"{tp}: not what was appended"
            assert len(found_records) >= self.acked_records[key], f"{tp}: acknowledged records are gone"
            self.records[key] = found_records
            self.acked_records[key] = len(found_records)


class TopicIds:
    """The id the next topic gets: the one after those made so far."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def coming(self) -> str:
        import base64

        return base64.urlsafe_b64encode((self.machine.ids + 1).to_bytes(16, "big")).rstrip(b"=").decode()


def read_all(broker: Broker, tp: TopicPartition) -> list[bytes]:
    values: list[bytes | None] = []
    offset = broker.list_offsets(tp, EARLIEST).offset
    while data := broker.fetch(tp, offset, 1 << 20).records:
        records = fetched_records(data, *tp, offset)
        values += records.values
        offset = records.next_offset
    return [value for value in values if value is not None]


def run(seed: int, cuts: int = 3, steps: int = 40) -> None:
    random = Random(seed)
    machine = Machine(random)
    for _ in range(cuts):
        # A cut at a call that is not reached in time happens between two steps instead.
        machine.storage.crash_at_call = machine.storage.calls_count + random.randint(1, 400)
        with contextlib.suppress(SimulatedCrash):
            for _ in range(steps):
                machine.step()
        machine.power_cut()


@pytest.mark.system
@pytest.mark.usefixtures("latest_records_are_saved_often")
@pytest.mark.parametrize("block", quick(range(5), 1))
def test_power_cuts(block: int) -> None:
    for seed in range(block * 60, (block + 1) * 60):
        run(seed)


@pytest.mark.usefixtures("latest_records_are_saved_often")
@pytest.mark.slow
def test_many_power_cuts() -> None:
    for seed in of_today(range(10_000, 11_600)):
        run(seed)


def found_by(seeds: range) -> bool:
    for seed in seeds:
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def test_metadata_that_is_not_flushed_would_be_found(monkeypatch) -> None:
    monkeypatch.setattr(Logs, "sync_metadata", lambda self, log: None)
    assert found_by(range(60))


def test_forgotten_offsets_would_be_found(monkeypatch) -> None:
    from eventbus.broker.groups import Groups

    monkeypatch.setattr(Groups, "forget_topics", lambda *_: [])
    assert found_by(range(60))

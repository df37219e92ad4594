"""The whole hard state after a life of everything at once equals the state after replay, however that life ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.broker.names import TRANSACTION_STATE
from eventbus.coordinator.requests import JoinGroup, JoinGroupResult, SyncGroupResult
from eventbus.errors import ConcurrentTransactions, KafkaError
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder
from eventbus.types import GroupMetadata, OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition
from tests.tiers import quick

START_MS = 1_700_000_000_000
TIMEOUT_MS = 30_000
TOPICS = ("a", "b", "k")
GROUPS = ("g", "h")
IDS = ("t0", "t1", "t2")
CONFIG = BrokerConfig(
    offsets_topic_num_partitions=2,
    offsets_topic_segment_bytes=1_000,
    transaction_state_log_num_partitions=2,
    transaction_state_log_segment_bytes=1_000,
    log_defaults={"internal.segment.bytes": 600, "index.interval.bytes": 100, "retention.ms": -1},
)


class Life:
    """A broker, and everybody who uses it."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.random = random
        self.now_ms = START_MS
        self.directory = directory
        self.ids = 0
        self.partitions: dict[str, int] = {}
        self.members: dict[str, tuple[str, str]] = {}
        """By member id: its group, and its instance id or nothing."""
        self.open: dict[str, ProducerIdAndEpoch] = {}
        self.sequences: dict[tuple[ProducerIdAndEpoch, TopicPartition], int] = {}
        self.broker = self.opened(directory)
        self.plain = self.broker.transactions.init_producer_id(None, 1, self.now_ms)

    def opened(self, directory: Path) -> Broker:
        return Broker.open(FileStorage(str(directory)), CONFIG, now_ms=self.now_ms, new_id=self.new_id)

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    def flush(self) -> None:
        while self.broker.needs_sync:
            flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)

    def step(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.produce: 8, self.in_transaction: 14, self.offsets_in_transaction: 4, self.end: 6, self.commit: 4,
            self.join: 4, self.leave: 1, self.topics: 2, self.clean: 1, self.delete_records: 1, self.time: 2,
            self.housekeeping: 1,
        }  # fmt: skip
        self.random.choices(list(steps), list(steps.values()))[0]()
        self.flush()

    def anywhere(self) -> TopicPartition | None:
        if not self.partitions:
            return None
        topic = self.random.choice(sorted(self.partitions))
        return TopicPartition(topic, self.random.randrange(self.partitions[topic]))

    def produce(self) -> None:
        tp = self.anywhere()
        if tp is not None:
            self.append(tp, self.plain, is_transactional=False)

    def append(self, tp: TopicPartition, producer: ProducerIdAndEpoch, *, is_transactional: bool) -> None:
        builder = BatchBuilder()
        for _ in range(self.random.randint(1, 3)):
            builder.append(self.random.choice([b"x", b"y"]), b"v" * self.random.randint(0, 60), (), self.now_ms)
        sequence = self.sequences.get((producer, tp), 0)
        batch = builder.build(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        self.broker.produce(tp, batch, self.now_ms)
        self.sequences[producer, tp] = sequence + builder.count

    def producer(self) -> tuple[str, ProducerIdAndEpoch]:
        transactional_id = self.random.choice(IDS)
        while transactional_id not in self.open:
            try:
                producer = self.broker.transactions.init_producer_id(transactional_id, TIMEOUT_MS, self.now_ms)
                self.open[transactional_id] = producer
            except ConcurrentTransactions:
                self.flush()
        return transactional_id, self.open[transactional_id]

    def in_transaction(self) -> None:
        tp = self.anywhere()
        if tp is None:
            return
        transactional_id, producer = self.producer()
        self.broker.transactions.add_partitions(transactional_id, producer, [tp], self.now_ms)
        self.append(tp, producer, is_transactional=True)

    def offsets_in_transaction(self) -> None:
        tp = self.anywhere()
        if tp is None:
            return
        transactional_id, producer = self.producer()
        offsets = {tp: OffsetAndMetadata(self.random.randint(0, 99), "in a transaction")}
        group = GroupMetadata("simple")
        self.broker.transactions.commit_offsets(transactional_id, producer, group, offsets, self.now_ms)

    def end(self) -> None:
        transactional_id, producer = self.producer()
        if self.random.random() < 0.2:
            del self.open[transactional_id]  # its process is gone: somebody else will take over
            return
        end = self.broker.transactions.end(
            transactional_id, producer, committed=self.random.random() < 0.6, now_ms=self.now_ms
        )
        self.open[transactional_id] = end.next

    def commit(self) -> None:
        tp = self.anywhere()
        if tp is not None:
            offsets = {tp: OffsetAndMetadata(self.random.randint(0, 99), "plain")}
            self.broker.groups.commit_offsets("simple", offsets, self.now_ms)

    def join(self) -> None:
        """A member joins, or all of a group rejoin; the leader assigns; some commit."""
        group = self.random.choice(GROUPS)
        instance = self.random.choice([None, None, "i1", "i2"])
        mine = {member_id: i for member_id, (g, i) in self.members.items() if g == group}
        answers: list[JoinGroupResult | KafkaError] = []
        for member_id, instance_id in [*mine.items(), ("", instance or "")]:
            if not member_id and instance_id and instance_id in mine.values():
                continue
            request = JoinGroup(
                group=group,
                member_id=member_id,
                group_instance_id=instance_id or None,
                protocols=(("range", b"metadata of %s" % member_id.encode()),),
                session_timeout_ms=1_000_000,
            )
            self.broker.groups.join(request, self.now_ms, answers.append)
        joined = [answer for answer in answers if isinstance(answer, JoinGroupResult)]
        if not joined:
            return
        newest = max(answer.generation_id for answer in joined)
        current = [answer for answer in joined if answer.generation_id == newest]
        known = {member.member_id: member.group_instance_id for answer in current for member in answer.members}
        self.members = {m: g for m, g in self.members.items() if g[0] != group}
        self.members.update({member_id: (group, instance_id or "") for member_id, instance_id in known.items()})
        leader = next(answer.leader_id for answer in current)
        assignments = {answer.member_id: b"share of " + answer.member_id.encode() for answer in current}
        ignored: list[SyncGroupResult | KafkaError] = []
        for answer in sorted(current, key=lambda one: one.member_id != leader):
            member = GroupMetadata(group, newest, answer.member_id, known.get(answer.member_id))
            shares = assignments if answer.member_id == leader else {}
            self.broker.groups.sync(member, shares, self.now_ms, ignored.append)
        tp = self.anywhere()
        if tp is not None:
            member = GroupMetadata(group, newest, leader, known.get(leader))
            self.broker.groups.commit_offsets(member, {tp: OffsetAndMetadata(newest, "member")}, self.now_ms)

    def leave(self) -> None:
        if self.members:
            member_id = self.random.choice(sorted(self.members))
            group, instance_id = self.members.pop(member_id)
            self.broker.groups.leave(group, [(member_id, instance_id or None)], self.now_ms)

    def topics(self) -> None:
        topic = self.random.choice(TOPICS)
        if topic not in self.partitions:
            configs = {"cleanup.policy": "compact"} if topic == "k" else {}
            self.broker.create_topics([TopicSpec(topic, 1, configs=configs)], self.now_ms)
            self.partitions[topic] = 1
        elif self.random.random() < 0.2:
            self.broker.delete_topics([topic], self.now_ms)
            del self.partitions[topic]
            self.sequences = {key: value for key, value in self.sequences.items() if key[1].topic != topic}
        elif self.partitions[topic] < 3:
            self.partitions[topic] += 1
            self.broker.add_partitions(topic, self.partitions[topic], self.now_ms)
        else:
            configs = {"max.message.bytes": self.random.randint(1_000, 9_000)}
            self.broker.alter_configs(topic, configs, [], self.now_ms)

    def clean(self) -> None:
        self.broker.clean_now(self.now_ms)

    def delete_records(self) -> None:
        tp = self.anywhere()
        if tp is not None and tp.topic != "k":
            self.broker.delete_records(tp, self.broker.list_offsets(tp, -1).offset // 2, self.now_ms)

    def time(self) -> None:
        self.now_ms += self.random.randint(1, 20_000)
        self.broker.tick(self.now_ms)
        timed_out = {one.transactional_id for one in self.broker.transactions.list() if one.state != "Ongoing"}
        self.open = {name: who for name, who in self.open.items() if name not in timed_out}

    def housekeeping(self) -> None:
        self.broker.publish_checkpoints(self.now_ms)


def hard_state(broker: Broker, *, cleaned: bool = True) -> dict[str, Any]:
    """Everything that must not depend on whether the process has lived through it or read it.

    ``cleaned=False`` leaves out what is known of producers where records were compacted or deleted: without the
    snapshots, that is not known any more, and not needed.
    """
    found: dict[str, Any] = {"broker": repr(broker).replace("GroupsShard() ", "").replace("TransactionsShard() ", "")}
    found["topics"] = [(topic.name, topic.topic_id, topic.configs) for topic in broker.describe_topics()]
    for group in sorted(listing.group for listing in broker.groups.list()):
        found[f"offsets of {group}"] = broker.groups.fetch_offsets(group)
    for listing in broker.transactions.list():
        found[f"transaction {listing.transactional_id}"] = broker.transactions.describe(listing.transactional_id)
    for tp, partition in sorted(broker._partitions.items()):
        log = partition.log
        if not log.log_end_offset:
            continue
        state = found[str(tp)] = {"offsets": (log.log_start_offset, log.log_end_offset)}
        if tp.topic != TRANSACTION_STATE:  # where the last record may wait for somebody else's flush
            state["watermarks"] = (log.last_stable_offset, log.high_watermark)
        is_whole = "compact" not in log.config.cleanup_policy and log.log_start_offset == 0
        if cleaned or is_whole:
            state["producers"] = repr(log.producers.states)
            state["aborted"] = list(log.producers.aborted)
    return found


def lived(directory: Path, seed: int, steps: int = 120) -> Life:
    life = Life(directory, Random(seed))
    life.topics()
    for _ in range(steps):
        life.step()
    return life


CACHES = {".state", ".snapshot", ".txnindex", ".index", ".timeindex"}


SEEDS_COUNT = 8
"""Of the quick tier."""


@pytest.mark.system
@pytest.mark.usefixtures("latest_records_are_saved_often")
@pytest.mark.parametrize("seed", quick(range(25), SEEDS_COUNT))
def test_replay_equals_life(tmp_path: Path, seed: int) -> None:
    life = lived(tmp_path / "log", seed)
    life.broker.check()
    live, without_caches = hard_state(life.broker), hard_state(life.broker, cleaned=False)
    killed, bare = tmp_path / "killed", tmp_path / "bare"
    for copy in (killed, bare):
        shutil.copytree(life.directory, copy)
    for cache in bare.rglob("*"):
        if cache.suffix in CACHES:
            cache.unlink()
    life.broker.close(life.now_ms)
    for directory in (life.directory, killed, bare):
        broker = life.opened(directory)
        cleaned = directory is not bare
        assert hard_state(broker, cleaned=cleaned) == (live if cleaned else without_caches), directory.name
        broker.check()
        broker.close(life.now_ms)


def test_the_lives_have_everything_in_them(tmp_path: Path) -> None:
    """So that the test above is about something, in the quick tier too."""
    seen: dict[str, bool] = {}
    for seed in range(SEEDS_COUNT):
        life = lived(tmp_path / str(seed), seed)
        state = hard_state(life.broker)
        text = repr(state)
        seen["open transactions"] = seen.get("open transactions", False) or "'Ongoing'" in text
        seen["pending offsets"] = seen.get("pending offsets", False) or "?" in state["broker"]
        seen["members"] = seen.get("members", False) or "share of" in text
        seen["aborted"] = seen.get("aborted", False) or any(
            value["aborted"] for key, value in state.items() if isinstance(value, dict) and "aborted" in value
        )
        seen["deleted records"] = seen.get("deleted records", False) or any(
            value["offsets"][0] for value in state.values() if isinstance(value, dict) and "offsets" in value
        )
        life.broker.close(life.now_ms)
        if all(seen.values()):
            return
    raise AssertionError(seen)

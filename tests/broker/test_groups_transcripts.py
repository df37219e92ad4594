"""The group coordinator, told in transcripts: ``transcripts/groups_*.txt``.

Commands; GROUP and MEMBER are names, a member keeps the id it was given last under its name::

    join GROUP MEMBER PROTOCOL=METADATA... [id=ID] [instance=ID] [session=MS] [rebalance=MS] [type=T] [known] [skip]
    sync GROUP MEMBER [MEMBER=ASSIGNMENT...] [gen=N] [type=T] [protocol=P]
    beat GROUP MEMBER [gen=N]          leave GROUP MEMBER...            leave GROUP instance=ID
    commit GROUP MEMBER|- TP=OFFSET... [gen=N] [pid=N]                  end PID commit|abort
    fetch GROUP [stable]               forget GROUP TP...               delete GROUP         forget-topic TOPIC
    list [STATE]                       describe GROUP
    tick +MS                           expire                           config KEY=VALUE
    restart                            drop-clients                     fail (the next append does)

METADATA ``@orders,flights`` is a consumer's subscription. After each command: what was stored, what was said to whom,
and how the group stands: its state and generation, its protocol, its members (``*`` leads, ``+join`` and ``+sync`` are
parked, ``?`` has not come back from the handshake).
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from eventbus.coordinator import Decision, GroupsShard, decode_offset_key, decode_offset_value
from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.codec import decode_group_key, decode_group_value
from eventbus.coordinator.consumer_protocol import decode_subscription, encode_subscription
from eventbus.coordinator.group_rules import GroupConfig, Turn
from eventbus.coordinator.requests import JoinGroup, JoinGroupResult, SyncGroupResult
from eventbus.errors import KafkaError, MemberIdRequired, StorageFull
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests import transcripts

FILES = sorted((Path(__file__).parent / "transcripts").glob("groups_*.txt"))
START_MS = 1_700_000_000_000


class GroupsMachine:
    """A `GroupsShard` over a list of records, and the members that talk to it."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.config = GroupConfig()
        self.ids = map(str, itertools.count(1))
        self.log: list[tuple[int | None, bytes | None, bytes | bool | None]] = []
        self.lines: list[str] = []
        self.member_ids: dict[str, str] = {}
        self.instances: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.fails = self.has_failed = False
        self.shard = self._new_shard()

    def _new_shard(self) -> GroupsShard:
        return GroupsShard(self.config, lambda: next(self.ids))

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        self.lines = []
        try:
            getattr(self, f"do_{name.replace('-', '_')}")(*words)
        except KafkaError as error:
            self.say("refused", error)
        groups = self.shard.groups
        self.lines += [f"  {groups[word]!r}" for word in words[:1] if word in groups]
        if name in ("tick", "restart", "drop-clients", "expire"):
            self.lines += [f"  {group!r}" for _, group in sorted(groups.items())] or ["  no groups"]
        assert repr(self._replayed()) == repr(self.shard), "live state is not the replayed state"
        return self.lines

    def say(self, who: str, what: object) -> None:
        if isinstance(what, KafkaError):
            self.lines += textwrap.wrap(f"{who}: {what.name}: {what}", 116, subsequent_indent="  ")
            return
        self.lines.append(f"{who}: {what}")

    # log -------------------------------------------------------------------------------------------------------------

    def execute(self, decision: Decision, producer_id: int | None = None):
        if self.fails and decision.records:
            self.fails, self.has_failed = False, True
            raise StorageFull("no space left")
        for key, value in decision.records:
            self.lines.append(f"stored {self._show(key, value)}")
            self.log.append((producer_id, key, value))
            self._fold(self.shard, *self.log[-1])
        return decision.reply

    def carry_out(self, decision: Decision[Turn]) -> None:
        failed = None
        try:
            turn = self.execute(decision)
        except StorageFull as error:
            turn, failed = decision.reply, error
        for reply, answer in turn.replies:
            reply(failed or answer)
        self.lines += [f"rebalance of {group}" for group in turn.rebalancing]

    @staticmethod
    def _fold(shard: GroupsShard, producer_id: int | None, key: bytes | None, value: bytes | bool | None) -> None:
        if key is None:
            shard.complete_transaction(producer_id, value)
        elif producer_id is None:
            shard.replay(key, value)
        else:
            shard.replay_pending(producer_id, key, value)

    def _replayed(self) -> GroupsShard:
        shard = self._new_shard()
        for entry in self.log:
            self._fold(shard, *entry)
        return shard

    def _show(self, key: bytes, value: bytes | None) -> str:
        offset_key = decode_offset_key(key)
        if offset_key is not None:
            text = "tombstone" if value is None else decode_offset_value(value).offset
            return f"offset {offset_key.group} {offset_key.topic_partition} {text}"
        group = decode_group_key(key)
        if value is None:
            return f"group {group} tombstone"
        stored = decode_group_value(value)
        members = " ".join(
            f"{member.member_id}{'' if member.group_instance_id is None else '=' + member.group_instance_id}"
            f":{show_metadata(member.subscription)}:{self.show_assignment(member.assignment)}"
            for member in stored.members
        )
        leader = "" if stored.leader_id is None else f", {stored.protocol_name} by {stored.leader_id}"
        return f"group {group} generation {stored.generation_id} of {stored.protocol_type}{leader} [{members}]"

    def hear(self, reply: Callable[[object], None]) -> Callable[[object], None]:
        """A reply on its way to the coordinator."""
        return reply

    metadata = staticmethod(lambda text: make_metadata(text))
    assignment = staticmethod(lambda text: text.encode())
    show_assignment = staticmethod(lambda data: data.decode() or "-")

    # members ---------------------------------------------------------------------------------------------------------

    def do_join(self, group: str, name: str, *words: str) -> None:
        options, protocols = {}, []
        for word in words:
            key, _, text = word.partition("=")
            if key in ("id", "instance", "session", "rebalance", "type", "known", "skip"):
                options[key] = text
            else:
                protocols.append((key, self.metadata(text)))
        if "instance" in options:
            self.instances[name] = options["instance"]
        request = JoinGroup(
            group=group,
            member_id=options.get("id", self.member_ids.get(name, "")),
            group_instance_id=options.get("instance"),
            client_id=name,
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(protocols),
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            require_known_member_id="known" in options,
            supports_skipping_assignment="skip" in options,
        )

        def reply(answer: JoinGroupResult | KafkaError) -> None:
            if isinstance(answer, MemberIdRequired):
                self.member_ids[name] = answer.member_id
            if isinstance(answer, KafkaError):
                self.say(name, answer)
                return
            self.member_ids[name], self.generations[name] = answer.member_id, answer.generation_id
            members = " ".join(f"{member.member_id}:{show_metadata(member.metadata)}" for member in answer.members)
            led = f"leads {members}" if answer.is_leader else f"led by {answer.leader_id}"
            skip = ", need not assign" if answer.skip_assignment else ""
            joined = f"joined generation {answer.generation_id} by {answer.protocol_name} as {answer.member_id}"
            self.say(name, f"{joined}, {led}{skip}")

        reply = self.hear(reply)
        try:
            decision = self.shard.join(request, reply, self.now_ms)
        except KafkaError as error:
            reply(error)
        else:
            self.carry_out(decision)

    def _metadata(self, group: str, name: str, options: dict[str, str]) -> GroupMetadata:
        generation_id = int(options.get("gen", self.generations.get(name, -1)))
        return GroupMetadata(group, generation_id, self.member_ids.get(name, ""), self.instances.get(name))

    def do_sync(self, group: str, name: str, *words: str) -> None:
        options = dict(word.split("=") for word in words)
        assignments = {self.member_ids.get(key, key): self.assignment(text) for key, text in options.items()}

        def reply(answer: SyncGroupResult | KafkaError) -> None:
            self.say(
                name,
                answer if isinstance(answer, KafkaError) else f"assigned {self.show_assignment(answer.assignment)}",
            )

        reply = self.hear(reply)
        try:
            decision = self.shard.sync(
                self._metadata(group, name, options), assignments, reply, self.now_ms,
                options.get("type"), options.get("protocol"),
            )  # fmt: skip
        except KafkaError as error:
            reply(error)
        else:
            self.carry_out(decision)

    def do_beat(self, group: str, name: str, *words: str) -> None:
        self.shard.heartbeat(self._metadata(group, name, dict(word.split("=") for word in words)), self.now_ms)

    def do_leave(self, group: str, *names: str) -> None:
        members = [
            ("", name.removeprefix("instance=")) if "=" in name
            else (self.member_ids.get(name, ""), self.instances.get(name))
            for name in names
        ]  # fmt: skip
        decision, errors = self.shard.leave(group, members, self.now_ms)
        for name, error in zip(names, errors, strict=True):
            self.say(name, "left" if error is None else error)
            self.member_ids.pop(name, None)
        self.carry_out(decision)

    # offsets and groups ----------------------------------------------------------------------------------------------

    def do_commit(self, group: str, name: str, *words: str) -> None:
        texts = dict(word.split("=") for word in words)
        producer_id = texts.pop("pid", None)
        member = self._metadata(group, name, texts)
        texts.pop("gen", None)
        offsets = {partition(text): OffsetAndMetadata(int(offset)) for text, offset in texts.items()}
        if producer_id is None:
            self.execute(self.shard.commit(member, offsets, self.now_ms))
        else:
            self.execute(self.shard.commit_in_transaction(member, offsets, self.now_ms), int(producer_id))

    def do_end(self, producer_id: str, how: str) -> None:
        self.log.append((int(producer_id), None, how == "commit"))
        self._fold(self.shard, *self.log[-1])

    def do_fetch(self, group: str, *stable: str) -> None:
        offsets = self.shard.fetch(group, None, require_stable=bool(stable))
        self.say("offsets", " ".join(f"{tp}={offset.offset}" for tp, offset in sorted(offsets.items())) or "none")

    def do_forget(self, group: str, *texts: str) -> None:
        self.execute(self.shard.delete_offsets(group, map(partition, texts)))

    def do_forget_topic(self, topic: str) -> None:
        self.execute(self.shard.delete_topics({topic}))

    def do_delete(self, group: str) -> None:
        self.execute(self.shard.delete_group(group))

    def do_list(self, *states: str) -> None:
        for group, protocol_type, state, _ in self.shard.list(states):
            self.say(group, f"{state} {protocol_type or '-'}")

    def do_describe(self, group: str) -> None:
        found = self.shard.describe(group)
        self.say(
            group, f"{found.state} {found.protocol_type or '-'} {found.protocol_name or '-'} {found.generation_id}"
        )
        for member in found.members:
            self.lines.append(
                f"  {member.member_id} {member.group_instance_id or '-'} {member.client_id} {member.client_host} "
                f"{show_metadata(member.metadata) or '-'} {self.show_assignment(member.assignment)}"
            )

    # time, restarts --------------------------------------------------------------------------------------------------

    def do_tick(self, forward: str) -> None:
        self.now_ms += int(forward)
        for decision in self.shard.tick(self.now_ms):
            self.carry_out(decision)

    def do_expire(self) -> None:
        self.execute(self.shard.expire_offsets(self.now_ms))

    def do_config(self, *words: str) -> None:
        self.config = self.config._replace(**{key: int(text) for key, text in (word.split("=") for word in words)})
        assert not self.log, "config comes first"
        self.shard = self._new_shard()

    def do_restart(self) -> None:
        self.shard = self._replayed()
        for decision in self.shard.start(self.now_ms):
            self.carry_out(decision)

    def do_drop_clients(self) -> None:
        for decision in self.shard.drop_clients(self.now_ms):
            self.carry_out(decision)

    def do_fail(self) -> None:
        self.fails = True


def partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def make_metadata(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    return encode_subscription(Subscription(topics=tuple(text[1:].split(","))))


def show_metadata(data: bytes) -> str:
    if not data.startswith(b"\0"):
        return data.decode()
    return "@" + ",".join(decode_subscription(data).topics)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_groups(path: Path, rewrite: bool) -> None:
    transcripts.check(path, GroupsMachine, rewrite)


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 8


def test_a_transcript_that_says_otherwise_fails(tmp_path: Path) -> None:
    path = tmp_path / "groups_x.txt"
    path.write_text("list\n----\ng: Stable consumer\n")
    with pytest.raises(AssertionError, match="says otherwise"):
        transcripts.check(path, GroupsMachine, rewrite=False)
    transcripts.check(path, GroupsMachine, rewrite=True)
    assert path.read_text() == "list\n----\n"


@pytest.mark.parametrize(("text", "says"), [("# alone\n", "without a command"), ("list\nno line\n", "comes '----'")])
def test_transcripts_that_cannot_be_read(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        transcripts.parse(text)

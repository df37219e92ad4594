"""Groups of the consumer protocol (KIP-848), told in transcripts: ``transcripts/consumer_groups_*.txt``.

The commands of `test_groups_transcripts`, and::

    topic NAME PARTITIONS              no-topic NAME                    new-topic NAME PARTITIONS (another id)
    hello GROUP MEMBER [topics=a,b] [regex=R] [instance=I] [assignor=A] [rebalance=MS] [id=ID]     joins with epoch 0
    alive GROUP MEMBER [topics=a,b] [regex=R] [epoch=N] [owned=TP,TP|-] [full]                     a heartbeat
    done GROUP MEMBER                  a heartbeat of a member that has done what it was told: it holds just that
    bye GROUP MEMBER [back]            leaves; ``back``: a static member that will be back
    may-fetch GROUP MEMBER [epoch=N]   who GROUP

After each command: what was stored, what was said, and the group: its state, epoch and target's epoch, and each member
with what it reads, its epoch, what it holds (``-`` gives up) and what it should hold.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import msgspec
import pytest

from eventbus.coordinator import GroupsShard
from eventbus.coordinator import consumer_group_records as records
from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.consumer_group_requests import ConsumerHeartbeat, TopicIdPartition
from eventbus.coordinator.consumer_group_topics import TopicsView
from eventbus.coordinator.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from eventbus.coordinator.topics import TopicState
from eventbus.errors import InvalidRegularExpression, KafkaError
from tests import transcripts
from tests.broker.test_groups_transcripts import GroupsMachine, partition

FILES = sorted((Path(__file__).parent / "transcripts").glob("consumer_groups_*.txt"))


class Client(msgspec.Struct):
    """What a member of the consumer protocol knows."""

    member_id: str
    epoch: int = 0
    instance_id: str | None = None
    told: frozenset[TopicIdPartition] = frozenset()


class ConsumerGroupsMachine(GroupsMachine):
    """A `GroupsShard` with topics, and members of both protocols."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicState] = {}
        self.topics_version = 0
        self.view = TopicsView(self.topics, lambda: self.topics_version)
        self.names: dict[str, str] = {}
        self.clients: dict[str, Client] = {}
        super().__init__()

    def _new_shard(self) -> GroupsShard:
        return GroupsShard(self.config, lambda: next(self.ids), self.view)

    def run(self, command: str) -> list[str]:
        super().run(command)
        name, *words = command.split()
        groups = self.shard.consumers.groups
        if name in ("tick", "restart"):
            if groups and self.lines[-1] == "  no groups":
                self.lines.pop()
            words = [*groups]
        self.lines += [f"  {groups[word]!r}" for word in sorted({*words} & {*groups})]
        of_two_kinds = [groups[both] for both in {*groups} & {*self.shard.groups}]
        assert not of_two_kinds or (self.has_failed and not any(group.members for group in of_two_kinds))
        self.lines = [self.named(line) for line in self.lines]
        return self.lines

    def named(self, line: str) -> str:
        for prefix, name in self.names.items():
            line = line.replace(prefix, name)
        return line

    # topics ----------------------------------------------------------------------------------------------------------

    def do_topic(self, name: str, partitions: str) -> None:
        known = self.topics.get(name)
        topic_id = self._new_topic_id(name) if known is None else known.topic_id
        self.topics[name] = TopicState(name, topic_id, int(partitions), {}, 0)
        self.topics_version += 1

    def _new_topic_id(self, name: str) -> str:
        number = len(self.names) + 1
        topic_id = number.to_bytes(4) * 4
        old = sum(other.rstrip("'") == name for other in self.names.values())
        self.names[topic_id.hex()[:8]] = name + "'" * old
        return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()

    def do_no_topic(self, name: str) -> None:
        del self.topics[name]
        self.topics_version += 1

    def do_new_topic(self, name: str, partitions: str) -> None:
        del self.topics[name]
        self.do_topic(name, partitions)

    def _ids(self, text: str) -> frozenset[TopicIdPartition]:
        found = [partition(part) for part in text.split(",") if part != "-"]
        return frozenset(TopicIdPartition(self.view.get(tp.topic).topic_id, tp.partition) for tp in found)

    # members of the consumer protocol --------------------------------------------------------------------------------

    def do_hello(self, group: str, name: str, *words: str) -> None:
        options = dict(word.split("=", 1) for word in words)
        client = self.clients.setdefault(name, Client(options.get("id", name)))
        client.member_id = options.get("id", client.member_id)
        client.instance_id = options.get("instance", client.instance_id)
        topics = tuple(filter(None, options["topics"].split(","))) if "topics" in options else None
        self._send(
            group, name, member_epoch=0, topics=topics, regex=options.get("regex"), owned=frozenset(),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)), assignor=options.get("assignor"),
        )  # fmt: skip

    def do_alive(self, group: str, name: str, *words: str) -> None:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        fields = {"rebalance_timeout_ms": 60_000} if "full" in words else {}
        self._send(
            group, name,
            member_epoch=int(options.get("epoch", self.clients[name].epoch)),
            topics=tuple(options["topics"].split(",")) if "topics" in options else None,
            regex=options.get("regex"),
            owned=self._ids(options["owned"]) if "owned" in options else None,
            **fields,
        )  # fmt: skip

    def do_done(self, group: str, name: str) -> None:
        client = self.clients[name]
        self._send(group, name, member_epoch=client.epoch, owned=client.told)

    def do_bye(self, group: str, name: str, *back: str) -> None:
        self._send(group, name, member_epoch=-2 if back else -1)

    def _send(self, group: str, name: str, **fields: object) -> None:
        client = self.clients[name]
        request = ConsumerHeartbeat(
            group=group, member_id=client.member_id, instance_id=client.instance_id, client_id=name, **fields
        )
        try:
            decision, result = self.shard.consumer_heartbeat(request, self.now_ms)
        except KafkaError as error:
            self.say(name, error)
            return
        would_fail = self.fails
        self.carry_out(decision)
        if would_fail and not self.fails:
            self.say(name, "not stored")
            return
        client.epoch, client.member_id = result.member_epoch, result.member_id
        text = f"epoch {result.member_epoch}"
        if result.assignment is not None:
            client.told = result.assignment
            text += f", may hold {self._partitions(result.assignment) or 'nothing'}"
        self.say(name, text)

    def _partitions(self, partitions: frozenset[TopicIdPartition]) -> str:
        return " ".join(f"{topic_id.hex()[:8]}-{number}" for topic_id, number in sorted(partitions))

    def do_may_fetch(self, group: str, name: str, *words: str) -> None:
        options = dict(word.split("=") for word in words)
        client = self.clients[name]
        self.shard.check_fetch(group, client.member_id, int(options.get("epoch", client.epoch)))
        self.say(name, "may")

    def do_who(self, group: str) -> None:
        found = self.shard.describe_consumers(group)
        self.say(group, f"{found.state} {found.group_epoch}/{found.assignment_epoch} by {found.assignor}")
        for member in found.members:
            kind = "classic" if member.uses_classic_protocol else "consumer"
            reads = ",".join(member.topics) + (f"~{member.regex}" if member.regex else "")
            self.lines.append(
                f"  {member.member_id} {member.instance_id or '-'} {member.client_id} {kind} {reads}@"
                f"{member.member_epoch} ({self._partitions(member.assignment)}) -> ({self._partitions(member.target)})"
            )

    # members of the classic protocol ---------------------------------------------------------------------------------

    def _metadata(self, group: str, name: str, options: dict[str, str]):
        client = self.clients.get(name)
        if client is None or name in self.member_ids:
            return super()._metadata(group, name, options)
        member = super()._metadata(group, name, {"gen": options.get("gen", str(client.epoch))})
        return member._replace(member_id=client.member_id, group_instance_id=client.instance_id)

    @staticmethod
    def metadata(text: str) -> bytes:
        """``@topics/owned``: what a cooperative member says it holds."""
        topics, _, owned = text.removeprefix("@").partition("/")
        held = tuple(map(partition, filter(None, owned.split(","))))
        return encode_subscription(Subscription(topics=tuple(topics.split(",")), owned_partitions=held))

    @staticmethod
    def assignment(text: str) -> bytes:
        return encode_assignment(map(partition, text.split(","))) if text else b""

    @staticmethod
    def show_assignment(data: bytes) -> str:
        return " ".join(map(str, sorted(decode_assignment(data)))) or "nothing"

    # log -------------------------------------------------------------------------------------------------------------

    def _show(self, key: bytes, value: bytes | None) -> str:
        if not records.is_consumer_group_key(key):
            return super()._show(key, value)
        read = records.read_key(key)
        kind = {3: "epoch", 5: "member", 6: "target of", 7: "target", 8: "current", 16: "regex"}[read.type]
        text = {
            3: lambda data: str(records.read_group(data)[0]),
            5: lambda data: self._show_member(data),
            6: lambda data: f"epoch {records.read_target_epoch(data)}",
            7: lambda data: self._partitions(records.read_target(data)) or "nothing",
            8: lambda data: self._show_current(data),
            16: lambda data: ",".join(records.read_regex(data).topics) or "nothing",
        }[read.type]
        words = [read.group, kind, read.name, "tombstone" if value is None else text(value)]
        return " ".join(filter(None, words))

    def _show_member(self, data: bytes) -> str:
        told = records.read_member(data)
        return ",".join(told["topics"]) + (f"~{told['regex']}" if told["regex"] else "")

    def _show_current(self, data: bytes) -> str:
        current = records.read_current(data)
        revoking = "".join(f" -{self._partitions(frozenset({tp}))}" for tp in sorted(current["revoking"]))
        held = self._partitions(frozenset(current["assigned"]))
        return f"{current['state'].name}@{current['epoch']} after {current['previous_epoch']} ({held}{revoking})"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_consumer_groups(path: Path, rewrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)  # the reasons for refusing a pattern are its own
    transcripts.check(path, ConsumerGroupsMachine, rewrite)


def test_a_stored_pattern_that_is_refused_now_keeps_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log was written by a server with google-re2; other members of the group must not get the error."""
    machine = ConsumerGroupsMachine()
    for command in ("topic tu 1", "topic x 1", "hello g a regex=t.*"):
        machine.run(command)

    def refuse(text: str) -> None:
        raise InvalidRegularExpression(text)

    monkeypatch.setattr("eventbus.coordinator.consumer_group_assigning.TopicPattern", refuse)
    machine.run("topic tv 1")
    machine.run("hello g b topics=x")
    group = machine.shard.consumers.groups["g"]
    assert group.regexes["t.*"].topics == ("tu",)
    assert len(group.members) == 2


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 8

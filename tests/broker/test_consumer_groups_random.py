"""Random requests to groups of the consumer protocol, from members of both protocols (KIP-848): no partition is held
twice, everybody is answered once, what is stored is the whole truth, and a group that is left alone comes to rest."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.coordinator.consumer_group import ConsumerGroupState
from eventbus.coordinator.consumer_group_member import MemberState
from eventbus.coordinator.group_rules import State, Timer
from tests.broker.test_consumer_groups_transcripts import ConsumerGroupsMachine
from tests.broker.test_groups_random import CountingMachine, command
from tests.tiers import quick

pytestmark = pytest.mark.system

CONSUMERS, CLASSICS = "abc", "xy"
consumers, classics = st.sampled_from(CONSUMERS), st.sampled_from(CLASSICS)
read = st.sampled_from(["topics=t", "topics=t,u", "topics=u", "regex=t.*", "regex=.* topics=u", "topics=t,u"])
more = st.sampled_from([""] * 5 + [" instance=i1", " instance=i2", " assignor=range", " rebalance=10000"])
news = st.sampled_from(["", "", " owned=-", " topics=u", " regex=u", " epoch=1", " full"])
generations = st.sampled_from(["", " gen=1", " pid=1"])
hello = command("hello g ", consumers, " ", read, more)
join = command("join g ", classics, " range=@", st.sampled_from(["t", "t,u", "t/t-0", "u/u-0"]), more.filter(
    lambda text: "assignor" not in text
))  # fmt: skip
commands = st.lists(
    st.one_of(
        hello,
        hello,
        command("done g ", consumers),
        command("done g ", consumers),
        command("alive g ", consumers, news),
        command("bye g ", consumers, st.sampled_from(["", " back"])),
        join,
        st.just("settle g"),
        command("sync g ", classics),
        command("beat g ", classics),
        command("leave g ", classics),
        command("commit g ", st.sampled_from(CONSUMERS + CLASSICS), " t-0=5", generations),
        command("topic ", st.sampled_from("tuv"), " ", st.sampled_from("1234")),
        command("no-topic ", st.sampled_from("uv")),
        command("new-topic t ", st.sampled_from("123")),
        command("tick +", st.sampled_from(["1", "9000", "46000"])),
        st.sampled_from(["restart", "fail", "who g", "list", "delete g", "expire", "end 1 commit"]),
    ),
    min_size=15,
    max_size=50,
)  # fmt: skip


class Machine(ConsumerGroupsMachine):
    """Topics only grow, and go only when they are there."""

    def __init__(self) -> None:
        self.told: list[int] = []
        super().__init__()

    hear = CountingMachine.hear

    def do_topic(self, name: str, partitions: str) -> None:
        known = self.topics.get(name)
        super().do_topic(name, str(max(int(partitions), known.partitions if known else 0)))

    def do_no_topic(self, name: str) -> None:
        if name in self.topics:
            super().do_no_topic(name)

    def possible(self, text: str) -> bool:
        word, *rest = text.split()
        return word not in ("done", "alive", "bye") or rest[1] in self.clients

    def settle(self) -> None:
        """Everybody does what it is told, classic members too, as clients do."""
        for name in CLASSICS:
            if name in self.member_ids:
                static = f" instance={self.instances[name]}" if name in self.instances else ""
                self.run(f"join g {name} range=@t/{static}")
                leads = {member: "t-0" for member in CLASSICS if member in self.member_ids}
                self.run(f"sync g {name} {' '.join(f'{member}={tp}' for member, tp in leads.items())}")
        for name in sorted(self.clients):
            self.run(f"done g {name}")


def check(machine: Machine) -> None:
    deadlines = machine.shard._deadlines
    for name, group in machine.shard.consumers.groups.items():
        held = collections.Counter(tp for one in group.members.values() for tp in (*one.assigned, *one.revoking))
        assert not held or max(held.values()) == 1, f"held twice: {group!r}"
        assert {tp: member_id for member_id, one in group.members.items() for tp in (*one.assigned, *one.revoking)} == (
            group.owners
        )
        assert group.static == {
            one.instance_id: member_id for member_id, one in group.members.items() if one.instance_id is not None
        }
        assert {*group.target} == {*group.members}
        shares = collections.Counter(tp for share in group.target.values() for tp in share)
        assert not shares or max(shares.values()) == 1, f"assigned twice: {group!r}"
        assert {*group.regexes} == {one.regex for one in group.members.values() if one.regex}
        assert group.epoch >= group.target_epoch
        for member_id, one in group.members.items():
            assert (name, Timer.SESSION, member_id) in deadlines
            assert (one.state is MemberState.UNREVOKED_PARTITIONS) >= bool(one.revoking)
            assert one.epoch <= group.target_epoch
            if one.state is MemberState.UNREVOKED_PARTITIONS and one.classic is None:
                assert one.is_away or (name, Timer.JOIN, member_id) in deadlines
    for name, group in machine.shard.groups.items():  # also one that could not be converted, because nothing was stored
        assert group.state is not State.PREPARING_REBALANCE or (name, Timer.JOIN, "") in deadlines
        assert group.state is not State.COMPLETING_REBALANCE or (name, Timer.SYNC, "") in deadlines
    for client in machine.clients.values():
        group = machine.shard.consumers.groups.get("g")
        one = None if group is None else group.members.get(client.member_id)
        if one is not None and client.epoch == one.epoch > 0 and one.classic is None and not machine.has_failed:
            assert client.told <= one.assigned.keys(), f"{client} was told more than {one!r} may hold"


EXAMPLES = pytest.mark.parametrize("examples", quick([50, 300], 1))


@EXAMPLES
def test_random_requests(examples: int) -> None:
    settings(max_examples=examples)(given(commands)(random_requests))()


def random_requests(given_commands: list[str]) -> None:
    machine = Machine()
    machine.run("topic t 3")
    epochs = collections.Counter[str]()
    for text in given_commands:
        if text == "settle g":
            machine.settle()
        elif machine.possible(text):
            machine.run(text)
        check(machine)
        assert max(machine.told, default=0) <= 1
        for name in {*epochs} - {*machine.shard.consumers.groups}:
            del epochs[name]
        for name, group in machine.shard.consumers.groups.items():
            assert group.epoch >= epochs[name] or machine.has_failed  # what was not stored may begin anew
            epochs[name] = group.epoch


@EXAMPLES
def test_a_group_that_is_left_alone_comes_to_rest(examples: int) -> None:
    settings(max_examples=examples)(given(commands)(left_alone))()


def left_alone(given_commands: list[str]) -> None:
    machine = Machine()
    machine.run("topic t 3")
    for text in given_commands:
        if text != "settle g" and machine.possible(text):
            machine.run(text)
    machine.fails = False
    machine.run("tick +200000")  # whoever is not heard of any more
    machine.run("tick +200000")
    machine.member_ids.clear()
    machine.clients.clear()
    machine.run("hello g p topics=t")
    machine.run("hello g q regex=[tu]")
    for _ in range(5):
        machine.run("done g p")
        machine.run("done g q")
    group = machine.shard.consumers.groups["g"]
    assert group.state is ConsumerGroupState.STABLE, repr(group)
    wanted = {
        (topic.name, number)
        for topic in machine.topics.values()
        if topic.name in "tu"
        for number in range(topic.partitions)
    }
    assert {(machine.view.name_of(tp.topic_id), tp.partition) for tp in group.owners} == wanted
    assert all(one.assigned.keys() == group.target[member_id] for member_id, one in group.members.items())
    assert all(machine.clients[name].told == group.target[machine.clients[name].member_id] for name in "pq")

"""Random requests to the group coordinator: nothing is inconsistent, nobody is answered twice or forgotten, and the
hard state is what replay gives (`GroupsMachine.run` compares after each command)."""

from __future__ import annotations

import collections
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.coordinator.group_rules import State, Timer
from tests.broker.test_groups_transcripts import GroupsMachine

groups = st.sampled_from("gh")
names = st.sampled_from("abcd")
protocols = st.sampled_from(
    ["range=x", "range=y", "range=@t", "range=@t,u", "sticky=x range=x", "coop=z range=z", "coop=z", ""]
)
options = st.sampled_from(
    [
        "",
        "",
        "",
        " known",
        " id=",
        " instance=i1",
        " id= instance=i1",
        " id= instance=i2 skip",
        " type=connect",
        " id=bogus",
    ]
)
timeouts = st.sampled_from(["", " session=6000 rebalance=20000", " session=30000 rebalance=9000", " session=1"])
generations = st.sampled_from(["", "", "", " gen=0", " gen=3"])


def command(*parts: st.SearchStrategy[str] | str) -> st.SearchStrategy[str]:
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


joins = command("join ", groups, " ", names, " ", protocols, options, timeouts)
syncs = command("sync ", groups, " ", names, " a=1 b=2 c=3", generations)
others = st.one_of(
    command("beat ", groups, " ", names, generations),
    command("leave ", groups, " ", names),
    command("leave ", groups, " instance=i1"),
    command("commit ", groups, " ", st.sampled_from("abcd-"), " t-0=5 u-1=6", generations),
    command("commit ", groups, " ", st.sampled_from("ab-"), " t-0=7 pid=", st.sampled_from("12"), generations),
    command("end ", st.sampled_from("12"), " ", st.sampled_from(["commit", "abort"])),
    command("forget ", groups, " t-0"),
    command("delete ", groups),
    command("forget-topic ", st.sampled_from("tu")),
    command("tick +", st.sampled_from(["1", "1000", "6000", "30000", "700000000"])),
    st.sampled_from(["restart", "drop-clients", "fail", "expire", "fetch g stable", "list", "describe g"]),
)
commands = st.lists(st.one_of(joins, joins, syncs, others), max_size=40)


class CountingMachine(GroupsMachine):
    """Counts what each request is told."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.told: list[int] = []
        self.config = self.config._replace(**config)
        self.shard = self._new_shard()

    def hear(self, reply: Callable[[object], None]) -> Callable[[object], None]:
        number = len(self.told)
        self.told.append(0)

        def counting(answer: object) -> None:
            self.told[number] += 1
            reply(answer)

        return counting


def check(machine: CountingMachine) -> None:
    deadlines = machine.shard._deadlines
    for name, group in machine.shard.groups.items():
        members = group.members
        ids = [member.member_id for member in members]
        assert members.joining_count == sum(member.joining is not None for member in members)
        counts = collections.Counter(name for member in members for name, _ in member.protocols)
        assert {name: count for name, count in members._supported.items() if count} == counts
        assert members.static == {m.group_instance_id: m.member_id for m in members if m.group_instance_id is not None}
        assert (members.leader_id in ids) == bool(ids)
        assert not ids or members.in_common()
        assert not group.pending & set(ids)
        assert (group.state is State.EMPTY) <= (not ids)
        if group.state is not State.PREPARING_REBALANCE:
            assert members.joining_count == 0
            assert bool(ids) == (group.state is not State.EMPTY)
        if group.state is not State.COMPLETING_REBALANCE:
            assert not any(member.syncing for member in members)
        if group.state is State.STABLE:
            assert group.stored is not None
            assert [stored.member_id for stored in group.stored.members] == ids
            assert [stored.assignment for stored in group.stored.members] == [member.assignment for member in members]
            assert group.stored.generation_id == group.generation_id
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            assert group.unsynced <= set(ids)
            assert not group.unsynced or (name, Timer.SYNC, "") in deadlines
        if group.state is State.PREPARING_REBALANCE:
            assert (name, Timer.JOIN, "") in deadlines  # it ends
        for member in members:
            waits = (member.joining is not None and not member.is_new) or member.syncing is not None
            assert waits != ((name, Timer.SESSION, member.member_id) in deadlines)
        assert all((name, Timer.SESSION, member_id) in deadlines for member_id in group.pending)


@settings(max_examples=300, deadline=None)
@given(commands, st.sampled_from([{}, {"group_max_size": 2}, {"group_initial_rebalance_delay_ms": 3000}]))
def test_random_requests(given_commands: list[str], config: dict[str, int]) -> None:
    machine = CountingMachine(config)
    generations = collections.Counter[str]()
    for text in given_commands:
        machine.run(text)
        check(machine)
        assert max(machine.told, default=0) <= 1
        if text == "restart":
            generations.clear()  # one that was not assigned was not stored, and is given out again
        for name in {*generations} - {*machine.shard.groups}:
            del generations[name]
        for name, group in machine.shard.groups.items():
            assert group.generation_id >= generations[name]
            generations[name] = group.generation_id


@settings(max_examples=100, deadline=None)
@given(commands)
def test_nobody_waits_for_ever(given_commands: list[str]) -> None:
    """Without restarts, storage errors and requests that are asked again, each is answered in the end."""
    machine = CountingMachine({})
    asked: dict[str, int] = {}
    replaced: set[int] = set()
    for text in given_commands:
        word, *rest = text.split()
        if word in ("restart", "fail"):
            continue
        before = len(machine.told)
        known = machine.member_ids.get(rest[1]) if len(rest) > 1 else None
        machine.run(text)
        if word in ("join", "sync") and len(machine.told) > before:
            key = f"{word} {rest[0]} {known}"
            if known and not {"id=", "id=bogus"} & set(rest) and key in asked:
                replaced.add(asked[key])
            asked[key] = before
    machine.run("tick +700000000")
    machine.run("tick +700000000")
    assert [number for number, told in enumerate(machine.told) if told != 1 and number not in replaced] == []
    assert all(group.state is State.EMPTY for group in machine.shard.groups.values())

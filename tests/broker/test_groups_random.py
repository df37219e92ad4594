"""Random requests to the group coordinator: nothing is inconsistent, nobody is answered twice or forgotten, and the
hard state is what replay gives (`GroupsMachine.run` compares after each command)."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.coordinator.group_rules import State, Timer
from tests.broker.test_groups_transcripts import GroupsMachine
from tests.tiers import quick

pytestmark = pytest.mark.system

MEMBERS = {"g": "abcd", "h": "ef"}
protocols = st.sampled_from(
    ["range=x"] * 4 + ["range=y", "range=@t", "range=@t,u", "sticky=x range=x", "coop=z range=z", "coop=z", ""]
)
options = st.sampled_from(
    [""] * 6 + [" known", " id=", " instance=i1", " id= instance=i1", " id= instance=i2 skip", " id=bogus"]
)
timeouts = st.sampled_from(["", "", "", " session=6000 rebalance=20000", " session=30000 rebalance=9000", " session=1"])
generations = st.sampled_from(["", "", "", " gen=0", " gen=3"])


def command(*parts: st.SearchStrategy[str] | str) -> st.SearchStrategy[str]:
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


def commands_of(group: str) -> st.SearchStrategy[str]:
    names = st.sampled_from(MEMBERS[group])
    join = command(f"join {group} ", names, " ", protocols, options, timeouts)
    return st.one_of(
        join,
        join,
        st.just(f"settle {group}"),
        st.just(f"settle {group}"),
        command(f"sync {group} ", names, " a=1 b=2 c=3", generations),
        command(f"beat {group} ", names, generations),
        command(f"leave {group} ", names),
        st.just(f"leave {group} instance=i1"),
        command(f"commit {group} ", names, " t-0=5 u-1=6", generations),
        command(f"commit {group} ", names, " t-0=7 pid=", st.sampled_from("12"), generations),
        st.just(f"commit {group} - t-0=6"),
        st.sampled_from([f"forget {group} t-0", f"delete {group}", f"fetch {group} stable", f"describe {group}"]),
    )


others = st.one_of(
    command("end ", st.sampled_from("12"), " ", st.sampled_from(["commit", "abort"])),
    command("forget-topic ", st.sampled_from("tu")),
    command("tick +", st.sampled_from(["1", "1000", "6000", "30000", "700000000"])),
    st.sampled_from(["restart", "drop-clients", "fail", "expire", "list"]),
)
commands = st.lists(st.one_of(*[commands_of("g")] * 4, commands_of("h"), others), min_size=20, max_size=60)


def expand(machine: GroupsMachine, text: str) -> list[str]:
    """``settle GROUP``: its members join again and fetch their assignment, as clients do."""
    word, _, group = text.partition(" ")
    if word != "settle":
        return [text]
    names = [name for name in MEMBERS[group] if name in machine.member_ids]
    static = {name: f" instance={machine.instances[name]}" for name in names if name in machine.instances}
    return [f"join {group} {name} range=s{static.get(name, '')}" for name in names] + [
        f"sync {group} {name} a=1 b=2 c=3" for name in names
    ]


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
        if group.state is State.STABLE and not machine.has_failed:  # a takeover that was not stored is tried again
            assert [stored.member_id for stored in group.stored.members] == ids
            assert [stored.assignment for stored in group.stored.members] == [member.assignment for member in members]
            assert group.stored.generation_id == group.generation_id
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            assert group.unsynced <= set(ids)
            is_completing = group.state is State.COMPLETING_REBALANCE
            assert not (group.unsynced or is_completing) or (name, Timer.SYNC, "") in deadlines  # it ends
        if group.state is State.PREPARING_REBALANCE:
            assert (name, Timer.JOIN, "") in deadlines  # it ends
        for member in members:
            waits = (member.joining is not None and not member.is_new) or member.syncing is not None
            assert waits != ((name, Timer.SESSION, member.member_id) in deadlines)
        assert all((name, Timer.SESSION, member_id) in deadlines for member_id in group.pending)


CONFIGS = st.sampled_from([{}, {"group_max_size": 2}, {"group_initial_rebalance_delay_ms": 3000}])
EXAMPLES = pytest.mark.parametrize("examples", quick([80, 500], 1))


@EXAMPLES
def test_random_requests(examples: int) -> None:
    settings(max_examples=examples)(given(commands, CONFIGS)(random_requests))()


def random_requests(given_commands: list[str], config: dict[str, int]) -> None:
    machine = CountingMachine(config)
    generations = collections.Counter[str]()
    for text in given_commands:
        for single in expand(machine, text):
            machine.run(single)
            check(machine)
        assert max(machine.told, default=0) <= 1
        if text == "restart":
            generations.clear()  # one that was not assigned was not stored, and is given out again
        for name in {*generations} - {*machine.shard.groups}:
            del generations[name]
        for name, group in machine.shard.groups.items():
            assert group.generation_id >= generations[name]
            generations[name] = group.generation_id


@EXAMPLES
def test_nobody_waits_for_ever(examples: int) -> None:
    settings(max_examples=examples)(given(commands)(nobody_waits_for_ever))()


def nobody_waits_for_ever(given_commands: list[str]) -> None:
    """Without restarts, storage errors and requests that are asked again, each is answered in the end."""
    machine = CountingMachine({})
    asked: dict[str, int] = {}
    replaced: set[int] = set()
    for text in given_commands:
        for single in expand(machine, text):
            word, *rest = single.split()
            if word in ("restart", "fail"):
                continue
            number = len(machine.told)
            known = machine.member_ids.get(rest[1]) if len(rest) > 1 else None
            machine.run(single)
            if len(machine.told) > number:
                key = f"{word} {rest[0]} {known}"
                if known and not {"id=", "id=bogus"} & set(rest) and key in asked:
                    replaced.add(asked[key])
                asked[key] = number
    machine.run("tick +700000000")
    machine.run("tick +700000000")
    assert [number for number, told in enumerate(machine.told) if told != 1 and number not in replaced] == []
    assert all(group.state is State.EMPTY for group in machine.shard.groups.values())

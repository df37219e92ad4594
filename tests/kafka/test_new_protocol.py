"""Groups of the new protocol (KIP-848) through kafka://: the broker assigns, and partitions move one by one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from eventbus.testing.conformance import PROMISES, Promise
from tests.kafka.side_by_side import side_by_side
from tests.kafka.targets import KillableServer, Node

pytestmark = pytest.mark.system

QUICK_HEARTBEATS = "group.consumer.heartbeat.interval.ms=100"
"""With the new protocol it is the broker that says how often members speak."""

ANOTHER = {
    "each_partition_has_one_reader (sticky)": "assignors are the broker's",
    "what_a_member_leaves_goes_to_the_others_from_its_last_commit (sticky)": "assignors are the broker's",
    "a_joiner_repeats_only_what_was_not_committed (sticky)": "assignors are the broker's",
    "an_assignor_of_ones_own_is_asked": "assignors are the broker's",
    "members_without_an_assignor_in_common_are_refused": "assignors are the broker's",
    "the_assignor_is_one_that_all_members_know": "assignors are the broker's",
    "listeners_hear_what_moves_as_the_assignor_moves_it (range)": "no assignor takes away what stays",
    "of_two_static_members_of_one_name_the_first_is_fenced": "the second is refused (UNRELEASED_INSTANCE_ID)",
    "a_member_that_an_admin_removes_is_out": "a member names itself, and comes back under its name",
    "a_commit_of_an_old_generation_is_refused": "an epoch from before counts for what is held since (KIP-1251)",
    "a_session_timeout_out_of_bounds_is_refused": "sessions are the broker's",
}
"""Promises of the classic protocol, and what the new one has in their place."""
PROMISED = [
    promise
    for promise in PROMISES
    if promise.area in ("groups", "members", "patterns") and not promise.needs and promise.name not in ANOTHER
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = KillableServer(tmp_path_factory.mktemp("new-protocol"), "--override", QUICK_HEARTBEATS)
    with node:
        yield node


@pytest.fixture(scope="module")
def kept(server: Node, request: pytest.FixtureRequest) -> dict[str, Future[None]]:
    return side_by_side(PROMISED, server, "test_promise", request, **{"group.protocol": "consumer"})


@pytest.mark.timeout(300)  # the first waits for them all
@pytest.mark.parametrize("promise", PROMISED, ids=repr)
def test_promise(kept: dict[str, Future[None]], promise: Promise) -> None:
    kept[promise.name].result()


def test_what_is_another_is_named() -> None:
    assert {promise.name for promise in PROMISES} > ANOTHER.keys()

"""Random events for `PartitionWork`, under all policies.

Its rules hold after every event, and no record is lost, repeated or called out of order. The driver's loop over a call
looks at ``Call.end`` alone, and no record of a call begins after the machine has closed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.client.handling.work_actions import Mode, Policy, Singly
from eventbus.recovery import Again, Skip, Stop, WaitHere
from tests.client.partition_works import Driver, check, move, records

KEYS: list[bytes | None] = [b"a", b"b", b"c", None]

policies = st.one_of(
    st.builds(Policy, batch=st.sampled_from([None, 3]), commit_every=st.sampled_from([None, 2])),
    st.builds(Policy, store_forwards_first=st.just(True)),
    st.builds(Policy, manual_ack=st.just(True), max_unfinished=st.sampled_from([4, 100])),
    st.builds(
        Policy,
        order=st.sampled_from(["key", "none"]),
        manual_ack=st.booleans(),
        call_records=st.sampled_from([1, 3]),
        key_queues=st.sampled_from([2, 64]),
        max_unfinished=st.sampled_from([6, 100]),
    ),
    st.builds(
        Policy,
        delivery=st.just("at-most-once"),
        slice_records=st.sampled_from([1, 4]),
        batch=st.sampled_from([None, 2]),
    ),
    st.builds(
        Policy,
        delivery=st.just("exactly-once"),
        slice_records=st.sampled_from([1, 4]),
        batch=st.sampled_from([None, 2]),
    ),
)
ends = st.sampled_from(["go on", "revoked", "lost"])
retry_orders = st.sampled_from(["none", "key", "partition"])
steps = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 7), st.integers(0, 7)), min_size=10, max_size=80)


class World:
    """Applies numbers as events, as far as they make sense."""

    def __init__(self, policy: Policy) -> None:
        self.driver = Driver(policy)
        self.policy = policy
        self.next_offset = 0
        self.now_ms = 0

    def step(self, what: int, which: int, how: int) -> None:
        driver, work = self.driver, self.driver.work
        if what in (0, 1):
            self._fetch(which, how)
        elif what in (2, 3):
            driver.call(self.now_ms)
        elif what in (4, 5, 6) and driver.calls:
            publishes = how == 0 and self.policy.delivery != "exactly-once" and not self.policy.manual_ack
            driver.returns(driver.calls[which % len(driver.calls)], publishes=publishes)
        elif what == 7 and driver.calls:
            self._fail(which, how)
        elif what in (8, 9):
            driver.commit(fails=how == 0, singly=which == 0)
        elif what == 10 and driver.outputs:
            tokens = list(driver.outputs)
            driver.stores(tokens[which % len(tokens)])
        elif what == 11 and self.policy.manual_ack and driver.begun:
            begun = list(driver.begun)
            driver.acknowledges(begun[which % len(begun)])
        elif what == 12 and driver.blocked.waiting:
            self._try_again(which)
        elif what == 13:
            self.now_ms += 500
        elif what == 14 and driver.calls and how < 3:
            driver.cut_off(driver.calls[which % len(driver.calls)])
        elif what == 15 and how == 0:
            work.end_slice()
        elif what == 15 and how == 1 and work.slice_count:
            driver.aborts()
        check(work)

    def _fetch(self, count: int, how: int) -> None:
        if self.driver.work.is_paused:
            return
        keys = [KEYS[(how + index * 3) % 4] for index in range(count)]
        fetch = records(self.next_offset, keys, step=1 + how % 2)
        if not count:
            fetch = records(self.next_offset, [], next_offset=self.next_offset + 1)
        self.next_offset = fetch.next_offset + how % 2
        self.driver.fetched(fetch)

    def _fail(self, which: int, how: int) -> None:
        driver = self.driver
        call = driver.calls[which % len(driver.calls)]
        if self.policy.delivery == "at-most-once":
            driver.raises(call, Stop() if how == 0 else Skip())
            return
        verdicts: list[Any] = [
            Skip(),
            move("retry"),
            move("retry"),
            move("dead"),
            Again(),
            WaitHere(1, ""),
            Stop(),
            Skip(),
        ]
        verdict = verdicts[how]
        if self.policy.batch and len(call.indexes) > 1 and isinstance(verdict, Again):
            verdict = Singly()
        driver.raises(call, verdict, now_ms=self.now_ms, is_clean=which < 4)

    def _try_again(self, which: int) -> None:
        """The delay queue handles the first record of a key; it never does before that is stored."""
        driver = self.driver
        waiting = driver.blocked.waiting
        offset = sorted(waiting)[which % len(waiting)]
        if driver.forwarded[offset]:
            del waiting[offset]

    # the end ---------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Every call returns, and everything is committed, until nothing is left to do."""
        driver, work = self.driver, self.driver.work
        for _ in range(500):
            self.now_ms += 1_000
            was_busy = driver.call(self.now_ms) is not None or bool(driver.calls or driver.outputs)
            for call in list(driver.calls):
                driver.returns(call)
            for token in list(driver.outputs):
                driver.stores(token)
            if self.policy.manual_ack:
                for offset in list(driver.begun):
                    driver.acknowledges(offset)
            was_busy = driver.commit() is not None or was_busy
            for offset in [offset for offset in sorted(driver.blocked.waiting) if driver.forwarded[offset]]:
                del driver.blocked.waiting[offset]
                was_busy = True
            check(work)
            if not was_busy:
                return
        raise AssertionError(f"it never ends: {work}")

    def accounts(self) -> None:
        """The outcome of each record is what the delivery mode promises."""
        driver, policy = self.driver, self.policy
        below = [offset for offset in driver.keys if offset < driver.committed]
        for offset in below:
            ways = bool(driver.handled[offset]) or offset in driver.acknowledged
            ways = ways or offset in driver.skipped or bool(driver.forwarded[offset])
            if policy.delivery == "at-most-once":
                is_lost = driver.is_lost and driver.work.error is not None  # it had stopped, and could not give back
                assert driver.begun[offset] == 1 or is_lost, f"{offset} is committed and was not called"
            else:
                assert ways, f"{offset} is committed, and nothing became of it"
        for offset in driver.keys:
            if policy.delivery == "at-most-once":
                assert driver.begun[offset] <= 1
            if policy.delivery == "exactly-once":
                assert driver.handled[offset] + driver.forwarded[offset] <= 1, f"{offset} counts twice"
                assert not driver.handled[offset] or offset < driver.committed
            assert driver.forwarded[offset] <= 1
            assert not driver.forwarded[offset] or offset < driver.committed, "forwarded without its offset"
        self._order_is_kept()

    def _order_is_kept(self) -> None:
        """First calls of a key are in the order of their offsets, and so are those of a partition in order."""
        driver, policy = self.driver, self.policy
        if policy.order == "none":
            return
        seen: set[int] = set()
        highest: dict[Any, int] = {}
        for offset in driver.order:
            key = driver.keys[offset] if policy.order == "key" else "all"
            if key is None or offset in seen:
                continue
            seen.add(offset)
            assert offset > highest.get(key, -1), f"{offset} was called after {highest[key]}"
            highest[key] = offset


def trial(policy: Policy, retry_order: Any, steps: Sequence[tuple[int, int, int]], end: str) -> None:
    if policy.delivery != "at-most-once":
        policy = msgspec.structs.replace(policy, retry_order=retry_order)
    world = World(policy)
    driver, work = world.driver, world.driver.work
    for step in steps:
        world.step(*step)
    if end == "revoked":
        work.revoked()
    elif end == "lost":
        work.lost()
        driver.is_lost = True
    check(work)
    begun = sum(driver.begun.values())
    world.finish()
    world.accounts()
    assert work.mode is Mode.OPEN or work.is_over
    if work.mode is Mode.OPEN:
        assert work.is_idle
        assert work.finished == work.committed
        assert not driver.keys or work.finished > max(driver.keys)
    elif end == "revoked" and policy.order == "partition":
        assert sum(driver.begun.values()) == begun, "a record is begun although the partition is revoked"


@settings(max_examples=60, deadline=None)
@given(policies, retry_orders, steps, ends)
def test_no_record_is_lost_repeated_or_reordered(
    policy: Policy, retry_order: str, steps: list[tuple[int, int, int]], end: str
) -> None:
    trial(policy, retry_order, steps, end)


@pytest.mark.slow
@settings(max_examples=5_000, deadline=None)
@given(policies, retry_orders, steps, ends)
def test_no_record_is_lost_repeated_or_reordered_in_many_trials(
    policy: Policy, retry_order: str, steps: list[tuple[int, int, int]], end: str
) -> None:
    trial(policy, retry_order, steps, end)

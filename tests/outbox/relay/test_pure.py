"""Logic that needs neither a database nor a log: receipts, shares of shards, paces, lags, and dead relays."""

from __future__ import annotations

import os
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.errors import ConfigError, InvalidRecord, RecordTooLarge, RequestTimedOut, TransactionAborted
from outbox.relay import hosts
from outbox.relay.metrics import LAG_BOUNDS_MS, RelayMetrics
from outbox.relay.poison import is_poison, poison_in, reason_of
from outbox.relay.polling import Pace
from outbox.relay.receipts import LONGEST_BYTES, Part, decode, encode, fits, part_of, spans
from outbox.relay.shard_leases import Change, OtherRelay, fair_change
from outbox.relay.work import cut

pytestmark = pytest.mark.system

# receipts ------------------------------------------------------------------------------------------------------------

ids = st.lists(st.integers(1, 1 << 62), unique=True, min_size=1, max_size=200).map(sorted).map(tuple)
parts = st.builds(Part, ids, st.integers(0, (1 << 32) - 1))


@given(st.lists(parts, max_size=3))
def test_a_receipt_says_which_rows(given: list[Part]) -> None:
    text = encode(given)
    assert decode(text) == given
    assert text.isascii()


@given(ids)
def test_spans_are_these_ids_and_no_others(given: tuple[int, ...]) -> None:
    found = spans(given)
    assert sum(last - first + 1 for first, last in found) == len(given)
    assert all(first in given and last in given for first, last in found)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))


def test_thousands_of_rows_of_a_quarter_of_the_shards_fit_into_a_receipt() -> None:
    chosen = sorted(random.Random(1).sample(range(10**9, 10**9 + 8_000), 2_000))
    assert fits(encode([part_of(chosen, map(str, chosen))]))


def test_a_batch_is_cut_to_what_a_receipt_can_name() -> None:
    chosen = sorted(random.Random(1).sample(range(1 << 60), 2_000))
    rows = [(one, f"{one:036}", "t", None, None, None, None, 0, None) for one in chosen]
    fitting = cut(list(rows), ())
    assert fitting is not None
    some, part, receipt = fitting
    assert 100 < len(some) < len(rows)
    assert len(receipt.encode()) <= LONGEST_BYTES
    assert decode(receipt) == [part] == [part_of(chosen[: len(some)], [row[1] for row in some])]
    assert cut(list(rows), [part_of(chosen, [row[1] for row in rows])]) is None


def test_the_order_of_event_ids_counts() -> None:
    assert part_of([1, 2], ["a", "b"]).crc != part_of([1, 2], ["b", "a"]).crc


@pytest.mark.parametrize("text", ["2abc", "1", "1!!!", "0", "offset of somebody else"])
def test_what_is_no_receipt_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="receipt"):
        decode(text)


def test_no_receipt_names_nothing() -> None:
    assert decode("") == []


# shares --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 64), st.randoms(use_true_random=False))
def test_relays_come_to_fair_shares_and_stay_there(relays: int, shards: int, chance: random.Random) -> None:
    owners: dict[int, int | None] = {shard: chance.choice((None, *range(relays))) for shard in range(shards)}
    for turn in range(4 * relays):
        relay = turn % relays
        mine = {shard for shard, owner in owners.items() if owner == relay}
        free = [shard for shard, owner in owners.items() if owner is None]
        change = fair_change(mine, free, relays, shards)
        owners.update(dict.fromkeys(change.release))
        owners.update(dict.fromkeys(change.take, relay))
        if turn >= 2 * relays:
            assert change == Change()
    counts = [sum(owner == relay for owner in owners.values()) for relay in range(relays)]
    assert sum(counts) == shards
    assert max(counts) <= -(-shards // relays)


# paces ---------------------------------------------------------------------------------------------------------------


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def test_waits_for_rows_grow_and_begin_anew() -> None:
    pace = Pace((5, 100), 1_000, middle)
    assert [pace.idle() for _ in range(7)] == [0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1]
    pace.woken()
    assert pace.idle() == 0.005
    pace.published(10, 100)
    assert pace.idle() == 0.002
    assert pace.idle() == 0.004


def test_waits_after_failures_grow_up_to_ten_seconds() -> None:
    pace = Pace((5, 100), 1_000, middle)
    waits = [pace.failed() for _ in range(12)]
    assert waits[:4] == pytest.approx([0.075, 0.15, 0.3, 0.6])
    assert waits[-1] == 7.5
    pace.published(1, 1)
    assert pace.failed() == pytest.approx(0.075)


def test_batches_grow_to_what_was_asked_for() -> None:
    pace = Pace((5, 100), 1_000, middle)
    sizes: list[int] = []
    for _ in range(5):
        sizes.append(pace.rows)
        pace.published(pace.rows, 100 * pace.rows)
    assert sizes == [128, 256, 512, 1_000, 1_000]
    pace.published(1, 100)
    assert pace.rows == 1_000


def test_batches_of_large_rows_are_small() -> None:
    pace = Pace((5, 100), 1_000, middle)
    pace.published(pace.rows, pace.rows * 1_048_576)
    assert pace.rows == 8


def test_a_row_that_is_refused_comes_to_stand_alone() -> None:
    pace = Pace((5, 100), 1_000, middle)
    pace.refused(100)
    assert pace.rows == 50
    pace.refused(50)
    pace.refused(25)
    assert pace.rows == 12
    pace.refused(1)
    assert pace.rows == 1


# errors --------------------------------------------------------------------------------------------------------------


def test_what_is_a_records_own_fault() -> None:
    assert is_poison(RecordTooLarge("x"))
    assert not is_poison(RequestTimedOut("x"))
    aborted = TransactionAborted("y")
    aborted.__cause__ = InvalidRecord("x")
    assert poison_in(aborted) is aborted.__cause__
    assert poison_in(TransactionAborted("z")) is None
    assert reason_of(RecordTooLarge("a\0b")) == "RecordTooLarge: ab"


# metrics -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-10_000, 10**7), min_size=1))
def test_lags_are_counted(lags: list[int]) -> None:
    metrics = RelayMetrics(outbox="o")
    metrics.add_lags([10**12 - lag for lag in lags], 10**12)
    expected = [0] * (len(LAG_BOUNDS_MS) + 1)
    for lag in lags:
        expected[next((n for n, bound in enumerate(LAG_BOUNDS_MS) if lag <= bound), len(LAG_BOUNDS_MS))] += 1
    assert metrics.lag_buckets == expected
    assert metrics.lag_sum_ms == sum(max(lag, 0) for lag in lags)
    samples = {sample.name: sample.value for sample in metrics.samples()}
    assert samples["eventbus_outbox_lag_seconds_count"] == len(lags)


def test_the_lag_that_most_have_kept() -> None:
    metrics = RelayMetrics(outbox="o")
    metrics.add_lags([1_000 - 3] * 99 + [1_000 - 80], 1_000)
    assert metrics.lag_ms(0.5) == 5
    assert metrics.lag_ms(1) == 100
    metrics.add_lags([0], 10**9)
    assert metrics.lag_ms(1) == float("inf")


# hosts ---------------------------------------------------------------------------------------------------------------


def other(host: str, token: str = "t") -> OtherRelay:
    return OtherRelay(0, token, host, 0)


def test_a_relay_of_this_process_is_gone_when_it_has_ended() -> None:
    hosts.lives("mine")
    assert not hosts.is_gone(other(hosts.this_host(), "mine"))
    hosts.ends("mine")
    assert hosts.is_gone(other(hosts.this_host(), "mine"))


def test_a_process_that_is_not_there_is_gone() -> None:
    here = hosts.this_host()
    child = os.spawnvp(os.P_NOWAIT, "true", ["true"])
    dead = here.replace(f"/{os.getpid()}@", f"/{child}@")
    os.waitpid(child, 0)
    assert hosts.is_gone(other(dead))
    assert not hosts.is_gone(other(here.replace(f"/{os.getpid()}@", "/1@")))


@pytest.mark.parametrize("host", ["elsewhere/99999999@00000000", "elsewhere", "", "a/b@"])
def test_of_other_machines_nothing_is_known(host: str) -> None:
    assert not hosts.is_gone(other(host))

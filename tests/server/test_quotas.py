"""Byte rates: who is bound by which quota, and for how long whoever is above it must wait."""

from __future__ import annotations

import pytest

from eventbus.coordinator.quotas import CLIENT_ID, IP, USER, Entity, QuotaFilter, check_value, entity_of, matches
from eventbus.errors import InvalidRequest
from eventbus.server.security.quotas import FETCH, PRODUCE, UNLIMITED, Quotas, Rate

ALICE = "User:alice"


def quotas(values: dict[Entity, dict[str, float]]) -> Quotas:
    return Quotas(values)


def user(name: str | None) -> Entity:
    return ((USER, name),)


def test_below_the_quota_nobody_waits() -> None:
    limited = quotas({user("alice"): {PRODUCE: 1_000}})
    assert [limited.produced(ALICE, "c", 900, now_ms) for now_ms in range(0, 60_000, 1_000)] == [0] * 60


def test_the_wait_brings_the_rate_back_to_the_quota() -> None:
    """Kafka's: what is above, divided by the quota, times the time it was counted over."""
    limited = quotas({user("alice"): {PRODUCE: 1_000}})
    assert limited.produced(ALICE, "c", 10_000, 0) == 0, "a burst of ten windows"
    assert limited.produced(ALICE, "c", 5_000, 0) == 5_000
    assert limited.produced(ALICE, "c", 0, 4_000) == 5_000
    assert limited.produced(ALICE, "c", 0, 15_000) == 0, "forgotten"


def test_over_a_minute_no_more_goes_through_than_the_quota_lets() -> None:
    limited = quotas({user("alice"): {PRODUCE: 1_000}})
    now_ms = sent = 0
    while now_ms < 60_000:
        sent += 2_000
        now_ms += 10 + limited.produced(ALICE, "c", 2_000, now_ms)
    assert 55_000 <= sent <= 72_000, "a minute's quota, and the burst at the beginning"


def test_a_rate_forgets_what_is_older_than_its_windows() -> None:
    rate = Rate(3, 1_000)
    rate.record(6_000, 0)
    assert rate.throttle_ms(1_000, 0) == 4_000
    rate.record(0, 2_999)
    assert rate.throttle_ms(1_000, 2_999) == round((6_000 / 2.999 / 1_000 - 1) * 2_999)
    assert rate.throttle_ms(1_000, 3_000) == 0


ORDER: list[Entity] = [
    ((CLIENT_ID, "c"), (USER, "alice")),
    ((CLIENT_ID, None), (USER, "alice")),
    user("alice"),
    ((CLIENT_ID, "c"), (USER, None)),
    ((CLIENT_ID, None), (USER, None)),
    user(None),
    ((CLIENT_ID, "c"),),
    ((CLIENT_ID, None),),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_quota_binds(first: int) -> None:
    """Kafka's order (KIP-55); each is there with all that go after it."""
    values = {entity: {FETCH: 100.0 * (place + 1)} for place, entity in enumerate(ORDER) if place >= first}
    assert quotas(values).fetch_limit_bytes(ALICE, "c") == 1_000 * (first + 1)


def test_what_a_quota_counts_together() -> None:
    limited = quotas({user("alice"): {PRODUCE: 1_000}, ((CLIENT_ID, "c"),): {PRODUCE: 1_000}})
    assert limited.produced(ALICE, "one", 10_000, 0) == 0
    assert limited.produced(ALICE, "two", 1_000, 0) > 0, "a user's clients share the user's quota"
    assert limited.produced("User:bob", "c", 10_000, 0) == 0
    assert limited.produced("User:carol", "c", 1_000, 0) > 0, "a client's quota is shared by its users"
    assert limited.produced("User:bob", "other", 1 << 40, 0) == 0
    default = quotas({user(None): {PRODUCE: 1_000}})
    assert default.produced(ALICE, "c", 10_000, 0) == 0
    assert default.produced("User:bob", "c", 10_000, 0) == 0, "each user has the default for itself"


def test_a_quota_for_one_direction_leaves_the_other_alone() -> None:
    limited = quotas({user("alice"): {PRODUCE: 1}})
    assert limited.fetched(ALICE, "c", 1 << 30, 0) == 0
    assert limited.fetch_limit_bytes(ALICE, "c") == UNLIMITED


def test_an_answer_that_is_held_back_is_not_counted() -> None:
    limited = quotas({user("alice"): {FETCH: 1_000}})
    assert limited.fetched(ALICE, "c", 10_000, 0) == 0
    first = limited.fetched(ALICE, "c", 5_000, 0)
    assert first == 5_000
    assert limited.fetched(ALICE, "c", 5_000, 0) == first, "the second try, as if the first had not been"


def test_a_batch_that_no_quota_lets_through_at_once_arrives_all_the_same() -> None:
    """And what comes after it waits for as long as it ought to have taken."""
    limited = quotas({user("alice"): {FETCH: 1_000}})
    assert limited.fetched(ALICE, "c", 1_000_000, 0) == 0
    assert limited.fetched(ALICE, "c", 1, 0) == 990_001
    assert limited.fetched(ALICE, "c", 1_000_000, 11_000) == 0


def test_a_new_value_binds_at_once() -> None:
    values: dict[Entity, dict[str, float]] = {user("alice"): {PRODUCE: 1_000}}
    limited = quotas(values)
    limited.produced(ALICE, "c", 20_000, 0)
    assert limited.produced(ALICE, "c", 0, 0) == 10_000
    values[user("alice")][PRODUCE] = 4_000
    assert limited.produced(ALICE, "c", 0, 0) == 0


def test_rates_of_clients_that_went_are_forgotten() -> None:
    limited = quotas({((CLIENT_ID, None),): {PRODUCE: 1_000}})
    for number in range(100):
        limited.produced(ALICE, f"client-{number}", 1, 0)
    limited.produced(ALICE, "client-0", 1, 5_000)
    limited.produced(ALICE, "late", 1, 11_000)
    assert len(limited._rates) == 2, "the late one, and the one that came again"


# who can have what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "empty client quota entity"),
        ([("group", "g")], "Unhandled client quota entity type"),
        ([(USER, "a"), (USER, "b")], "Duplicate"),
        ([(USER, "a"), (IP, "10.0.0.1")], "stands by itself"),
        ([(USER, "")], "Empty user"),
    ],
)
def test_entities_that_cannot_be(parts: list[tuple[str, str | None]], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        entity_of(parts)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (user("a"), "no_such_rate", 1.0),
        (user("a"), "connection_creation_rate", 1.0),
        (((IP, None),), PRODUCE, 1.0),
        (user("a"), PRODUCE, 0.0),
        (user("a"), PRODUCE, -1.0),
        (user("a"), PRODUCE, 1.5),
        (user("a"), PRODUCE, float("nan")),
        (user("a"), "request_percentage", float("inf")),
        (user("a"), PRODUCE, 1e300),
    ],
)
def test_values_that_cannot_be(entity: Entity, key: str, value: float) -> None:
    with pytest.raises(InvalidRequest):
        check_value(entity, key, value)


def test_values_that_can_be() -> None:
    check_value(user(None), PRODUCE, 1e6)
    check_value(user(None), "request_percentage", 0.5)
    check_value(((IP, "10.0.0.1"),), "connection_creation_rate", 5.0)


def test_filters_of_entities() -> None:
    both: Entity = ((CLIENT_ID, "c"), (USER, "alice"))
    assert matches(both, [QuotaFilter(USER, "alice")], strict=False)
    assert not matches(both, [QuotaFilter(USER, "alice")], strict=True)
    assert matches(both, [QuotaFilter(USER, any_name=True), QuotaFilter(CLIENT_ID, "c")], strict=True)
    assert not matches(both, [QuotaFilter(USER, None)], strict=False)
    assert matches(user(None), [QuotaFilter(USER, None)], strict=True)
    assert matches(both, [], strict=False)
    assert not matches(both, [QuotaFilter(IP, any_name=True)], strict=False)

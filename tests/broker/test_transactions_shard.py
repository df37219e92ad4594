"""The transactions' state machine alone: every event in every state, epochs, retries, and that replay is all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.coordinator import Decision, TransactionsShard
from eventbus.coordinator.transaction_codec import (
    TransactionMetadata,
    TransactionState,
    encode_transaction_key,
    encode_transaction_value,
)
from eventbus.coordinator.transaction_states import STORED_STATES, TRANSITIONS, TransactionEvent
from eventbus.coordinator.transactions import LAST_EPOCH, MAX_EPOCH
from eventbus.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionalIdNotFound,
)
from eventbus.types import ProducerIdAndEpoch, TopicPartition
from tests import tables

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)
Event = TransactionEvent
State = TransactionState


class Log:
    """A shard over a list of records, as the broker has one over a log."""

    def __init__(self) -> None:
        self.shard = TransactionsShard()
        self.records: list[tuple[bytes, bytes | None]] = []
        self.producer_ids = itertools.count(1000)
        self.now_ms = 0

    def run(self, decision: Decision):
        for record in decision.records:
            self.records.append(record)
            self.shard.replay(*record)
        return decision.reply

    def new_producer_id(self) -> int:
        return next(self.producer_ids)

    def init(self, expected: ProducerIdAndEpoch | None = None, name: str = "x") -> ProducerIdAndEpoch:
        return self.run(self.shard.init(name, 60_000, self.now_ms, self.new_producer_id, expected))

    def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = "x") -> TransactionMetadata:
        return self.run(self.shard.add(name, producer, partitions or (A,), self.now_ms))

    def end(
        self, producer: ProducerIdAndEpoch, committed: bool, *, bump_epoch: bool = True, name: str = "x"
    ) -> ProducerIdAndEpoch:
        return self.run(self.shard.end(name, producer, committed, self.now_ms, self.new_producer_id, bump_epoch))

    def fence(self, name: str = "x") -> TransactionMetadata:
        return self.run(self.shard.fence(name, self.now_ms, self.new_producer_id))

    def complete(self, name: str = "x") -> TransactionMetadata:
        return self.run(self.shard.complete(name, self.now_ms))

    def commit(self, producer: ProducerIdAndEpoch, *, bump_epoch: bool = True) -> ProducerIdAndEpoch:
        return self._whole(producer, True, bump_epoch)

    def abort(self, producer: ProducerIdAndEpoch, *, bump_epoch: bool = True) -> ProducerIdAndEpoch:
        return self._whole(producer, False, bump_epoch)

    def _whole(self, producer: ProducerIdAndEpoch, committed: bool, bump_epoch: bool) -> ProducerIdAndEpoch:
        self.add(producer)
        following = self.end(producer, committed, bump_epoch=bump_epoch)
        self.complete()
        return following

    @property
    def state(self) -> State | None:
        known = self.shard.transactions.get("x")
        return None if known is None else known.state

    def set_epoch(self, epoch: int) -> ProducerIdAndEpoch:
        """As if so many transactions had been before."""
        return self.run(self.shard.raise_epoch("x", epoch, self.now_ms)).producer

    def replayed(self) -> TransactionsShard:
        fresh = TransactionsShard()
        for record in self.records:
            fresh.replay(*record)
        return fresh


@pytest.fixture
def log():
    log = Log()
    yield log
    assert repr(log.replayed()) == repr(log.shard)
    assert log.replayed().producers == log.shard.producers


# every event in every state ------------------------------------------------------------------------------------------

BUSY, FENCED, INVALID = ConcurrentTransactions, ProducerFenced, InvalidTxnState
EXPECTED: dict[Event, tuple[State | type[KafkaError], ...]] = {
    # in the order of STORED_STATES: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort
    Event.INIT: (State.EMPTY, State.PREPARE_ABORT, BUSY, BUSY, State.EMPTY, State.EMPTY),
    Event.ADD: (State.ONGOING, State.ONGOING, BUSY, BUSY, State.ONGOING, State.ONGOING),
    Event.COMMIT: (State.EMPTY, State.PREPARE_COMMIT, BUSY, BUSY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT),
    Event.ABORT: (
        State.PREPARE_ABORT,
        State.PREPARE_ABORT,
        BUSY,
        BUSY,
        State.PREPARE_ABORT,
        State.PREPARE_ABORT,
    ),
    Event.RETRY_COMMIT: (FENCED, FENCED, BUSY, INVALID, State.COMPLETE_COMMIT, INVALID),
    Event.RETRY_ABORT: (FENCED, FENCED, INVALID, BUSY, INVALID, State.COMPLETE_ABORT),
    Event.COMMIT_V1: (INVALID, State.PREPARE_COMMIT, BUSY, INVALID, State.COMPLETE_COMMIT, INVALID),
    Event.ABORT_V1: (INVALID, State.PREPARE_ABORT, INVALID, BUSY, INVALID, State.COMPLETE_ABORT),
    Event.FENCE: (INVALID, State.PREPARE_ABORT, BUSY, BUSY, INVALID, INVALID),
    Event.MARKED: (INVALID, INVALID, State.COMPLETE_COMMIT, State.COMPLETE_ABORT, INVALID, INVALID),
    Event.EXPIRE: (State.DEAD, State.EMPTY, State.EMPTY, State.EMPTY, State.DEAD, State.DEAD),
}


def in_state(log: Log, state: State) -> None:
    """Bring "x" there, by requests alone; its epoch is above 0."""
    log.init()
    producer = log.init()
    if state is State.EMPTY:
        return
    log.add(producer)
    if state is State.ONGOING:
        return
    log.end(producer, state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT))
    if state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        log.complete()


def act(log: Log, event: Event) -> None:
    now = log.shard.transactions["x"].producer
    before = now._replace(producer_epoch=now.producer_epoch - 1)
    actions: dict[Event, Callable[[], object]] = {
        Event.INIT: log.init,
        Event.ADD: lambda: log.add(now, B),
        Event.COMMIT: lambda: log.end(now, True),
        Event.ABORT: lambda: log.end(now, False),
        Event.RETRY_COMMIT: lambda: log.end(before, True),
        Event.RETRY_ABORT: lambda: log.end(before, False),
        Event.COMMIT_V1: lambda: log.end(now, True, bump_epoch=False),
        Event.ABORT_V1: lambda: log.end(now, False, bump_epoch=False),
        Event.FENCE: log.fence,
        Event.MARKED: log.complete,
        Event.EXPIRE: lambda: log.run(log.shard.expire(1_000, 1_000)),
    }
    actions[event]()


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", STORED_STATES)
def test_every_event_in_every_state(log: Log, state: State, event: Event) -> None:
    in_state(log, state)
    assert log.state is state
    before = repr(log.shard)
    outcome = EXPECTED[event][STORED_STATES.index(state)]
    if event is Event.EXPIRE:
        act(log, event)
        assert log.state is (None if outcome is State.DEAD else state)
        return
    if isinstance(outcome, State):
        act(log, event)
        assert log.state is outcome
    else:
        with pytest.raises(outcome):
            act(log, event)
        assert repr(log.shard) == before
    assert TRANSITIONS[event][state].outcome is outcome


def test_the_table_is_complete_and_every_rule_is_said() -> None:
    assert TRANSITIONS.keys() == set(Event)
    for row in TRANSITIONS.values():
        assert tuple(row) == STORED_STATES
        assert all(transition.rule for transition in row.values())


def test_the_table_in_the_design(rewrite: bool) -> None:
    moves = {
        (state, event): transition.outcome
        for event, row in TRANSITIONS.items()
        for state, transition in row.items()
        if isinstance(transition.outcome, State)
    }
    tables.check("transactions", moves, rewrite)


# epochs --------------------------------------------------------------------------------------------------------------


def test_the_first_producer_of_an_id(log: Log) -> None:
    assert log.init() == (1000, 0)
    assert log.init(name="y") == (1001, 0)
    assert log.init() == (1000, 1)
    assert log.add(ProducerIdAndEpoch(1000, 1), B, A).partitions == {A, B}
    assert repr(log.shard) == (
        "TransactionsShard(x=Ongoing 1000/1 a-0 b-0 timeout=60000 start=0 updated=0; "
        "y=Empty 1001/0 timeout=60000 start=-1 updated=0;)"
    )


def test_every_end_moves_the_epoch(log: Log) -> None:
    producer = log.init()
    for epoch in range(1, 4):
        producer = log.commit(producer) if epoch % 2 else log.abort(producer)
        assert producer == (1000, epoch)


def test_clients_from_before_kip_890_keep_their_epoch(log: Log) -> None:
    producer = log.init()
    assert log.commit(producer, bump_epoch=False) == producer
    assert log.abort(producer, bump_epoch=False) == producer
    assert log.end(producer, False, bump_epoch=False) == producer
    with pytest.raises(InvalidTxnState):
        log.end(producer, True, bump_epoch=False)


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_is_answered_again_and_nothing_stored(log: Log, committed: bool) -> None:
    producer = log.init()
    log.add(producer)
    log.end(producer, committed)
    with pytest.raises(ConcurrentTransactions):
        log.end(producer, committed)
    log.complete()
    stored = len(log.records)
    assert log.end(producer, committed) == (1000, 1)
    assert log.end(producer, committed) == (1000, 1)
    assert len(log.records) == stored
    with pytest.raises(InvalidTxnState, match=r"so it cannot .*: The transaction was ended the other way"):
        log.end(producer, not committed)


def test_an_end_is_known_again_after_a_restart(log: Log) -> None:
    producer = log.init()
    log.commit(producer)
    log.shard = log.replayed()
    assert log.end(producer, True) == (1000, 1)
    with pytest.raises(InvalidTxnState):
        log.end(producer, False)


def test_a_timed_out_producer_can_abort_and_continue_but_not_commit(log: Log) -> None:
    """The log aborted the transaction, so the producer's abort is a retry of that end, as on Kafka 4.3."""
    producer = log.init()
    log.add(producer)
    assert log.fence().producer == (1000, 1)
    with pytest.raises(ConcurrentTransactions):
        log.end(producer, False)
    log.complete()
    for request in (lambda: log.end(producer, True), lambda: log.add(producer)):
        with pytest.raises((InvalidTxnState, ProducerFenced)):
            request()
    assert log.end(producer, False) == (1000, 1)
    log.shard = log.replayed()
    following = log.end(producer, False)
    assert following == (1000, 1)
    assert log.commit(following) == (1000, 2)
    for committed in (True, False):  # KAFKA-14402: the request for the old transaction comes late
        with pytest.raises(ProducerFenced):
            log.end(producer, committed)


def test_a_timed_out_producer_that_keeps_its_epoch_is_fenced(log: Log) -> None:
    """Its answer has no room for the new epoch. It may initialise itself again (KIP-360)."""
    producer = log.init()
    log.add(producer)
    log.fence()
    log.complete()
    for committed in (True, False):
        with pytest.raises(ProducerFenced, match="at epoch 0 is fenced, the id stands at producer 1000, epoch 1"):
            log.end(producer, committed, bump_epoch=False)
    assert log.init(producer) == (1000, 2)


def test_a_zombie_of_a_client_that_keeps_its_epoch(log: Log) -> None:
    """Its successor's commit stands at the epoch after its own; that is not the answer to its own commit."""
    zombie = log.init()
    log.add(zombie)
    log.fence()
    log.complete()
    before = log.init()
    producer = log.init()
    assert producer.producer_epoch == before.producer_epoch + 1
    log.commit(producer, bump_epoch=False)
    for committed in (True, False):
        with pytest.raises(ProducerFenced):
            log.end(before, committed)


def test_takeover_aborts_first_and_then_moves_the_epoch(log: Log) -> None:
    zombie = log.init()
    log.add(zombie)
    assert log.init() is None
    with pytest.raises(ConcurrentTransactions):
        log.init()
    log.complete()
    assert log.init() == (1000, 2)
    requests = (
        lambda: log.add(zombie),
        lambda: log.end(zombie, True),
        lambda: log.end(zombie, False),
        lambda: log.init(zombie),
    )
    for request in requests:
        with pytest.raises(ProducerFenced):
            request()


def test_a_fence_stored_by_an_older_version_is_completed(log: Log) -> None:
    """It moved the epoch by two, so its producer is fenced for every request."""
    producer = log.init()
    log.add(producer)
    known = log.shard.transactions["x"]
    stored = TransactionMetadata(
        known.producer_id, 2, known.timeout_ms, State.PREPARE_ABORT, known.partitions, 0, 0, is_bumped=True
    )
    log.records.append((encode_transaction_key("x"), encode_transaction_value(stored)))
    log.shard = log.replayed()
    assert log.complete().producer == (1000, 2)
    for committed in (True, False):
        with pytest.raises(ProducerFenced):
            log.end(producer, committed)
    assert log.init() == (1000, 3)


# epochs run out ------------------------------------------------------------------------------------------------------


def test_the_epochs_run_out_at_an_end(log: Log) -> None:
    log.init()
    producer = log.set_epoch(LAST_EPOCH)
    log.add(producer, A, B)
    assert log.end(producer, True) == (1001, 0)
    known = log.shard.transactions["x"]
    assert known.producer == (1000, MAX_EPOCH), "the markers are of the old id"
    for asked in (producer, ProducerIdAndEpoch(1001, 0)):
        with pytest.raises(ConcurrentTransactions):
            log.end(asked, True)
    log.complete()
    assert log.shard.transactions["x"].producer == (1001, 0)
    assert log.end(producer, True) == (1001, 0), "a retry still carries the old id"
    with pytest.raises(InvalidTxnState):
        log.end(producer, False)
    log.shard = log.replayed()
    assert log.end(producer, True) == (1001, 0)
    log.add(ProducerIdAndEpoch(1001, 0))
    with pytest.raises(InvalidProducerIdMapping, match="belongs to producer id 1001, not to 1000"):
        log.end(producer, True)


def test_the_epochs_run_out_at_a_takeover(log: Log) -> None:
    log.init()
    zombie = log.set_epoch(LAST_EPOCH)
    assert log.init() == (1001, 0)
    with pytest.raises(InvalidProducerIdMapping):
        log.add(zombie)


def test_the_epochs_run_out_at_a_timeout(log: Log) -> None:
    """The producer continues with another producer id, as after an end that it requests."""
    log.init()
    producer = log.set_epoch(LAST_EPOCH)
    log.add(producer)
    assert log.fence().producer == (1000, MAX_EPOCH)
    with pytest.raises(ConcurrentTransactions):
        log.end(producer, False)
    log.complete()
    following = log.end(producer, False)
    assert following == (1001, 0)
    assert log.commit(following) == (1001, 1)


# going on after an error: KIP-360, KIP-588 ---------------------------------------------------------------------------


def test_a_producer_goes_on_after_an_error(log: Log) -> None:
    producer = log.init()
    assert log.init(producer) == (1000, 1)
    assert log.init(producer) == (1000, 1), "the answer was lost"
    assert log.init(ProducerIdAndEpoch(1000, 1)) == (1000, 2)
    with pytest.raises(ProducerFenced):
        log.init(producer)


def test_a_late_retry_of_going_on_ends_nothing(log: Log) -> None:
    producer = log.init()
    following = log.init(producer)
    log.add(following)
    assert log.init(producer) == following
    assert log.state is State.ONGOING


def test_a_retry_is_answered_after_a_takeover_that_was_not_stored(log: Log) -> None:
    producer = log.init()
    following = log.init(producer)
    log.shard.init("x", 60_000, 0, log.new_producer_id)
    assert log.init(producer) == following
    log.init()
    with pytest.raises(ProducerFenced):
        log.init(producer)


def test_a_producer_goes_on_whose_end_was_not_answered(log: Log) -> None:
    producer = log.init()
    log.commit(producer)
    assert log.init(producer) == (1000, 2)


def test_a_producer_goes_on_after_its_timeout_unless_another_one_came(log: Log) -> None:
    producer = log.init()
    log.add(producer)
    log.fence()
    with pytest.raises(ConcurrentTransactions):
        log.init(producer)
    log.complete()
    assert log.init(producer) == (1000, 2)
    log.add(ProducerIdAndEpoch(1000, 2))
    log.fence()
    log.complete()
    assert log.init() == (1000, 4)
    with pytest.raises(ProducerFenced):
        log.init(ProducerIdAndEpoch(1000, 2))


def test_a_producer_goes_on_with_another_id_when_its_epochs_run_out(log: Log) -> None:
    log.init()
    producer = log.set_epoch(LAST_EPOCH)
    assert log.init(producer) == (1001, 0)
    assert log.init(producer) == (1001, 0)


# refusals ------------------------------------------------------------------------------------------------------------


def test_who_is_not_known_is_told_so(log: Log) -> None:
    with pytest.raises(InvalidProducerIdMapping, match="'x' is not known"):
        log.add(ProducerIdAndEpoch(1000, 0))
    log.init()
    for producer_id in (999, -1):
        with pytest.raises(InvalidProducerIdMapping, match=f"belongs to producer id 1000, not to {producer_id}"):
            log.end(ProducerIdAndEpoch(producer_id, 0), True)
    with pytest.raises(ProducerFenced):
        log.add(ProducerIdAndEpoch(1000, 7))
    with pytest.raises(TransactionalIdNotFound, match=r"there is no transactional id 'xx'.*'x'"):
        log.shard.look("xx")


@pytest.mark.parametrize("name", ["", "x" * 32_768, "\ud800"])
def test_ids_that_cannot_be_stored(log: Log, name: str) -> None:
    with pytest.raises(InvalidRequest, match="choose another one"):
        log.init(name=name)


def test_partitions_are_stored_once(log: Log) -> None:
    producer = log.init()
    log.add(producer, A, B)
    stored = len(log.records)
    assert log.add(producer, B).partitions == {A, B}
    assert len(log.records) == stored
    assert log.add(producer, C).partitions == {A, B, C}


def test_the_next_transaction_has_its_own_partitions_and_times(log: Log) -> None:
    producer = log.commit(log.init())
    log.now_ms = 5
    known = log.add(producer, B)
    assert (known.partitions, known.start_ms) == ({B}, 5)
    log.now_ms = 6
    known = log.add(producer, C)
    assert (known.start_ms, known.last_update_ms) == (5, 6)


def test_expiry_passes_over_what_is_used(log: Log) -> None:
    log.commit(log.init())
    log.init(name="y")
    log.now_ms = 1
    log.add(log.init(name="z"), name="z")
    assert log.shard.expire(999, 1_000).reply == []
    assert log.run(log.shard.expire(1_000, 1_000)) == ["x", "y"]
    assert log.run(log.shard.expire(1 << 50, 1_000)) == [], "z is open"
    assert log.init() == (1003, 0), "an id that was forgotten is somebody else's"


# replay is all there is ----------------------------------------------------------------------------------------------

names = st.sampled_from(["x", "y"])
requests = st.one_of(
    st.tuples(st.just("init"), names, st.sampled_from([None, -2, -1, 0])),
    st.tuples(st.just("add"), names, st.sampled_from([-1, 0]), st.sampled_from([A, B, C])),
    st.tuples(st.just("end"), names, st.sampled_from([-2, -1, 0, 1]), st.booleans(), st.booleans()),
    st.tuples(st.sampled_from(["fence", "complete"]), names),
    st.tuples(st.just("epoch"), names, st.sampled_from([LAST_EPOCH - 1, LAST_EPOCH, MAX_EPOCH])),
    st.tuples(st.just("expire"), st.integers(0, 40)),
)


@pytest.mark.system
@given(st.lists(requests, max_size=40))
def test_whatever_is_asked_the_live_state_is_the_replayed_one(asked: list[tuple]) -> None:
    log = Log()
    seen: set[tuple[str, ProducerIdAndEpoch]] = set()
    for what, *details in asked:
        log.now_ms += 1
        before = repr(log.shard)
        try:
            run(log, what, details, seen)
        except KafkaError:
            assert repr(log.shard) == before, "a refusal changes nothing"
        for known in log.shard.transactions.values():
            assert 0 <= known.producer_epoch <= MAX_EPOCH
            assert (known.state in (State.ONGOING,)) <= bool(known.partitions)
            assert not (known.partitions and known.state in (State.EMPTY, *STORED_STATES[4:]))
    assert repr(log.replayed()) == repr(log.shard)
    assert log.replayed().producers == log.shard.producers
    owners = [known.producer_id for known in log.shard.transactions.values()]
    assert len(set(owners)) == len(owners)


def run(log: Log, what: str, details: list, seen: set[tuple[str, ProducerIdAndEpoch]]) -> None:
    if what == "expire":
        log.run(log.shard.expire(log.now_ms, details[0]))
        return
    name, *rest = details
    known = log.shard.transactions.get(name)
    now = known.producer if known else ProducerIdAndEpoch(1000, 0)
    if what == "init":
        expected = None if rest[0] is None else now._replace(producer_epoch=now.producer_epoch + rest[0])
        given = log.init(expected, name=name)
        if given is not None and expected is None:
            assert (name, given) not in seen, "an epoch is given to one producer only"
            seen.add((name, given))
    elif what == "add":
        log.add(now._replace(producer_epoch=now.producer_epoch + rest[0]), rest[1], name=name)
    elif what == "end":
        asked = now._replace(producer_epoch=now.producer_epoch + rest[0])
        log.end(asked, rest[1], bump_epoch=rest[2], name=name)
    elif what == "epoch":
        if known and known.state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            log.run(log.shard.raise_epoch(name, rest[0], log.now_ms))
    elif what == "fence":
        log.fence(name)
    else:
        log.complete(name)


# clients that compete for an id ---------------------------------------------------------------------------------------


class Client:
    """A producer that knows only the answers it received, of one of the two protocols."""

    def __init__(self, bumps: bool) -> None:
        self.bumps = bumps
        self.producer: ProducerIdAndEpoch | None = None
        self.is_open = False
        """Its transaction, as the model knows it: nothing has fenced it since its first partition."""
        self.is_aborted = False
        """The log aborted its transaction, and it has not aborted in turn."""


steps = st.lists(
    st.tuples(st.sampled_from(["init", "add", "commit", "abort", "again", "timeout", "complete"]), st.integers(0, 2)),
    max_size=40,
)


@pytest.mark.system
@given(steps, st.integers(0, 7), st.sampled_from([0, LAST_EPOCH - 3]))
def test_only_the_last_client_of_an_id_writes_and_a_timeout_does_not_end_it(
    asked: list[tuple[str, int]], versions: int, epoch: int
) -> None:
    log = Log()
    log.init()
    log.set_epoch(epoch)
    clients = [Client(bool(versions >> number & 1)) for number in range(3)]
    owner: Client | None = None
    given_to: dict[ProducerIdAndEpoch, Client] = {}
    for what, number in asked:
        client = clients[number]
        is_prepared = log.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        if what == "complete":
            if is_prepared:
                log.complete()
        elif what == "timeout":
            if log.state is State.ONGOING:
                log.fence()
                aborted(clients)
        elif what == "init":
            is_open = log.state is State.ONGOING
            if is_prepared:
                continue
            answer = log.init()
            if answer is None:
                assert is_open
                aborted(clients)
                continue
            client.producer, client.is_open, client.is_aborted, owner = answer, False, False, client
            assert given_to.setdefault(answer, client) is client
        elif client.producer is not None and not is_prepared:
            is_owner = client is owner
            before = client.producer
            try:
                if what == "add":
                    log.add(before)
                    assert is_owner, "a client that was replaced has begun a transaction"
                    assert not client.is_aborted
                    client.is_open = True
                else:
                    committed = what == "commit" or (what == "again" and client.is_open)
                    client.producer = log.end(before, committed, bump_epoch=client.bumps)
                    assert is_owner, "a client that was replaced has ended a transaction"
                    assert not (committed and client.is_aborted), "a transaction that timed out was committed"
                    if what == "again" and log.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
                        log.complete()  # the answer was lost
                        assert log.end(before, committed, bump_epoch=client.bumps) == client.producer
                    client.is_open = client.is_aborted = False
                    assert given_to.setdefault(client.producer, client) is client, "an epoch is one client's"
            except (ProducerFenced, InvalidProducerIdMapping):
                assert not is_owner or client.is_aborted
                assert not (is_owner and client.bumps and what == "abort"), "it cannot continue after its timeout"
            except InvalidTxnState:
                assert not client.is_open


def aborted(clients: list[Client]) -> None:
    """The open transaction was aborted by the log."""
    for client in clients:
        client.is_aborted |= client.is_open
        client.is_open = False

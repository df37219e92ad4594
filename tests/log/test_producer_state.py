"""Kafka's rules for producers, one row each, and the machine against a list of everything that was written."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from eventbus.log.producer_state import ProducerStates
from eventbus.records import MAX_SEQUENCE, ControlType, EndTransactionMarker, increment_sequence
from tests.tiers import quick

ID = 7


class Batch(NamedTuple):
    """A batch, as far as the machine looks at it."""

    base_sequence: int
    last_offset_delta: int = 0
    producer_epoch: int = 0
    is_transactional: bool = False
    producer_id: int = ID


class Marker(NamedTuple):
    """The end of a transaction."""

    producer_epoch: int = 0
    control_type: ControlType = ControlType.COMMIT
    coordinator_epoch: int = 0
    producer_id: int = ID


def written(*steps: Batch | Marker) -> tuple[ProducerStates, int]:
    """The machine after a log of these, and where the log ends."""
    states, offset = ProducerStates("orders-0"), 0
    for step in steps:
        offset = write(states, step, offset)
    return states, offset


def write(states: ProducerStates, step: Batch | Marker, offset: int) -> int:
    if isinstance(step, Marker):
        marker = EndTransactionMarker(step.control_type, step.coordinator_epoch)
        states.append_marker(step.producer_id, step.producer_epoch, marker, offset, 1000 + offset)
        return offset + 1
    states.append(step, offset, 1000 + offset)
    return offset + step.last_offset_delta + 1


TXN = {"is_transactional": True}

ACCEPTED: dict[str, tuple[tuple[Batch | Marker, ...], Batch]] = {
    "the first of a producer, at 0": ((), Batch(0)),
    "the first known of a producer, anywhere": ((), Batch(57, 3)),
    "the next": ((Batch(0, 4),), Batch(5)),
    "the next after a wrap": ((Batch(MAX_SEQUENCE - 1, 1),), Batch(0)),
    "one that wraps itself": ((Batch(MAX_SEQUENCE - 2, 1),), Batch(MAX_SEQUENCE, 3)),
    "the next after one that wrapped": ((Batch(MAX_SEQUENCE - 1, 3),), Batch(2)),
    "a new epoch at 0": ((Batch(0), Batch(1)), Batch(0, 0, 1)),
    "a new epoch goes on": ((Batch(9), Batch(0, 1, 3)), Batch(2, 0, 3)),
    "a marker keeps the sequences of its epoch": ((Batch(0, 2, **TXN), Marker()), Batch(3)),
    "a marker of a newer epoch starts over": ((Batch(0, 2, **TXN), Marker(1)), Batch(0, 0, 1)),
    "all begins with a marker": ((Marker(4),), Batch(9, 0, 4)),
    "a transaction goes on": ((Batch(0, **TXN),), Batch(1, **TXN)),
    "a transaction after another": ((Batch(0, **TXN), Marker()), Batch(1, **TXN)),
    "offsets commits take no part in sequencing": ((Batch(5), Batch(-1, 2, **TXN), Marker()), Batch(6)),
    "an offsets commit in the transaction": ((Batch(0, **TXN),), Batch(-1, **TXN)),
    "an offsets commit of a newer epoch": ((Batch(-1, **TXN), Marker(1)), Batch(-1, 0, 1, **TXN)),
    "sequences start over after an epoch of offsets only": ((Batch(3), Batch(-1, 0, 1, **TXN)), Batch(0, 0, 1, **TXN)),
    "somebody else": ((Batch(0, **TXN),), Batch(3, producer_id=8)),
}

DUPLICATES: dict[str, tuple[tuple[Batch | Marker, ...], Batch, int]] = {
    "the last": ((Batch(0, 2), Batch(3, 1)), Batch(3, 1), 3),
    "the oldest of five": (tuple(Batch(n) for n in range(6)), Batch(1), 1),
    "one that wrapped": ((Batch(MAX_SEQUENCE, 1), Batch(1)), Batch(MAX_SEQUENCE, 1), 0),
    "of an open transaction": ((Batch(0, **TXN), Batch(1, **TXN)), Batch(0, **TXN), 0),
    "of one that ended, at the same epoch": ((Batch(0, **TXN), Marker(), Batch(1)), Batch(0, **TXN), 0),
}

REFUSED: dict[str, tuple[tuple[Batch | Marker, ...], Batch, type[KafkaError]]] = {
    "a gap": ((Batch(0),), Batch(2), OutOfOrderSequence),
    "one before the last": ((Batch(4),), Batch(3), OutOfOrderSequence),
    "the sixth last": (tuple(Batch(n) for n in range(6)), Batch(0), OutOfOrderSequence),
    "the same first, another last": ((Batch(0, 2),), Batch(0, 3), OutOfOrderSequence),
    "the same last, another first": ((Batch(0, 2),), Batch(1, 1), OutOfOrderSequence),
    "the largest sequence again after a wrap": ((Batch(MAX_SEQUENCE), Batch(0)), Batch(2), OutOfOrderSequence),
    "0 where nothing wraps": ((Batch(5),), Batch(0), OutOfOrderSequence),
    "a new epoch, not at 0": ((Batch(0),), Batch(1, 0, 1), OutOfOrderSequence),
    "a new epoch after its marker, not at 0": ((Batch(0, **TXN), Marker(1)), Batch(1, 0, 1), OutOfOrderSequence),
    "an old epoch": ((Batch(0, 0, 5),), Batch(1, 0, 4), InvalidProducerEpoch),
    "a duplicate of an old epoch": ((Batch(0), Batch(0, 0, 1)), Batch(0), InvalidProducerEpoch),
    "late, of a transaction that a newer epoch ended": (
        (Batch(0, **TXN), Marker(1)),
        Batch(1, **TXN),
        InvalidProducerEpoch,
    ),
    "an offsets commit of an old epoch": ((Marker(2),), Batch(-1, 0, 1, **TXN), InvalidProducerEpoch),
    "outside of the open transaction": ((Batch(0, **TXN),), Batch(1), InvalidTxnState),
    "an offsets commit outside of it": ((Batch(0, **TXN),), Batch(-1), InvalidTxnState),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    log, batch = ACCEPTED[name]
    states, offset = written(*log)
    assert states.check(batch) is None
    write(states, batch, offset)
    states.check_consistency()


@pytest.mark.parametrize("name", DUPLICATES)
def test_a_duplicate_is_answered_with_its_first_offset(name):
    log, batch, offset = DUPLICATES[name]
    found = written(*log)[0].check(batch)
    assert found is not None
    assert found[2:] == (offset, 1000 + offset)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    log, batch, error = REFUSED[name]
    states, _ = written(*log)
    before = repr(states)
    with pytest.raises(error, match=r"orders-0.*producer 7"):
        states.check(batch)
    assert repr(states) == before


@pytest.mark.parametrize(
    ("log", "marker", "error"),
    [
        ((), Marker(3), None),
        ((Batch(0, **TXN),), Marker(0), None),
        ((Batch(0, **TXN),), Marker(1), None),
        ((Batch(0, 0, 2, **TXN),), Marker(1), InvalidProducerEpoch),
        ((Batch(0, **TXN), Marker(0, coordinator_epoch=4), Batch(1, **TXN)), Marker(0, coordinator_epoch=4), None),
        ((Batch(0, **TXN), Marker(0, coordinator_epoch=4)), Marker(0, coordinator_epoch=5), None),
        (
            (Batch(0, **TXN), Marker(0, coordinator_epoch=4), Batch(1, **TXN)),
            Marker(0, coordinator_epoch=3),
            TransactionCoordinatorFenced,
        ),
    ],
)
def test_markers(log, marker, error):
    states, _ = written(*log)

    def check() -> None:
        states.check_marker(
            ID, marker.producer_epoch, EndTransactionMarker(ControlType.ABORT, marker.coordinator_epoch)
        )

    if error is None:
        check()
    else:
        with pytest.raises(error, match="producer 7"):
            check()


def test_the_last_stable_offset_waits_for_the_oldest_transaction():
    states, end = written(Batch(0, 1, **TXN), Batch(0, producer_id=8, **TXN), Batch(0, producer_id=9))
    assert [states.last_stable_offset(watermark) for watermark in (0, 1, end)] == [0, 0, 0]
    end = write(states, Marker(), end)
    assert states.last_stable_offset(4) == 0, "the marker cannot be read yet"
    assert states.last_stable_offset(end) == 2, "8 is open"
    end = write(states, Marker(producer_id=8), end)
    assert states.last_stable_offset(5) == 2
    assert states.last_stable_offset(end) == end


def test_a_marker_without_a_transaction_holds_nothing_up():
    states, end = written(Batch(0), Marker())
    assert states.last_stable_offset(1) == 1
    assert states.last_stable_offset(end) == end


def test_what_a_marker_says_of_the_transaction():
    states, _ = written(Batch(0, 4, **TXN), Batch(0, producer_id=8, **TXN))
    ended = states.append_marker(ID, 0, EndTransactionMarker(ControlType.ABORT, 0), 6, 1)
    assert ended == (ID, 0, 6, True, 5)
    ended = states.append_marker(8, 0, EndTransactionMarker(ControlType.COMMIT, 0), 7, 1)
    assert ended == (8, 5, 7, False, 8)
    assert states.append_marker(8, 0, EndTransactionMarker(ControlType.COMMIT, 0), 8, 1) is None


def test_the_idle_are_forgotten_but_not_with_a_transaction_open():
    states, end = written(Batch(0), Batch(0, producer_id=8, **TXN), Batch(0, producer_id=9))
    assert states.expire(5_000_000, 1000) == 0, "they wrote since the last sweep, whatever their records' time"
    write(states, Batch(1, producer_id=9), end)
    assert states.expire(5_000_999, 1000) == 0
    assert states.expire(5_001_000, 1000) == 1
    assert sorted(states.producers) == [8, 9]
    assert states.expire(5_000_000, 1000) == 0, "the clock went back"
    assert states.expire(5_001_998, 1000) == 0
    assert states.expire(5_001_999, 1000) == 1
    assert sorted(states.producers) == [8]
    assert states.expire(1 << 60, 1000) == 0
    assert states.check(Batch(77)) is None, "forgotten: any sequence"


def test_after_recovery_idle_time_counts_from_the_opening():
    states, _ = written(Batch(0), Batch(0, producer_id=8))
    states.settle(5_000)
    assert states.expire(5_999, 1000) == 0, "1000 and 1001 were their records' times"
    assert states.expire(6_000, 1000) == 2


def test_one_line_sorted():
    states, _ = written(Batch(0, 1, producer_id=9), Batch(5, **TXN), Marker(1, coordinator_epoch=3), Batch(-1, **TXN))
    assert repr(states) == ("7: epoch=0 next=0 [] open@4 coordinator=3 at=1004; 9: epoch=0 next=2 [0..1@0] at=1000")


# -- against a list of everything that was written ---------------------------------------------------------------------


class Model:
    """The rules once more, by looking through all that was written."""

    def __init__(self) -> None:
        self.log: list[tuple[int, Batch | Marker]] = []

    def of(self, producer_id: int) -> list[tuple[int, Batch | Marker]]:
        return [(offset, step) for offset, step in self.log if step.producer_id == producer_id]

    def verdict(self, step: Batch | Marker) -> object:
        mine = self.of(step.producer_id)
        epoch = mine[-1][1].producer_epoch if mine else -1
        if step.producer_epoch < epoch:
            return InvalidProducerEpoch
        if isinstance(step, Marker):
            coordinators = [each.coordinator_epoch for _, each in mine if isinstance(each, Marker)]
            return TransactionCoordinatorFenced if max(coordinators, default=-1) > step.coordinator_epoch else None
        batches = [
            (offset, each)
            for offset, each in mine
            if isinstance(each, Batch) and each.producer_epoch == step.producer_epoch and each.base_sequence >= 0
        ]
        if step.base_sequence >= 0:
            for offset, each in batches[-5:]:
                if (each.base_sequence, each.last_offset_delta) == (step.base_sequence, step.last_offset_delta):
                    return offset
            if batches:
                last = batches[-1][1]
                expected = increment_sequence(last.base_sequence, last.last_offset_delta + 1)
            else:
                expected = 0 if any(each.producer_epoch < step.producer_epoch for _, each in mine) else None
            if expected not in (None, step.base_sequence):
                return OutOfOrderSequence
        return InvalidTxnState if self.open_offset(step.producer_id) is not None and not step.is_transactional else None

    def open_offset(self, producer_id: int) -> int | None:
        found = None
        for offset, step in self.of(producer_id):
            if isinstance(step, Marker):
                found = None
            elif step.is_transactional and found is None:
                found = offset
        return found

    def last_stable_offset(self, watermark: int) -> int:
        cut = Model()
        cut.log = [(offset, step) for offset, step in self.log if offset < watermark or isinstance(step, Batch)]
        opened = [cut.open_offset(producer_id) for producer_id in (7, 8, 9)]
        return min([watermark, *(offset for offset in opened if offset is not None)])


sequences = st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, MAX_SEQUENCE - 1, MAX_SEQUENCE])
epochs = st.integers(0, 3)
ids = st.sampled_from([7, 8, 9])
steps = st.builds(Batch, sequences, st.integers(0, 2), epochs, st.booleans(), ids) | st.builds(
    Marker, epochs, st.sampled_from(ControlType), st.integers(0, 2), ids
)


@pytest.mark.system
@pytest.mark.parametrize("examples", quick([80, 500], 1))
def test_as_a_list_of_everything(examples):
    settings(max_examples=examples)(given(st.data())(as_a_list_of_everything))()


def as_a_list_of_everything(data):
    states, model, end = ProducerStates("orders-0"), Model(), 0
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(steps)
        if isinstance(step, Batch) and data.draw(st.booleans()):  # mostly what comes next
            producer = states.producers.get(step.producer_id)
            if producer is not None and producer.next_sequence >= 0:
                step = step._replace(base_sequence=producer.next_sequence, producer_epoch=producer.producer_epoch)
        verdict: object
        try:
            if isinstance(step, Marker):
                marker = EndTransactionMarker(step.control_type, step.coordinator_epoch)
                states.check_marker(step.producer_id, step.producer_epoch, marker)
                verdict = None
            else:
                found = states.check(step)
                verdict = None if found is None else found[2]
        except KafkaError as error:
            verdict = type(error)
        assert verdict == model.verdict(step), (step, model.log)
        if verdict is None:
            model.log.append((end, step))
            end = write(states, step, end)
            states.check_consistency()
        watermark = data.draw(st.integers(0, end))
        assert states.last_stable_offset(end) == model.last_stable_offset(end)
        fresh, _ = written(*(step for _, step in model.log))
        assert fresh.last_stable_offset(watermark) == model.last_stable_offset(watermark)
        assert repr(fresh) == repr(states)

"""Power cuts under a server's transactions: its clients leave the epoch as it is (before KIP-890), and come back.

As `test_crash_transactions`, but nothing is aborted because the log was opened. A client asks once more for the end it
was not answered, or commits what it had open, if all of it was acknowledged: that is never refused. What it is told is
what readers see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from eventbus.broker import Broker
from eventbus.broker.transaction_ends import Endings
from eventbus.coordinator.requests import TransactionEnd
from eventbus.errors import ConcurrentTransactions, InvalidProducerIdMapping, InvalidTxnState, ProducerFenced
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.broker.test_crash_transactions import CONFIG, GROUP, KEYED, TIMEOUT_MS, Client, Machine, Transaction, run
from tests.tiers import of_today, quick

pytestmark = pytest.mark.system


class ServerMachine(Machine):
    """The log of a server."""

    def __init__(self, random: Random) -> None:
        self.opening = False
        self.asked: dict[Transaction, bool] = {}
        """The ends that were asked for."""
        self.places: dict[Transaction, tuple[TopicPartition, int]] = {}
        """Where its last offsets were stored; gone once they are durable."""
        self.maybe_fenced: set[Transaction] = set()
        super().__init__(random)

    # clients ---------------------------------------------------------------------------------------------------------

    def init(self, client: Client) -> None:
        for _ in range(6):
            client.forget()
            with contextlib.suppress(ConcurrentTransactions):
                client.use(self.broker.transactions.init_producer_id(client.transactional_id, TIMEOUT_MS, self.now_ms))
                return
            self.flush()
        raise AssertionError(f"{client.transactional_id} is never free again: {self.broker!r}")

    def send(self) -> None:
        with contextlib.suppress(ConcurrentTransactions):
            super().send()

    def send_offsets(self) -> None:
        client = self.ready()
        if client is None:
            return
        name, producer, transaction = client.transactional_id, client.producer, client.transaction
        assert producer is not None
        assert transaction is not None
        try:
            self.broker.transactions.add_offsets(name, producer, GROUP, self.now_ms)
        except ConcurrentTransactions:
            return
        self.number += 1
        tp = client.commits_in
        if tp not in transaction.offsets:
            self.offsets[tp].append(transaction)
        transaction.offsets[tp] = self.number
        offsets = {tp: OffsetAndMetadata(self.number)}
        self.places[transaction] = tp, -1  # a crash may come before the answer
        stored = self.broker.transactions.commit_offsets(
            name, producer, GroupMetadata(GROUP), offsets, self.now_ms, added=True
        )
        self.places[transaction] = stored.topic_partition, stored.last_offset

    def end(self, *, committed: bool) -> None:
        client = self.ready()
        if client is None:
            return
        transaction = client.transaction
        assert transaction is not None
        if committed:
            self.flush_all()
        if transaction.records or transaction.offsets:
            transaction.end = self.ask(client, transaction, committed=committed)
            if committed:
                self.pending.append(transaction)

    def ask(self, client: Client, transaction: Transaction, *, committed: bool) -> TransactionEnd:
        assert client.producer is not None
        if committed:
            transaction.committed = None
        self.asked[transaction] = committed
        return self.broker.transactions.end(
            client.transactional_id, client.producer, committed=committed, now_ms=self.now_ms, bump_epoch=False
        )

    def settle(self) -> None:
        """A commit is answered when it is decided for good."""
        for transaction in list(self.pending):
            assert transaction.end is not None
            if self.broker.is_durable(transaction.end.topic_partition, transaction.end.offset):
                transaction.committed = True
                self.pending.remove(transaction)

    def time_out(self) -> None:
        self.maybe_fenced |= {client.transaction for client in self.clients if client.transaction is not None}
        super().time_out()

    # a new life ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.opening = True
        self.pending = []
        self.broker = Broker.open(self.storage, CONFIG, now_ms=self.now_ms, new_id=self.new_id)
        for client in self.clients:
            self.come_back(client)
        self.flush_all()
        self.places.clear()
        self.opening = False

    def come_back(self, client: Client) -> None:
        """Then it begins anew, which ends what it may have left open."""
        transaction = client.transaction
        if client.producer is not None and transaction is not None and self.random.random() < 0.75:
            committed = self.asked.get(transaction)
            was_open = committed is None
            if committed is None:
                committed = self.is_acked(transaction) and self.random.random() < 0.8
            self.ask_again(client, transaction, committed=committed, was_open=was_open)
        self.init(client)

    def ask_again(self, client: Client, transaction: Transaction, *, committed: bool, was_open: bool) -> None:
        for _ in range(6):
            try:
                self.ask(client, transaction, committed=committed)
            except ConcurrentTransactions:
                self.flush()
            except (ProducerFenced, InvalidTxnState, InvalidProducerIdMapping):
                acked = was_open and committed and transaction not in self.maybe_fenced
                assert not acked, f"{transaction} was acknowledged, and its commit is refused"
                return
            else:
                self.flush_all()
                transaction.committed = committed
                return
        raise AssertionError(f"{transaction} never comes to its end: {self.broker!r}")

    def is_acked(self, transaction: Transaction) -> bool:
        """Whether all of it, and something, was."""
        if transaction in self.places or not (transaction.records or transaction.offsets):
            return False
        acked = {value for tp, history in self.history.items() for value, _ in history[: self.acked[tp]]}
        acked |= {value for offset, (_, value, _) in self.keyed.items() if offset < self.acked[KEYED]}
        return all(value in acked for _, value in transaction.records)

    def flush(self) -> None:
        if not self.opening:
            super().flush()
            places = self.places.items()
            self.places = {one: place for one, place in places if not self.broker.is_durable(*place)}
        elif self.broker.needs_sync:  # what is there and what was lost has not been looked at yet
            flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)

    def seen(self) -> tuple[str, dict[str, bytes]]:
        """Clients that come back change something."""
        return "", {}


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            run(seed, ServerMachine)
        except Exception as error:
            error.add_note(f"seed {seed}: tests.broker.test_crash_old_clients.run({seed}, ServerMachine)")
            raise


@pytest.mark.usefixtures("latest_records_are_saved_often")
@pytest.mark.parametrize("block", quick(range(8), 1))
def test_power_cuts(block: int) -> None:
    run_seeds(range(block * 100, (block + 1) * 100))


@pytest.mark.usefixtures("latest_records_are_saved_often")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_power_cuts() -> None:
    run_seeds(of_today(range(10_000, 18_000)))


@pytest.mark.slow
def test_complete_before_the_markers_are_durable_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Endings._advance

    def too_early(self: Endings, transactional_id: str, ending: Any, now_ms: int) -> None:
        ending.markers = Forgetful()
        advance(self, transactional_id, ending, now_ms)

    class Forgetful(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    monkeypatch.setattr(Endings, "_advance", too_early)
    with pytest.raises(AssertionError):
        for seed in range(2_000):
            run(seed, ServerMachine)

"""Try many promises of the conformance kit at the same time, on a server that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition

import pytest

from eventbus.testing.conformance import Promise
from tests.kafka.targets import Node, on

PATIENCE_SECONDS = 90
"""A broker that is started again takes seconds for it, and some promises do so several times."""
AT_ONCE = 12
"""How many promises are tried at once. Most of their time is waiting, for the broker and for groups."""


class SharedNode:
    """A server of several promises. It is stopped, or killed, when all of those that have not ended wait for that."""

    def __init__(self, node: Node, promises: int) -> None:
        self._node = node
        self.bootstrap = node.bootstrap
        self._going_on = promises
        self._waiting = self._round = 0
        self._changed = Condition()

    def start(self) -> None:
        """Return: `_when_all_wait` has started it again."""

    def stop(self) -> None:
        self._rendezvous(self._node.stop)

    def kill(self) -> None:
        self._rendezvous(self._node.kill)

    def _rendezvous(self, end: Callable[[], None]) -> None:
        with self._changed:
            this = self._round
            self._waiting += 1
            self._when_all_wait(end)
            self._changed.wait_for(lambda: self._round != this)

    def leave(self, end: Callable[[], None]) -> None:
        """Stop waiting for a promise that has ended."""
        with self._changed:
            self._going_on -= 1
            self._when_all_wait(end)

    def _when_all_wait(self, end: Callable[[], None]) -> None:
        if self._waiting and self._waiting == self._going_on:
            try:
                end()
                self._node.start()
            finally:
                self._waiting = 0
                self._round += 1
                self._changed.notify_all()

    def check(self, promise: Promise, settings: Mapping[str, str]) -> None:
        try:
            promise.check(on(self, **settings), patience_seconds=3 * PATIENCE_SECONDS)
        finally:
            self.leave(self._node.kill if "kill" in promise.needs else self._node.stop)


def side_by_side(
    promises: Iterable[Promise], node: Node, test: str, request: pytest.FixtureRequest, **settings: str
) -> dict[str, Future[None]]:
    """Try those promises that ``test`` is run for, each in a thread, and return their outcomes by name.

    First come the promises that leave the server alone, then those that stop it, then those that kill it.
    """
    selected = {item.name for item in request.session.items if item.path == request.path}
    wanted = [promise for promise in promises if f"{test}[{promise!r}]" in selected]
    outcomes: dict[str, Future[None]] = {}
    for needs in ((), ("restart",), ("kill",)):
        chosen = [promise for promise in wanted if promise.needs == frozenset(needs)]
        shared = SharedNode(node, len(chosen))
        with ThreadPoolExecutor(max(len(chosen), 1) if needs else AT_ONCE) as threads:
            outcomes |= {promise.name: threads.submit(shared.check, promise, settings) for promise in chosen}
    return outcomes

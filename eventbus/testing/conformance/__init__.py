"""The promises that every backend keeps, each stated once, to be checked on a custom backend.

A promise uses only the public client. Define a `Target`, and check the promises with any test runner::

    from eventbus.testing.conformance import PROMISES, Target, promises_for

    class MyTarget(Target):
        can = frozenset({"restart"})

        def open(self):
            return EventBus("mylog://...", backend=MyBackend(...))

    @pytest.mark.parametrize("promise", promises_for(MyTarget), ids=repr)
    def test_promise(promise):
        promise.check(MyTarget())

For details see docs/internals/conformance.md.
"""

from __future__ import annotations

from eventbus.testing.conformance import (
    admin,
    cleaning,
    fencing,
    groups,
    joining,
    members,
    patterns,
    producers,
    progress,
    records,
    stopping,
    transactions,
)
from eventbus.testing.conformance.target import PROMISES, Ability, Promise, Target, promise, promises_for
from eventbus.testing.conformance.world import World

__all__ = [
    "PROMISES",
    "Ability",
    "Promise",
    "Target",
    "World",
    "admin",
    "cleaning",
    "fencing",
    "groups",
    "joining",
    "members",
    "patterns",
    "producers",
    "progress",
    "promise",
    "promises_for",
    "records",
    "stopping",
    "transactions",
]

"""What every backend promises, each promise stated once, to be tried on a backend of your own.

A promise uses nothing but the public client. Give a `Target`, and try them with any test runner::

    from eventbus.testing.conformance import PROMISES, Target, promises_for

    class MyTarget(Target):
        can = frozenset({"restart"})

        def open(self):
            return EventBus("mylog://...", backend=MyBackend(...))

    @pytest.mark.parametrize("promise", promises_for(MyTarget), ids=repr)
    def test_promise(promise):
        promise.check(MyTarget())

The page docs/conformance.md has the whole story.
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

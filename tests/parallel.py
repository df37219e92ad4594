"""``pytest -n auto`` (pytest-xdist), as ``make test`` runs it: how many workers, who shares one, what begins first.

The tests of a file stay together, because they share what the file sets up. Besides:

- a folder of ``TOGETHER`` is one piece of work: what its session sets up (a broker, a JVM) costs seconds;
- in a file of ``APART`` the tests share nothing and are long: each is a piece of its own;
- of the pieces of ``HEAVY``, whose JVMs keep two cores busy, one runs at a time, as long as there is something else;
- the long ones of ``LONG`` begin first, or everybody waits for one of them at the end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

TOGETHER = (
    "tests/clients/", "tests/cluster_faults/", "tests/failover/", "tests/kafka/", "tests/schema_registry/clients/",
    "tests/spark/live/", "tests/three_urls/",
)  # fmt: skip
APART = ("tests/test_readme.py", "tests/outbox/kill/test_kill.py")
HEAVY = (
    *TOGETHER, "tests/mirror/test_kafka.py", "tests/schema_registry/core/test_on_kafka.py",
    "tests/dlq/kill/test_on_kafka.py", "tests/dlq/runtime/test_promises.py", "tests/outbox/kill/test_on_kafka.py",
    "tests/spark/faults/",
)  # fmt: skip
LONG = (
    "tests/kafka/", "tests/clients/", "tests/spark/live/", "tests/spark/faults/", "tests/three_urls/",
    "tests/cluster_faults/", "tests/failover/", "tests/test_readme.py", "tests/testing/test_crash_points.py",
    "tests/log/test_crash.py", "tests/cli/test_demo.py", "tests/faults/", "tests/outbox/kill/", "tests/outbox/faults/",
    "tests/dlq/", "tests/broker/test_cleaning.py",
)  # fmt: skip
"""By how they begin, the longest first."""

MOST_WORKERS = 4


def workers(config: pytest.Config) -> int:
    """One per core; none where few tests were asked for, or where somebody wants to look into the process itself."""
    option = config.option
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    few = not everything or option.keyword or option.lf or option.collectonly
    alone = option.capture == "no" or option.rewrite
    return 0 if few or alone else min(os.cpu_count() or 1, MOST_WORKERS)


def piece_of(nodeid: str) -> str:
    """The piece of work that a test belongs to."""
    if nodeid.startswith(APART):
        return nodeid
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def rank(piece: str) -> int:
    return next((place for place, start in enumerate(LONG) if piece.startswith(start)), len(LONG))


class Pieces(LoadScopeScheduling):
    """xdist's scheduler, with pieces of our own cut, in our own order."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of tests, which says little about their length

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Puts the piece that this worker should take next in front of the queue."""
        # What a crashed worker had is queued again, with all that it had finished: who is given nothing to do is never
        # asked again, and all wait for ever.
        for piece in [piece for piece, done in self.workqueue.items() if all(done.values())]:
            del self.workqueue[piece]
        if not self.workqueue:
            node.shutdown()
            return
        others = [units for other, units in self.assigned_work.items() if other is not node]
        is_busy = any(
            piece.startswith(HEAVY) and not all(done.values()) for units in others for piece, done in units.items()
        )
        best = min(self.workqueue, key=lambda piece: (piece.startswith(HEAVY) == is_busy, rank(piece)))
        self.workqueue.move_to_end(best, last=False)
        super()._assign_work_unit(node)

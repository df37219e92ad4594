"""Distribute the tests over the workers of ``pytest -n auto`` (pytest-xdist).

The tests of a file run on one worker, because they share what the file sets up. Files that share a server or a JVM name
it with ``pytest.mark.xdist_group("kafka")`` and run on one worker too, so that it starts once. Groups start first: they
are the longest pieces, and nothing must wait for one at the end. Then come the files of the system tier, then core.

The group of a file is read from its text. pytest-xdist 3.8 appends it to the ids of tests through an attribute that
pytest 9.2 ignores: without an error, the files of a group would run on any worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.tiers import group_of_file

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

MOST_WORKERS = 4
SPARE_WORKERS = 2
"""More than cores: tests of brokers, databases and processes wait for most of their time."""


def worker_count(config: pytest.Config) -> int:
    """One worker per core and two more, or none if few tests are selected, or -s or --pdb is given.

    Without workers, the tests run in this process.
    """
    option = config.option
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    few = not everything or option.keyword or option.lf or option.collectonly
    alone = option.capture == "no" or option.rewrite
    return 0 if few or alone else min((os.cpu_count() or 1) + SPARE_WORKERS, MOST_WORKERS)


def unit_of(nodeid: str, root: Path) -> str:
    """Return what the test is distributed with: the group of its file, or else the file."""
    file = nodeid.partition("::")[0]
    return group_of_file(root / file) or file


class FilesAndGroups(LoadScopeScheduling):
    """A scheduler of pytest-xdist whose unit of work is a file, or the files of one ``xdist_group``."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        # Without this, xdist sorts by the number of tests in a unit, which says little about its duration.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid, self.config.rootpath)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give the next unit to a worker.

        When a worker crashes, xdist queues its unit again, even if all of its tests have finished. A worker that gets
        such a unit runs nothing, reports nothing, and is never given another one: the run would wait forever.
        """
        for scope in [scope for scope, tests in self.workqueue.items() if all(tests.values())]:
            del self.workqueue[scope]
        if self.workqueue:
            super()._assign_work_unit(node)
        else:
            node.shutdown()

"""Logs of every kind, empty: in memory, in a directory, or served over the network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventbus.testing import KafkaServer
from tests.disks import nothing_waits_for_the_disk

__all__ = ["nothing_waits_for_the_disk"]

NewLog = Callable[[str], str]
_numbers = itertools.count()


@pytest.fixture
def new_log(tmp_path: Path) -> Iterator[NewLog]:
    """``new_log("memory" | "file" | "served")`` gives the URL of a new log."""
    with ExitStack() as stack:

        def make(kind: str) -> str:
            number = next(_numbers)
            if kind == "served":
                return f"kafka://{stack.enter_context(KafkaServer(auto_create_topics=False)).bootstrap}"
            return f"file://{tmp_path}/log-{number}" if kind == "file" else f"memory://mirror-{number}"

        yield make

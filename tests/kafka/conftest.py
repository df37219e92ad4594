"""``eventbus serve``, once for all tests of kafka://."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.targets import KillableServer, Node


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    server = KillableServer(tmp_path_factory.mktemp("served"))
    with server:
        yield server

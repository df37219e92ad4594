"""``eventbus serve --registry-port`` as a process of its own, for clients of other people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import modules
from tests.clients.conftest import or_skip
from tests.clients.serving import Served


class Both(Served):
    """The log and its registry."""

    @property
    def registry(self) -> str:
        return self.answer["registry"]


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with Both(tmp_path_factory.mktemp("both"), "--auto-create", "--registry-port", "0") as server:
        yield server


@pytest.fixture(scope="session")
def node_modules() -> Path:
    return or_skip(modules.installed)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for topics and subjects that no other test uses."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")

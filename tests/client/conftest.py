"""Run tests with a bus on each kind of embedded storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus
from tests.disks import nothing_waits_for_the_disk

__all__ = ["nothing_waits_for_the_disk"]

MakeBus = Callable[..., EventBus]


@pytest.fixture(params=["memory", "file", "file-os"])
def make_bus(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBus:
    """Return a factory of buses on one log. On file storage a bus reads what its predecessor wrote."""

    def make(**config: Any) -> EventBus:
        if request.param == "memory":
            return EventBus("memory://", **config)
        fsync = "os" if request.param == "file-os" else "commit"
        return EventBus(
            f"file://{tmp_path / 'log'}", **{"fsync": fsync, "service": config.get("client_id", "eventbus"), **config}
        )

    return make


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'log'}"

"""Logs on disks whose flushes nobody waits for: the conftest of a folder imports the fixture, for all its tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut in these tests but on `CrashStorage`, so real flushes are only slow; a wrong path still fails."""
    monkeypatch.setattr("eventbus.log.storage._fdatasync", os.fstat)
    monkeypatch.setattr("eventbus.log.storage._sync_directory", lambda path, root: os.stat(path, dir_fd=root))

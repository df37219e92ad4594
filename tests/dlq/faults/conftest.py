"""A log in memory with a fake clock."""

from __future__ import annotations

import itertools

import pytest

from eventbus.testing import FakeClock
from tests.dlq.faults.failing import Breaking

_numbers = itertools.count()


@pytest.fixture
def log() -> Breaking:
    return Breaking(f"memory://dlq-faults-{next(_numbers)}", FakeClock())

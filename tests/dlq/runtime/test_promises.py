"""Every promise in memory, and some of them in a file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from eventbus.testing import FakeClock
from tests.dlq.runtime.all_promises import PROMISES, Promise, some
from tests.dlq.runtime.logs import Log

_numbers = itertools.count()


def in_memory(promise: Promise) -> Any:
    """Plain functions run in threads, for which no fake clock waits: real milliseconds pass."""
    return pytest.param(promise, id=repr(promise), marks=pytest.mark.system if "(plain" in repr(promise) else ())


@pytest.mark.parametrize("promise", [in_memory(promise) for promise in PROMISES])
def test_memory(promise: Promise) -> None:
    promise.check(Log(f"memory://dlq-runtime-{next(_numbers)}", clock=FakeClock(), keep=True))


@pytest.mark.system
@pytest.mark.parametrize("promise", some(PROMISES, 6))
def test_file(promise: Promise, tmp_path: Path) -> None:
    promise.check(Log(f"file://{tmp_path}/log?fsync=os", clock=FakeClock()))

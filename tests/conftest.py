"""Options, tiers and workers of the whole suite."""

from __future__ import annotations

import atexit
import compileall
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.tiers import SLOW_TIMEOUT_SECONDS, CoreGuard, sort_key, tier_of, tier_of_file

if TYPE_CHECKING:
    from eventbus.testing import FakeClock, TestBus

pytest_plugins = ["tests.kafka_fixtures"]

# `make test` tries the same examples each time, so that a commit is judged by its own change. `make test-full` selects
# the random profile and searches on; what it finds becomes an `@example`. Examples have no deadline: how long one takes
# on a loaded machine shows nothing about the code, and pytest's own timeout ends a test that hangs.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile("same")

# Its asserts explain more when they are rewritten, which must be requested before anything imports it.
pytest.register_assert_rewrite("eventbus.testing.conformance")

_guard = CoreGuard()

# The objects that importing and collecting create live until the end: the collector would scan them again and again.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the state machines' transcripts and the tables of docs/ from the code; then read the diff",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT: a shell makes background jobs ignore it, and programs that tests interrupt would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    use_temporary_files_in_memory()
    if sys.dont_write_bytecode:
        if not hasattr(config, "workerinput"):
            compile_packages()
        sys.dont_write_bytecode = False  # pytest rewrites the assertions of 300 files: 10 s in each worker, each time


def use_temporary_files_in_memory() -> None:
    """Let pytest create ``tmp_path`` in memory: fsync and rename wait for a disk, 200,000 times.

    Not in a small file system, as the 64 MB of a container, nor in one that programs cannot be started from.
    """
    shared_memory = "/dev/shm"
    if os.path.ismount(shared_memory):
        state = os.statvfs(shared_memory)
        if state.f_bavail * state.f_frsize > 4 * 2**30 and not state.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", shared_memory)


def compile_packages() -> None:
    """Compile the packages once. With PYTHONDONTWRITEBYTECODE, each child process would compile them again: 0.5 s."""
    packages = ("eventbus", "serdes", "outbox", "dlq", "schema_registry", "spark_sinks")
    for spec in filter(None, map(importlib.util.find_spec, packages)):
        for folder in spec.submodule_search_locations or ():
            if os.access(folder, os.W_OK):
                compileall.compile_dir(folder, quiet=2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    from tests.parallel import worker_count

    return worker_count(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests.parallel import FilesAndGroups

    return FilesAndGroups(config, log)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture
def bus(clock: FakeClock) -> TestBus:
    """The plugin's, but topics need not be declared: most tests are about something else."""
    from eventbus.testing import TestBus

    return TestBus(clock=clock, auto_create_topics=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m core``, do not import files of the other tiers (nor their conftest): their libraries may be missing."""
    if config.option.markexpr != "core":
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return True if all(tier_of_file(file) != "core" for file in files) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let every second worker begin at the last file: on a fresh clone, each rewrites the assertions of one half."""
    report = yield
    if isinstance(collector, pytest.Dir) and os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579":
        report.result.reverse()  # pytest_collection_modifyitems sorts
    return report


def pytest_collection_finish() -> None:
    """Exclude what was collected from garbage collection, and start it for the tests.

    The interpreter frees them at its exit: libraries in C warn about objects that are left. Not before pytest ends,
    which collects garbage twice.
    """
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)  # before xdist writes the groups into the ids, and before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parts)  # all workers must have the same order
    for item in items:
        if tier_of(item) == "core":
            item.add_marker("core")
        elif tier_of(item) == "slow" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))
    items.sort(key=sort_key(items))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    if tier_of(item) != "core":
        return (yield)
    with _guard.watch(item.nodeid):
        return (yield)

"""A running bus is dead in a forked child: each use raises at once, nothing hangs, and the parent goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from eventbus import forks
from eventbus.testing import KafkaServer
from tests.named import ROOT

pytestmark = pytest.mark.system


@pytest.fixture(scope="module", params=["memory", "file", pytest.param("kafka", marks=pytest.mark.slow)])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the outcome of each use in `tests.client.forked_children`, on one kind of log."""
    if request.param == "kafka":
        with KafkaServer() as server:
            return run_program(f"kafka://{server.bootstrap}")
    return run_program("memory://" if request.param == "memory" else f"file://{tmp_path_factory.mktemp('log')}")


def run_program(url: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.client.forked_children", url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return {"url": url, **json.loads(done.stdout)}


def test_each_use_of_a_running_bus_raises_and_states_what_to_do(outcomes: dict[str, Any]) -> None:
    refused = {**outcomes["refused"], **outcomes["loop"]}
    assert refused.pop("SIGTERM") == "ended with -15", "the parent's signal handler does not keep the child alive"
    for use, outcome in refused.items():
        for part in ("ConfigError: ", "was used in a forked child", f"in process {outcomes['process']}", "post_fork"):
            assert part in outcome, (use, outcome)


def test_leaving_the_parents_blocks_does_nothing(outcomes: dict[str, Any]) -> None:
    assert outcomes["left"] == dict.fromkeys(("blocking", "producer", "consumer"), "returned None")
    assert (outcomes["exit in the block"], outcomes["exit after the block"], outcomes["multiprocessing"]) == (7, 8, 0)


def test_a_bus_that_was_not_started_before_starts_in_the_child(outcomes: dict[str, Any]) -> None:
    assert outcomes["a stopped bus, while another thread starts one"] == "returned 'started'"
    for name in ("a new bus of the log", "a stopped bus of the log"):
        if outcomes["url"].startswith("file:"):  # the parent holds the directory
            assert f"is in use by process {outcomes['process']}" in outcomes[name]
        else:
            assert outcomes[name] == "returned 'started'"


def test_the_parent_goes_on(outcomes: dict[str, Any]) -> None:
    assert outcomes["offset of the parent's third record"] == 2


def test_what_another_thread_alone_holds_is_marked_before_it_is_freed() -> None:
    """Python drops the state of all other threads in the child, before anything of ours runs there."""
    reading, writing = os.pipe()
    is_held, may_end, local = threading.Event(), threading.Event(), threading.local()

    class Held:
        def after_fork_in_child(self) -> None:
            os.write(writing, b"marked ")

        def __del__(self) -> None:
            os.write(writing, b"freed")

    def hold() -> None:
        local.held = Held()
        forks.watch_forks(local.held)
        is_held.set()
        may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "marked freed"
    writing = os.open(os.devnull, os.O_WRONLY)
    may_end.set()
    thread.join()


def test_what_is_registered_is_not_kept_alive() -> None:
    """Only objects that are used otherwise are marked: a service that opens producers does not grow."""
    import gc

    from eventbus.client.threads import Home

    gc.collect()
    before = len(forks._copied)  # pyright: ignore[reportPrivateUsage]
    homes = [Home() for _ in range(10)]
    assert len(forks._copied) == before + 10  # pyright: ignore[reportPrivateUsage]
    del homes
    assert len(forks._copied) == before  # pyright: ignore[reportPrivateUsage]

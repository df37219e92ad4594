"""Several landings in one session, of which one fails."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from eventbus.errors import CorruptRecord, SparkCrashed, SparkFailed
from spark_sinks import errors, landing_runs
from spark_sinks.errors import in_short, own_error
from spark_sinks.landing_runs import run_all
from spark_sinks.running import Running


class FakeRunning:
    """One that has something to land, and fails or does not."""

    def __init__(
        self, story: list[str], name: str, error: Exception | None = None, *, checks: int = 0, deaths: int = 0
    ) -> None:
        self.deaths = deaths
        self.checks = checks
        self.story = story
        self.name = name
        self.error = error

    def look(self) -> int:
        return 1

    def exists(self) -> bool:
        self.checks -= 1
        return self.checks < 0

    def start(self, spark: Any, every_ms: int | None) -> None:
        self.story.append(self.name)

    def wait(self) -> None:
        if self.error is not None:
            raise self.error

    def goes_on_after(self, error: BaseException) -> bool:
        goes_on = self.deaths > 0
        self.deaths -= 1
        return goes_on

    def stop(self) -> None: ...

    def close(self) -> None:
        self.story.append(f"{self.name} closed")


def run(runs: list[FakeRunning], stop: threading.Event | None = None, every_ms: int | None = None) -> None:
    run_all(cast("list[Running]", runs), cast("Any", None), every_ms, stop)


@pytest.mark.parametrize("jvm_is_gone", [False, True])
def test_one_bad_topic_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch, jvm_is_gone: bool) -> None:
    monkeypatch.setattr(landing_runs, "is_gone", lambda spark: jvm_is_gone)
    story: list[str] = []
    errors = [CorruptRecord("a is torn"), None, CorruptRecord("c is torn"), None]
    runs = [FakeRunning(story, name, error) for name, error in zip("abcd", errors, strict=True)]
    with pytest.raises(CorruptRecord, match="a is torn") as raised:
        run(runs)
    if jvm_is_gone:
        assert story == ["a", "a closed"]
    else:
        assert story == [word for name in "abcd" for word in (name, f"{name} closed")]
        assert raised.value.__notes__ == ["and c is torn"]


def test_stop_leaves_the_rest_for_another_run() -> None:
    story: list[str] = []
    stop = threading.Event()
    stop.set()
    run([FakeRunning(story, "a")], stop)
    assert story == []


def test_a_topic_that_does_not_exist_yet_is_landed_once_it_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_runs, "_CREATED_SECONDS", 0)
    story: list[str] = []
    run([FakeRunning(story, "late", checks=3), FakeRunning(story, "early")], every_ms=0)
    assert story == ["early", "late", "late closed", "early closed"]


@pytest.mark.system  # looks at an error of py4j
def test_a_query_whose_worker_died_is_started_again() -> None:
    story: list[str] = []
    with pytest.raises(SparkCrashed):
        run([FakeRunning(story, "a", SparkCrashed("killed"), deaths=2)], every_ms=0)
    assert story == ["a", "a", "a", "a closed"]


@pytest.mark.system
@pytest.mark.parametrize(
    "text",
    [
        "Query [id = 1, runId = 2] terminated with exception: Connection reset",
        "Query [id = 1, runId = 2] terminated with exception: ",
        "Job aborted. org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "Query [id = 1, runId = 2] terminated with exception: Python worker failed to connect back.",
    ],
)
def test_the_death_of_a_worker_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from pyspark.errors import PySparkException

    monkeypatch.setattr(errors, "is_gone", lambda spark: False)
    found = own_error(PySparkException(text), cast("Any", None))
    assert isinstance(found, SparkCrashed)
    assert str(found).startswith("A Python worker of Spark ended during the landing (")
    other = own_error(PySparkException("Query terminated with exception: no such column"), cast("Any", None))
    assert isinstance(other, SparkFailed)


def test_a_worker_with_another_python_is_given_the_variable() -> None:
    text = "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'spark_sinks'\n"
    assert "No module named 'spark_sinks'. The worker runs another Python" in in_short(text)
    assert "PYSPARK_PYTHON" in in_short(text)


def test_a_landing_of_a_topic_that_does_not_exist_yet_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_runs, "_CREATED_SECONDS", 0)
    stop, story = threading.Event(), list[str]()
    stop.set()
    landing_runs._run(cast("list[Running]", [FakeRunning(story, "late", checks=9)]), cast("Any", None), 0, stop)
    assert story == ["late closed"]

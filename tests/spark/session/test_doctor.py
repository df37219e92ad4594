"""The doctor: what is missing or set badly, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_sinks.session import doctor as doctoring
from spark_sinks.session.doctor import Check, doctor

if TYPE_CHECKING:
    from pathlib import Path


def found(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_here_nothing_is_bad() -> None:
    """The machine of these tests can land: the fixture `spark` of other tests does."""
    checks = doctor()
    assert [check for check in checks if check.status == "bad"] == []
    assert all(check.advice for check in checks if check.status == "hint")
    assert {"pyspark", "Java", "memory", "databases"} <= {check.name for check in checks}


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

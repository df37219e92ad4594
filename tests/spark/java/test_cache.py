"""The class cache: which file is whose, and what a JVM is told of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventbus.errors import ConfigError
from spark_sinks.java.cache import cache_directory, cache_file, cache_options, obsolete
from spark_sinks.java.jvm import Java
from spark_sinks.session import warmup as warming


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own, and a Java with two jars of Spark's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="25.0.2"')
    (tmp_path / "jars").mkdir()
    for name in ("spark-core_2.13-4.3.0.jar", "spark-sql_2.13-4.3.0.jar"):
        (tmp_path / "jars" / name).write_bytes(b"jar")
    return tmp_path


def file_of(home: Path, major: int = 25) -> Path:
    return cache_file(home / "jdk" / "bin" / "java", major, home / "jars")


def test_one_java_and_one_set_of_jars_have_one_cache(home: Path) -> None:
    file = file_of(home)
    assert file.parent == cache_directory() == home / "cache" / "eventbus" / "spark"
    assert file == file_of(home)
    assert (file.suffix, file_of(home, 17).suffix) == (".aot", ".jsa")


@pytest.mark.parametrize("change", ["a jar is touched", "a jar is another", "a jar more", "another Java"])
def test_what_the_jvm_would_refuse_is_another_file(home: Path, change: str) -> None:
    before = file_of(home)
    jar = home / "jars" / "spark-sql_2.13-4.3.0.jar"
    match change:
        case "a jar is touched":
            os.utime(jar, (1, 1))
        case "a jar is another":
            jar.write_bytes(b"other jar")
        case "a jar more":
            (home / "jars" / "more-1.0.jar").touch()
        case _:
            (home / "jdk" / "release").write_text('JAVA_VERSION="25.0.2" IMPLEMENTOR="another"')
    assert file_of(home) != before


def test_a_jvm_is_told_of_a_cache_only_when_there_is_one(home: Path) -> None:
    file = file_of(home)
    assert cache_options(file, 25) == []
    file.parent.mkdir(parents=True)
    file.touch()
    assert cache_options(file, 25) == [f"-XX:AOTCache={file}", "-Xlog:disable"]
    assert cache_options(file, 17) == [f"-XX:SharedArchiveFile={file}", "-Xlog:disable"]
    assert cache_options(file, 25, training=True) == [f"-XX:AOTCacheOutput={file}"]
    assert cache_options(file, 21, training=True) == [f"-XX:ArchiveClassesAtExit={file}"]


def trained(monkeypatch: pytest.MonkeyPatch, home: Path, program: str) -> None:
    """Instead of the training: a program that is given the file to make."""
    java = Java(home / "jdk" / "bin" / "java", 25, "JAVA_HOME")
    monkeypatch.setattr(warming, "find_java", lambda: java)
    monkeypatch.setattr(warming, "spark_package", lambda: home)
    run: Any = subprocess.run

    def instead(command: list[str], **more: object) -> object:
        assert command[1:3] == ["-m", "spark_sinks.session.training"]
        return run([sys.executable, "-c", program, command[3]], **more)

    monkeypatch.setattr(warming.subprocess, "run", instead)


@pytest.mark.system
def test_warmup_puts_the_whole_file_in_place_and_removes_those_of_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(monkeypatch, home, "import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(b'classes')")
    other = cache_directory() / "classes-java17-0123456789abcdef.jsa"
    other.parent.mkdir(parents=True)
    other.touch()
    assert obsolete(file_of(home)) == [other]
    made = warming.warmup()
    assert (made.path, made.size_bytes) == (str(file_of(home)), 7)
    assert list(cache_directory().iterdir()) == [file_of(home)]


@pytest.mark.system
def test_a_warmup_that_fails_says_why_and_keeps_the_old_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(home).parent.mkdir(parents=True)
    file_of(home).write_bytes(b"old")
    trained(monkeypatch, home, "import sys; sys.exit('no room on the device')")
    with pytest.raises(ConfigError, match=r"made no class cache: no room on the device\. Spark works without one"):
        warming.warmup()
    assert file_of(home).read_bytes() == b"old"
    assert list(cache_directory().iterdir()) == [file_of(home)]

"""The jars of Spark's Kafka source: where they come from, without a network."""

from __future__ import annotations

import ssl
import struct
from pathlib import Path

import pytest

from eventbus.errors import ConfigError
from spark_sinks.java import connector as connecting
from spark_sinks.java.connector import Release, connector, connector_coordinate, installed_spark, kept_connector
from spark_sinks.java.network import java_network

NEEDED = ("spark-sql-kafka-0-10_2.13-4.2.0.jar", "kafka-clients-3.9.2.jar")


@pytest.fixture
def pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyspark of the test's own, whose Ivy is not to be asked."""
    jars = tmp_path / "pyspark" / "jars"
    jars.mkdir(parents=True)
    for name in ("spark-core_2.13-4.3.0.jar", "lz4-java-1.11.0.jar", "ivy-2.5.3.jar", "jsr305-3.0.0.jar"):
        (jars / name).touch()
    monkeypatch.setattr(connecting, "spark_package", lambda: tmp_path / "pyspark")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EVENTBUS_SPARK_JARS", raising=False)
    return tmp_path


def filled(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in NEEDED:
        (directory / name).touch()
    return directory


def test_the_version_of_spark_is_that_of_its_jars(pyspark: Path) -> None:
    assert installed_spark() == Release("4.3.0", "2.13")


def test_what_was_fetched_is_used_again(pyspark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = filled(kept_connector(installed_spark()))
    monkeypatch.setattr(connecting.subprocess, "run", lambda *_, **__: pytest.fail("something was fetched"))
    assert [path.name for path in connector()] == sorted(NEEDED)
    assert kept == pyspark / "cache" / "eventbus" / "spark" / "kafka-4.3.0_2.13"
    assert connector_coordinate() == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def test_jars_among_sparks_own_need_nothing(pyspark: Path) -> None:
    (pyspark / "pyspark" / "jars" / NEEDED[0]).touch()
    assert connector() == []


def test_jars_by_hand(pyspark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_SPARK_JARS", str(filled(pyspark / "mine")))
    assert connector() == sorted((pyspark / "mine").iterdir())
    monkeypatch.setenv("EVENTBUS_SPARK_JARS", str(pyspark))
    with pytest.raises(ConfigError, match=r"EVENTBUS_SPARK_JARS=.*there is no spark-sql-kafka"):
        connector()


def test_without_a_network_the_error_says_how_to_do_without(pyspark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        returncode = 1
        stdout = "  module not found: org.apache.spark#spark-sql-kafka-0-10_2.13\n"
        stderr = ""

    monkeypatch.setattr(connecting.subprocess, "run", lambda *_, **__: Failed())
    with pytest.raises(ConfigError) as caught:
        connector()
    for part in ("module not found", "kafka-clients and commons-pool2", "EVENTBUS_SPARK_JARS", "version 4.3.0"):
        assert part in str(caught.value)
    assert list((pyspark / "cache" / "eventbus" / "spark").iterdir()) == []
    assert connector_coordinate() == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"


def test_ivy_is_asked_for_the_newest_up_to_sparks_own_without_what_spark_has(
    pyspark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Done:
        returncode = 0
        stdout = stderr = ""

    def ivy(command: list[str], **_: object) -> Done:
        asked.append(Path(command[command.index("-ivy") + 1]).read_text("utf-8"))
        filled(Path(command[command.index("-retrieve") + 1]).parent)
        return Done()

    monkeypatch.setattr(connecting.subprocess, "run", ivy)
    assert [path.name for path in connector()] == sorted(NEEDED)
    assert 'rev="[4.0.0,4.3.0]"' in asked[0]
    assert '<exclude module="lz4-java"/>' in asked[0]
    assert connector() and len(asked) == 1


def test_java_gets_the_proxy_and_the_authorities_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user@proxy.example:3128")
    monkeypatch.setenv("http_proxy", "")
    options = java_network(tmp_path / "trusted.jks")
    assert options[:2] == ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"]
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    store = (tmp_path / "trusted.jks").read_bytes() if trusted else struct.pack(">Iii", 0xFEEDFEED, 2, 0)
    assert struct.unpack(">Iii", store[:12]) == (0xFEEDFEED, 2, len(trusted))
    assert all(certificate in store for certificate in trusted)

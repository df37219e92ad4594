"""Apache Kafka's jars from Maven Central: its broker, its tools, its Java client. Fetched once into ``.venv/kafka``.

Maven resolves and downloads them, and refuses a file whose checksum differs. A machine without Java or Maven leaves out
the tests that need them, with that reason, unless ``EVENTBUS_TEST_CLIENTS=require`` is set (as CI does).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POM = Path(__file__).with_name("java") / "pom.xml"
CACHE = ROOT / ".venv" / "kafka"

LATEST = "4.3.1"
OLD = "3.9.1"
"""The last line of Kafka that old clusters run, and whose tools still know ``--broker-list``."""


class NotAvailableError(Exception):
    """What is missing on this machine, and how to get it."""


@cache
def java() -> str:
    """The ``java`` that runs Kafka (17 or later).

    Raises:
        NotAvailableError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = (home and shutil.which("java", path=f"{home}/bin")) or shutil.which("java")
    if not found:
        raise NotAvailableError("there is no java on this machine (on Debian: apt install default-jre-headless maven)")
    return found


@cache
def class_path(version: str = LATEST) -> str:
    """The class path of one Kafka version; downloads it first if need be (20 s, 60 MB).

    Raises:
        NotAvailableError: no Java, no Maven, or Maven could not fetch the jars.
    """
    java()
    folder = CACHE / version
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(version, folder)
    return f"{folder}/*"


def _fetch(version: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotAvailableError("there is no mvn on this machine to fetch Kafka's jars (on Debian: apt install maven)")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "--quiet", "--batch-mode", "--strict-checksums", "--file", str(POM), f"-Dkafka.version={version}"]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise NotAvailableError(f"mvn could not fetch Kafka {version}: {(done.stdout + done.stderr).strip()[-2000:]}")
    partial.rename(folder)

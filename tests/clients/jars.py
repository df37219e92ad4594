"""Kafka's jars, as `eventbus.testing.kafka_jars` fetches them; here they are kept in ``.venv/kafka``.

A machine without Java or Maven leaves out the tests that need them, with that reason, unless
``EVENTBUS_TEST_CLIENTS=require`` is set (as CI does).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from eventbus.testing.kafka_jars import LATEST, NotAvailableError, class_path, home, java

__all__ = ["CACHE", "LATEST", "OLD", "ROOT", "NotAvailableError", "class_path", "java", "protobuf_jar"]

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("EVENTBUS_KAFKA_HOME", str(ROOT / ".venv" / "kafka"))
CACHE = home()

OLD = "3.9.1"
"""The last line of Kafka that old clusters run, and whose tools still know ``--broker-list``."""

PROTOBUF = "4.31.1"


def protobuf_jar() -> str:
    """Return the path of Java's Protobuf classes, fetched from Maven Central once. Raises NotAvailableError."""
    jar, maven = CACHE / f"protobuf-java-{PROTOBUF}.jar", shutil.which("mvn")
    if not jar.exists():
        java()
        if maven is None:
            raise NotAvailableError("mvn is missing, which fetches protobuf-java (on Debian: apt install maven)")
        artifact = f"com.google.protobuf:protobuf-java:{PROTOBUF}"
        command = [maven, "--quiet", "--batch-mode", "--strict-checksums", "dependency:copy", f"-Dartifact={artifact}"]
        done = subprocess.run([*command, f"-DoutputDirectory={CACHE}"], capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise NotAvailableError(f"mvn could not fetch {artifact}: {done.stdout[-2000:]}")
    return str(jar)

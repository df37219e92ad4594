"""Apache Avro's own `SchemaCompatibility`, out of the jars that PySpark brings."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NEEDED = ("avro-1", "jackson-core-2", "jackson-databind-2", "jackson-annotations-2", "slf4j-api-2")


def missing() -> str:
    """Why Java cannot be asked; empty: it can."""
    if shutil.which("javac") is None:
        return "needs a JDK: it runs a program from its source"
    return "" if _jars() else "needs the jars of Apache Avro, which come with pyspark"


def verdicts(pairs: Iterable[tuple[str, str]]) -> list[Any]:
    """For each (reader, writer): a list of [type, location, message], the text of an exception, or None: no schema."""
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    command = ["java", "-cp", ":".join(map(str, _jars())), str(HERE / "JavaCompatibility.java")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "jars"
    found = [next(folder.glob(f"{name}*.jar"), None) for name in NEEDED]
    return [jar for jar in found if jar is not None] if all(found) else []

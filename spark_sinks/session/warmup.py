"""`warmup`: make the class cache (`spark_sinks.java.cache`) by running a small job of the kind that landings are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.java.cache import cache_file, obsolete
from spark_sinks.java.jvm import find_java, import_path, spark_package

_TRAINING_S = 600


class Warmup(NamedTuple):
    """A class cache: where it is, how large, how long it took to make, and for which Java."""

    path: str
    size_bytes: int
    seconds: float
    java: str


def warmup() -> Warmup:
    """Rebuild the class cache for this machine's Java and Spark, and delete the caches for other versions.

    It takes a minute and 200 MB of disk. Raises `ConfigError` if Java or pyspark is missing, or if the training fails.
    """
    started = time.monotonic()
    java = find_java()
    to = cache_file(java.program, java.major, spark_package() / "jars")
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f"{to.name}.") as work:
        made = Path(work) / to.name
        command = [sys.executable, "-m", "spark_sinks.session.training", str(made)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(import_path())}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TRAINING_S, cwd=work, env=environ)
            failed = done.returncode or not made.is_file()
            said = (done.stderr + done.stdout).strip()[-1_000:]
        except subprocess.TimeoutExpired:
            failed, said = True, f"nothing within {_TRAINING_S} s"
        if failed:
            raise ConfigError(f"{java} made no class cache: {said or 'it did not say why'}. Spark works without one")
        made.replace(to)
    for path in obsolete(to):
        path.unlink(missing_ok=True)
    return Warmup(str(to), to.stat().st_size, time.monotonic() - started, repr(java))

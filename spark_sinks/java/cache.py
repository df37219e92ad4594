"""Java's classes made ready beforehand: Spark loads some ten thousand of them before the first row.

`spark_sinks.session.warmup` has the JVM keep what a small job loaded and linked: an AOT cache with Java 25 (JEP 514), a
class archive before that. It is used whenever there is one for exactly this Java and these jars. Should a file not fit
after all, the JVM passes over it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_AOT_FROM = 25


def cache_directory() -> Path:
    """Where what is fetched or made for Spark on this machine is kept."""
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "eventbus" / "spark"


def cache_file(java: Path, major: int, jars: Path) -> Path:
    """The cache for a ``java`` program and a directory of jars, made or not.

    The JVM compares the jars' places, sizes and times with those of the training, so all of them name the file.
    """
    told = hashlib.sha256(f"{java.resolve()} {major} {jars.resolve()}\n".encode())
    for path in (java.resolve().parents[1] / "release", *sorted(jars.glob("*.jar"))):
        if path.exists():
            stat = path.stat()
            told.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    suffix = "aot" if major >= _AOT_FROM else "jsa"
    return cache_directory() / f"classes-java{major}-{told.hexdigest()[:16]}.{suffix}"


def cache_options(file: Path, major: int, *, training: bool = False) -> list[str]:
    """The JVM's options to use a cache, or, in training, to write one at its end; none while there is no file."""
    if training:
        return [f"-XX:AOTCacheOutput={file}" if major >= _AOT_FROM else f"-XX:ArchiveClassesAtExit={file}"]
    if not file.is_file():
        return []
    # Without the log: it would warn on standard output of a cache that does not fit.
    used = f"-XX:AOTCache={file}" if major >= _AOT_FROM else f"-XX:SharedArchiveFile={file}"
    return [used, "-Xlog:disable"]


def obsolete(file: Path) -> list[Path]:
    """Caches of other Javas and other jars: nothing uses them until those come back."""
    return sorted(path for path in cache_directory().glob("classes-java*") if path.is_file() and path != file)

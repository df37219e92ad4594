"""Caches of loaded Java classes, because Spark loads some ten thousand of them before the first row.

`spark_sinks.session.warmup` lets the JVM store the classes that a small job loaded and linked: in an AOT cache with
Java 25 (JEP 514), or a class archive with older versions. A cache is used if it was made for exactly this Java and
these jars. If a file does not fit nevertheless, the JVM ignores it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_AOT_FROM = 25


def cache_directory() -> Path:
    """Return the cache directory for files fetched or made for Spark on this machine."""
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "eventbus" / "spark"


def cache_file(java: Path, major: int, jars: Path) -> Path:
    """Return the cache file for a ``java`` program and a directory of jars, whether or not it exists.

    The JVM compares the paths, sizes and times of jars with those of the training, so they are all hashed into the
    name.
    """
    told = hashlib.sha256(f"{java.resolve()} {major} {jars.resolve()}\n".encode())
    for path in (java.resolve().parents[1] / "release", *sorted(jars.glob("*.jar"))):
        if path.exists():
            stat = path.stat()
            told.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    suffix = "aot" if major >= _AOT_FROM else "jsa"
    return cache_directory() / f"classes-java{major}-{told.hexdigest()[:16]}.{suffix}"


def cache_options(file: Path, major: int, *, training: bool = False) -> list[str]:
    """Return JVM options to use a cache, or in training to write one on exit; none if the file does not exist."""
    if training:
        return [f"-XX:AOTCacheOutput={file}" if major >= _AOT_FROM else f"-XX:ArchiveClassesAtExit={file}"]
    if not file.is_file():
        return []
    # Logging is off, because the JVM would warn on standard output about a cache that does not fit.
    used = f"-XX:AOTCache={file}" if major >= _AOT_FROM else f"-XX:SharedArchiveFile={file}"
    return [used, "-Xlog:disable"]


def obsolete(file: Path) -> list[Path]:
    """Return caches for other versions of Java or other jars, which are currently unused."""
    return sorted(path for path in cache_directory().glob("classes-java*") if path.is_file() and path != file)

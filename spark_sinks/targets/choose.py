"""Which target ``to=`` names. The libraries of the others are not imported."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.targets.place import STORES, ObjectPath, Place, is_object, table_place
from spark_sinks.targets.target import Target

_KINDS = ("delta", "iceberg", "console", "postgresql", "mysql", "mariadb", "sqlite", "file")
_DATABASES = ("postgresql", "mysql", "mariadb", "sqlite")
_FAR = ("gcs", "abfs", "abfss", "hdfs")
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")


class TargetOptions(NamedTuple):
    """The options of a target.

    ``compression``: of Parquet files that the target writes itself (staged ones are the tasks' affair). ``stage``: a
    directory for staged files instead of the table's own; best on the same disk, else every file is copied.
    """

    compression: str = "zstd"
    stage: str | None = None


def open_target(to: str, *, options: TargetOptions | None = None) -> Target:
    """Return the target for a path or URL; nothing is made or connected before its `Target.open`.

    ``./warehouse/orders`` or ``file:///...``: a directory of Parquet files · ``delta:./lake/orders`` ·
    ``iceberg:./lake/orders`` or ``iceberg:<catalog>.<namespace>.<table>`` · ``s3://bucket/orders`` (``gs://``,
    ``az://``), also after ``delta:`` · ``postgresql://``, ``mysql://``, ``sqlite:///`` · ``console:``. Raises
    `ConfigError` for anything else, and where a library is missing.
    """
    options = options or TargetOptions()
    if options.compression not in COMPRESSIONS:
        raise ConfigError(f"compression={options.compression!r}: choose one of {', '.join(COMPRESSIONS)}")
    kind, colon, rest = to.partition(":")
    if kind == "delta" and colon:
        from spark_sinks.targets.delta.target import open_delta

        return open_delta(files_place(rest), options)
    if kind == "iceberg" and colon:
        from spark_sinks.targets.iceberg.target import open_iceberg

        return open_iceberg(rest, options)
    if kind == "console" and colon:
        from spark_sinks.targets.console import open_console

        return open_console(options)
    name = kind.partition("+")[0]
    if "://" in to and name not in _KINDS and (near := difflib.get_close_matches(name, _KINDS, 1)):
        raise ConfigError(f"to={to!r} names no kind of table. {kind!r} does not exist. Did you mean {near[0]!r}?")
    if kind in _FAR:
        raise ConfigError(f"to={to!r}: tables of files are in local directories, s3://, gs:// or az://")
    if is_database(to):
        from spark_sinks.targets.sql import open_sql

        return open_sql(to, options)
    if colon and kind != "file" and not is_object(to) and len(kind) > 1 and kind.isalnum():
        raise _unknown_kind(to, kind)
    from spark_sinks.targets.parquet.target import ParquetTarget

    return ParquetTarget(files_place(to), options)


def files_place(to: str) -> Place:
    """Return the place of a table of files. Raises `ConfigError` without ``obstore`` for one in an object store."""
    place = table_place(to)
    if isinstance(place, ObjectPath):
        from spark_sinks.targets.objects import require_obstore

        require_obstore(place)
    return place


def is_database(to: str) -> bool:
    """Return True for the URL of a database, also of an unknown one."""
    return "://" in to and to.partition(":")[0] not in ("file", "delta", "iceberg", *STORES, *_FAR)


def _unknown_kind(to: str, kind: str) -> ConfigError:
    if kind in _DATABASES:
        example = f"{kind}:///shop.db" if kind == "sqlite" else f"{kind}://me@host/shop"
        return ConfigError(f"to={kind}:...: a database is named by its URL, as in {example}#orders")
    near = difflib.get_close_matches(kind.lower(), _KINDS, 1)
    hint = f"did you mean {near[0]}:?" if near else f"there are {', '.join(f'{each}:' for each in _KINDS)}"
    return ConfigError(
        f"to={to!r}: there is no kind of table called {kind!r}; {hint} A directory of Parquet files of that name is "
        f"written ./{to}"
    )

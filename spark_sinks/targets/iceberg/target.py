"""`open_iceberg`: an Iceberg table in a local directory, in a catalog beside it or one that is configured.

``iceberg:./lake/orders`` is the table ``default.orders`` of the SQLite catalog ``./lake/catalog.db``, whose name in
there is ``default``; its files are below ``./lake/orders``. ``iceberg:prod.sales.orders`` is the table
``sales.orders`` of the catalog ``prod`` of pyiceberg's own configuration, whose ``warehouse`` is a local directory.
"""

# pyiceberg has little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eventbus.errors import ConfigError
from spark_sinks.targets.beside import MakeFiles
from spark_sinks.targets.choose import TargetOptions, local_directory
from spark_sinks.targets.files import LocalFiles
from spark_sinks.targets.iceberg.log import IcebergLog, Where, location_of
from spark_sinks.targets.logged import LoggedTarget, TableLog

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NAMESPACE = "default"
CATALOG = "default"
CATALOG_FILE = "catalog.db"
_CONFIGURED = re.compile(r"([\w-]+)((?:\.[\w-]+)+)\.([\w-]+)")


def open_iceberg(
    to: str,
    options: TargetOptions,
    *,
    make_files: MakeFiles = LocalFiles,
    make_log: Callable[[Where, str], TableLog] = IcebergLog,
) -> LoggedTarget:
    """The table that a path or ``catalog.namespace.table`` names. Raises `ConfigError` without ``pyiceberg``."""
    try:
        import pyiceberg as _  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise ConfigError('iceberg: needs pyiceberg: pip install "eventbus-log[spark,iceberg]"') from error
    configured = _CONFIGURED.fullmatch(to)
    where = _in_catalog(configured) if configured else _beside(local_directory(to))
    return LoggedTarget(
        f"iceberg:{to if configured else where.directory}",
        "Iceberg",
        where.directory,
        options,
        lambda: make_log(where, options.compression),
        make_files,
        keeps_partition_columns=True,
    )


def _beside(directory: Path) -> Where:
    file = directory.parent / CATALOG_FILE
    if odd := {"#", "?"} & set(str(directory)):
        raise ConfigError(f"iceberg:{directory}: locations of Iceberg are URLs, which end at {min(odd)!r}: rename it")

    def catalog() -> Catalog:
        try:
            from pyiceberg.catalog.sql import SqlCatalog
        except ImportError as error:
            raise ConfigError('iceberg: needs SQLAlchemy: pip install "eventbus-log[spark,iceberg]"') from error

        uri = "sqlite:///" + str(file).replace("%", "%25")
        return SqlCatalog(CATALOG, uri=uri, warehouse=location_of(directory.parent), **_synced())

    return Where(directory, (NAMESPACE, directory.name), catalog, file)


def _in_catalog(name: re.Match[str]) -> Where:
    from pyiceberg.catalog import load_catalog

    catalog, namespace, table = name[1], name[2].removeprefix("."), name[3]
    try:
        with load_catalog(catalog) as loaded:
            warehouse = str(loaded.properties.get("warehouse", ""))
    except Exception as error:  # pyiceberg raises what its parts raise
        raise ConfigError(f"iceberg:{name[0]}: catalog {catalog!r} cannot be loaded: {error}") from error
    if not warehouse or ("://" in warehouse and not warehouse.startswith("file://")):
        raise ConfigError(
            f"iceberg:{name[0]}: the warehouse of {catalog!r} must be a local directory, not {warehouse!r}"
        )
    path = local_directory(warehouse) / namespace / table
    return Where(path, (*namespace.split("."), table), lambda: load_catalog(catalog, **_synced()), None)


def _synced() -> dict[str, str]:
    from spark_sinks.targets.iceberg.io import SYNCED

    return SYNCED

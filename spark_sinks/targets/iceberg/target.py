"""`open_iceberg`: an Iceberg table in a local directory or an object store, in its own or a configured catalog.

``iceberg:./lake/orders`` is the table ``default.orders`` of the SQLite catalog ``./lake/catalog.db``, whose name in
there is ``default``; its files are below ``./lake/orders``. ``iceberg:prod.sales.orders`` is the table
``sales.orders`` of the catalog ``prod`` of pyiceberg's own configuration, whose ``warehouse`` is a local directory or
in an object store. A bucket cannot hold a catalog, so a table there needs a configured one.
"""

# pyiceberg has little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from eventbus.errors import ConfigError
from spark_sinks.targets.choose import TargetOptions, files_place
from spark_sinks.targets.iceberg.log import IcebergLog, Where, location_of
from spark_sinks.targets.logged import LoggedTarget, TableLog
from spark_sinks.targets.place import is_object, local_directory
from spark_sinks.targets.storage import MakeFiles, files_at

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NAMESPACE = "default"
CATALOG = "default"
CATALOG_FILE = "catalog.db"
_OPTIONS = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_token",
}
"""Properties of pyiceberg's catalogs, and the options of a place that tasks read the same from."""
_CONFIGURED = re.compile(r"([\w-]+)((?:\.[\w-]+)+)\.([\w-]+)")


def open_iceberg(
    to: str,
    options: TargetOptions,
    *,
    make_files: MakeFiles = files_at,
    make_log: Callable[[Where, str], TableLog] = IcebergLog,
) -> LoggedTarget:
    """Return the table that a path or ``catalog.namespace.table`` names. Raises `ConfigError` without ``pyiceberg``."""
    try:
        import pyiceberg as _  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise ConfigError('iceberg: needs pyiceberg: pip install "eventbus-log[spark,iceberg]"') from error
    if is_object(to):
        raise ConfigError(
            f"iceberg:{to.partition('?')[0]} names no catalog. An object store holds the files of an Iceberg table, "
            f"and a catalog outside of it decides which commit came first. Configure one for pyiceberg, with this "
            f"place as its warehouse, and write iceberg:CATALOG.NAMESPACE.TABLE."
        )
    configured = _CONFIGURED.fullmatch(to)
    where = _in_catalog(configured) if configured else _beside(local_directory(to))
    return LoggedTarget(
        f"iceberg:{to if configured else where.directory}",
        "Iceberg",
        where.directory,
        options,
        lambda: make_log(where, options.compression),
        make_files,
        lacks=frozenset({"nanos"}),
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
            properties = {key: str(value) for key, value in loaded.properties.items()}
    except Exception as error:  # pyiceberg raises what its parts raise
        raise ConfigError(f"iceberg:{name[0]}: catalog {catalog!r} cannot be loaded: {error}") from error
    warehouse = properties.get("warehouse", "")
    if not warehouse or ("://" in warehouse and not is_object(warehouse) and not warehouse.startswith("file://")):
        raise ConfigError(
            f"iceberg:{name[0]}: the warehouse of {catalog!r} must be a local directory or s3://, gs:// or az://, not "
            f"{warehouse!r}"
        )
    identifier = (*namespace.split("."), table)
    if not is_object(warehouse):
        place = local_directory(warehouse) / namespace / table
        return Where(place, identifier, lambda: load_catalog(catalog, **_synced()), None)
    options = {key: properties[theirs] for theirs, key in _OPTIONS.items() if theirs in properties}
    place = files_place(f"{warehouse.rstrip('/')}/{namespace}/{table}?{urlencode(options)}")
    return Where(place, identifier, lambda: load_catalog(catalog), None)


def _synced() -> dict[str, str]:
    from spark_sinks.targets.iceberg.io import SYNCED

    return SYNCED

"""`open_delta`: a Delta table in a directory or an object store."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from eventbus.errors import ConfigError
from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.delta.log import DeltaLog, require_deltalake
from spark_sinks.targets.logged import LoggedTarget, TableLog
from spark_sinks.targets.place import Place
from spark_sinks.targets.storage import MakeFiles, files_at


def open_delta(
    directory: Place,
    options: TargetOptions,
    *,
    make_files: MakeFiles = files_at,
    make_log: Callable[[Place, str], TableLog] = DeltaLog,
) -> LoggedTarget:
    """Return the table at ``directory``. Raises `ConfigError` when ``deltalake`` is not installed."""
    require_deltalake()
    if unquote(str(directory)) != str(directory):
        raise ConfigError(f"delta:{directory}: Delta's libraries read %.. in a directory's name as a letter: rename it")
    return LoggedTarget(
        f"delta:{directory}",
        "Delta",
        directory,
        options,
        lambda: make_log(directory, options.compression),
        make_files,
        lacks=frozenset({"time", "nanos"}),
    )

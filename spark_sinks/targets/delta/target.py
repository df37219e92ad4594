"""`open_delta`: a Delta table in a local directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from eventbus.errors import ConfigError
from spark_sinks.targets.beside import MakeFiles
from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.delta.log import DeltaLog, require_deltalake
from spark_sinks.targets.files import LocalFiles
from spark_sinks.targets.logged import LoggedTarget, TableLog


def open_delta(
    directory: Path,
    options: TargetOptions,
    *,
    make_files: MakeFiles = LocalFiles,
    make_log: Callable[[Path, str], TableLog] = DeltaLog,
) -> LoggedTarget:
    """The table at ``directory``. Raises `ConfigError` when ``deltalake`` is not installed."""
    require_deltalake()
    if unquote(str(directory)) != str(directory):
        raise ConfigError(f"delta:{directory}: Delta's libraries read %.. in a directory's name as a letter: rename it")
    return LoggedTarget(
        f"delta:{directory}", "Delta", directory, options, lambda: make_log(directory, options.compression), make_files
    )

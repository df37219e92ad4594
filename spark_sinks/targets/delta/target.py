"""`open_delta`: a Delta table in a local directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
    return LoggedTarget(
        f"delta:{directory}", directory, options, lambda: make_log(directory, options.compression), make_files
    )

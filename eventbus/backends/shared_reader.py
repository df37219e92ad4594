"""Make a log that this process has open readable for other processes of this machine, such as Spark's tasks.

Imports no log code: a process without an open log pays nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.backends.engine import Engine


@contextlib.contextmanager
def readable_outside(url: str) -> Generator[str]:
    """Yield a URL or path at which other processes can read the log at ``url``, including records to come.

    A log in memory is copied into a directory that only this user may read; the copy grows with the log, and is removed
    at the end. For a log on disk that is open here, readers may read up to the present end at once, instead of within a
    second. Any other log is read in place.

    May be called from any thread. Raises ConfigError for a log in memory that is not open in this process, StorageError
    if the disk is too full for a copy.
    """
    if url.startswith("memory://"):
        with _copied(_in_memory(url)) as directory:
            yield directory
        return
    scheme, _, rest = url.partition("://") if "://" in url else ("file", "", url)
    if scheme == "file":
        path = Path(unquote(rest.partition("?")[0]) if "://" in url else rest).expanduser()
        for engine in _opened(f"file://{os.path.realpath(path)}"):
            with contextlib.suppress(ConfigError):  # its loop has ended, so nothing is written any more
                engine.call(engine.publish)
    yield url


@contextlib.contextmanager
def _copied(engine: Engine) -> Generator[str]:
    from eventbus.log.storage import FileStorage, storage_error

    name = re.sub(r"\W+", "-", engine.name.removeprefix("memory://").partition("?")[0])[:40]
    with tempfile.TemporaryDirectory(prefix=f"eventbus-memory-{name}-", ignore_cleanup_errors=True) as directory:
        to = FileStorage(directory)
        try:
            copy = engine.call(lambda: engine.copy_to(to))
        except OSError as error:
            raise storage_error(error, f"copying {engine.name} to {directory}") from error
        try:
            yield directory
        finally:
            with contextlib.suppress(ConfigError):  # its bus was closed meanwhile, and nothing is written any more
                engine.call(copy.close)
        if copy.error is not None:
            raise storage_error(copy.error, f"copying {engine.name} to {directory}") from copy.error


def _in_memory(url: str) -> Engine:
    found = _opened(url)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{len(found)} buses of this process have a {url} of their own: give the one that is meant a name, here "
            "and there (memory://shop)"
        )
    others = ", ".join(sorted({engine.name for engine in _opened() if engine.name.startswith("memory://")}))
    raise ConfigError(
        f"{url} is not open in this process ({f'open are {others}' if others else 'no log in memory is'}): such a log "
        "is there inside of `async with bus:` or `with bus.blocking():`, for this process alone; file://DIR stays"
    )


def _opened(name: str | None = None) -> list[Engine]:
    loaded: Any = sys.modules.get("eventbus.backends.engine")
    if loaded is None:
        return []
    return loaded.Engine.opened(name)

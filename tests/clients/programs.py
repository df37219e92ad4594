"""Programs of other people that pages show: where they are found on this machine, or made so that they are found."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from tests.clients import modules
from tests.clients.jars import CACHE, NotAvailableError, class_path, java
from tests.clients.tools import OPTIONS, TOOLS

SHIMS = CACHE / "bin"
REQUIRED = os.environ.get("EVENTBUS_TEST_CLIENTS") == "require"


@cache
def missing(program: str) -> str | None:
    """Why a program that a page needs is not here; None if it is. ``kafka`` stands for Kafka's scripts.

    Raises:
        NotAvailableError: it is not here, and ``EVENTBUS_TEST_CLIENTS=require`` says it must be.
    """
    try:
        if program == "kafka":
            _make_shims()
        elif program == "node":
            modules.installed()
        elif shutil.which(program) is None:
            raise NotAvailableError(f"there is no {program} on this machine")
    except NotAvailableError as reason:
        if REQUIRED:
            raise
        return str(reason)
    return None


def environment() -> dict[str, str]:
    """What those programs need besides: the scripts' folder for ``PATH``, and where node finds its packages."""
    return {"PATH": str(SHIMS), "NODE_PATH": str(modules.CACHE / "node_modules")}


def _make_shims() -> None:
    """Kafka's scripts, as its distribution has them: each starts one main class."""
    path = class_path()
    SHIMS.mkdir(parents=True, exist_ok=True)
    for tool, main_class in TOOLS.items():
        shim = SHIMS / f"{tool}.sh"
        command = " ".join([java(), *OPTIONS, "-cp", f"'{path}'", main_class, '"$@"'])
        partial = Path(f"{shim}.{os.getpid()}")
        partial.write_text(f"#!/bin/sh\nexec {command}\n", "utf-8")
        partial.chmod(0o755)
        partial.rename(shim)

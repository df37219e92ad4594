"""The npm clients, installed once into ``.venv/clients-js`` as package-lock.json says."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.clients.jars import ROOT, NotAvailableError

SOURCES = Path(__file__).with_name("js")
CACHE = ROOT / ".venv" / "clients-js"


@cache
def node() -> str:
    """``node`` 20 or later.

    Raises:
        NotAvailableError: there is none.
    """
    found = shutil.which("node")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip() if found else "none"
    if not found or int(version.lstrip("v").split(".")[0]) < 20:
        raise NotAvailableError(f"the npm clients need node 20 or later, and here is {version}")
    return found


@cache
def installed() -> Path:
    """The folder for ``NODE_PATH``; ``npm ci`` fills it first if need be.

    Raises:
        NotAvailableError: no node, no npm, or npm could not install the packages.
    """
    node()
    npm = shutil.which("npm")
    if npm is None:
        raise NotAvailableError("there is no npm on this machine to install the JavaScript clients")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (SOURCES / "package-lock.json").read_bytes()
        have = CACHE / "installed.json"
        if not have.exists() or have.read_bytes() != wanted:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(SOURCES / file, CACHE)
            done = subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=CACHE, capture_output=True, text=True)
            if done.returncode:
                raise NotAvailableError(f"npm could not install the clients: {done.stderr.strip()[-2000:]}")
            have.write_bytes(wanted)
    return CACHE / "node_modules"


def environment(modules: Path) -> dict[str, str]:
    return {**os.environ, "NODE_PATH": str(modules)}

"""Landings in threads of one process: what one of them imports is no other's concern."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.databases import NewDatabase

pytestmark = pytest.mark.system

_PROGRAM = """
import importlib, sys, threading
from importlib.machinery import PathFinder, SourceFileLoader

from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.target import NewTable

half_done, go_on = threading.Event(), threading.Event()


class Slow(SourceFileLoader):
    def exec_module(self, module):
        half_done.set()
        go_on.wait()
        super().exec_module(module)


class Pause(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "sqlalchemy.orm.interfaces":
            return None
        spec = super().find_spec(name, path, target)
        spec.loader = Slow(name, spec.origin)
        return spec


target = open_target(sys.argv[1], options=TargetOptions())
sys.meta_path.insert(0, Pause)
beside = threading.Thread(target=lambda: (importlib.import_module("sqlalchemy.orm"), half_done.set()))
beside.start()
half_done.wait()
try:
    print(target.open(NewTable("orders"), 0).epoch)
finally:
    go_on.set()
    beside.join()
target.close()
"""


async def test_another_thread_is_importing_sqlalchemys_orm(new_database: NewDatabase) -> None:
    """As pyiceberg does. Half imported it takes part in statements already, and fails."""
    command = [sys.executable, "-c", _PROGRAM, f"{new_database('psycopg').plain_url}#orders"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n", done.stderr

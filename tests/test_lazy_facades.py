"""Packages whose names are imported when they are asked for: each of them is there, and is itself."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

FACADES = ["eventbus", "eventbus.broker", "eventbus.coordinator", "eventbus.log", "eventbus.records", "outbox", "dlq"]
FACADES += ["serdes", "serdes.avro", "eventbus.client", "eventbus.client.handling", "eventbus.client.scheduling"]
FACADES += ["eventbus.client.tables"]


@pytest.mark.parametrize("facade", [*FACADES, pytest.param("schema_registry", marks=pytest.mark.system)])
def test_every_name_is_there_and_none_is_a_module_of_the_same_name(facade: str) -> None:
    package = import_module(facade)
    found = {name: getattr(package, name) for name in package.__all__}
    assert [name for name, value in found.items() if isinstance(value, ModuleType)] == []
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{facade}' has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018 - asked for, to see what is raised


def modules_after(program: str) -> set[str]:
    program += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.system
def test_the_list_of_commands_needs_neither_client_nor_event_loop() -> None:
    loaded = modules_after("from eventbus.cli import main\nmain(['--help'])")
    assert loaded & {"asyncio", "anyio", "eventbus.client", "eventbus.broker.broker", "sqlalchemy", "ssl"} == set()
    assert not {name for name in loaded if name.startswith(("dlq.", "outbox.", "spark_sinks.")) and ".cli" not in name}


@pytest.mark.system
def test_a_function_is_no_module_whoever_imports_first() -> None:
    program = "import eventbus.records.murmur2, eventbus.records\nassert eventbus.records.murmur2(b'') >= 0, 1"
    assert "eventbus.records.builder" not in modules_after(program)


@pytest.mark.system
def test_a_program_that_only_imports_the_bus_loads_no_runtime() -> None:
    loaded = modules_after("from eventbus import EventBus")
    assert loaded & {"asyncio", "sqlalchemy", "eventbus.client.bus_run", "eventbus.client.handling.handlers"} == set()

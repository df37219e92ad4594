"""KafkaJS' registry client (npm ``@kafkajs/confluent-schema-registry``), unmodified."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schema_registry.client import RegistryClient
from tests.clients import modules
from tests.schema_registry.clients.conftest import Both

pytestmark = pytest.mark.system

PROGRAM = Path(__file__).with_name("kafkajs.cjs")
Play = Callable[[str], dict[str, Any]]


@pytest.fixture
def play(both: Both, topic: str, node_modules: Path) -> Play:
    def play(scenario: str) -> dict[str, Any]:
        command = [modules.node(), str(PROGRAM), scenario, both.registry, topic]
        done = subprocess.run(
            command, env=modules.environment(node_modules), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return play


def test_avro_there_and_back(play: Play) -> None:
    assert play("avro") == {
        "ids": [True, True], "decoded": {"name": "Ann"}, "latest": True, "byText": True, "byVersion": True,
    }  # fmt: skip


def test_it_configures_a_subject_that_has_no_compatibility_yet(play: Play, both: Both, topic: str) -> None:
    """It asks ``GET /config/{subject}`` and needs a 404 there, then registers, then sets the level."""
    saw = play("compatibility")
    assert saw["incompatible"]["status"] == 409
    assert "does not match the configuration" in saw["changed"]["message"]
    client = RegistryClient(both.registry)
    assert client.request("GET", f"/config/{topic}") == {"compatibilityLevel": "FULL"}
    client.close()


def test_json_there_and_back(play: Play) -> None:
    saw = play("json")
    assert saw["decoded"] == {"name": "Ann"} and saw["invalid"]


def test_what_there_is_not(play: Play, topic: str) -> None:
    saw = play("missing")
    assert (saw["id"]["status"], saw["subject"]["status"]) == (404, 404)
    assert "Schema 987654 not found" in saw["id"]["message"]
    assert f"Subject '{topic}' not found." in saw["subject"]["message"]

"""What one reads when an extra is not installed: which one it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("library", "code", "extra"),
    [
        ("urllib3", "from serdes import Avro; Avro('http://localhost:8081')", "avro"),
        ("fastavro", "from serdes import Avro; Avro('http://localhost:8081', engine='fastavro')", "avro"),
        ("starlette", "from schema_registry import create_app", "registry"),
        (
            "jsonschema",
            "from schema_registry.formats import parse; from serdes.registry import SchemaText\n"
            "parse(SchemaText('{}', 'JSON'), print)",
            "registry",
        ),
        (
            "google.protobuf",
            "from schema_registry.formats import parse; from serdes.registry import SchemaText\n"
            "parse(SchemaText('', 'PROTOBUF'), print)",
            "protobuf",
        ),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(library: str, code: str, extra: str) -> None:
    code = f"import sys\nsys.modules[{library!r}] = None\n{code}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    last = told.splitlines()[-1]
    assert f"a library that is not installed ({library}" in last and f'pip install "eventbus-log[{extra}]"' in last, (
        told
    )

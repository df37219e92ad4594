"""What is installed: typed packages, light to import, nothing heavy before it is asked for."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = ["eventbus", "serdes", "outbox", "dlq", "schema_registry", "spark_sinks"]
HEAVY = [
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "rich",
    "cramjam",
    "sqlalchemy",
    "fastavro",
    "confluent_kafka",
    "pydantic",
    "trio",
    "starlette",
    "uvicorn",
    "urllib3",
    "jsonschema",
]


def run_python(code: str) -> str:
    """What a fresh interpreter prints for ``code``."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling (it is in the dev extra)")
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    wheel = ZipFile(tmp_path / run_python(build).splitlines()[-1])
    files = wheel.namelist()
    folders = {name.split("/")[0] for name in files}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {*PACKAGES, "pyspark_eventbus"}
    assert [package for package in PACKAGES if f"{package}/py.typed" not in files] == []
    assert [name for name in files if name.endswith("/LICENSE")], "the licence travels with the wheel"
    sources = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    sources = {name.removeprefix("spark_sinks/shim/") for name in sources}  # Spark finds it by a top-level name
    assert sources <= set(files), "every module of the checkout is in the wheel"


def test_one_version() -> None:
    import eventbus.version

    assert metadata.version(PYPROJECT["project"]["name"]) == eventbus.version.__version__


@pytest.mark.parametrize("package", PACKAGES)
def test_a_facade_imports_nothing_heavy(package: str) -> None:
    printed = run_python(f"import json, sys, {package}; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))")
    assert json.loads(printed) == []


def test_every_module_that_needs_no_extra_imports_with_the_base_dependencies_alone() -> None:
    """The facades are imported while everything outside the base dependencies is hidden."""
    printed = run_python(
        f"""
        import sys

        class Hidden:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in hidden:
                    raise ModuleNotFoundError(f"{{name}} is hidden by the test", name=name)

        hidden = {[name for name in HEAVY if name != "cramjam"]!r}
        sys.meta_path.insert(0, Hidden())
        import {", ".join(PACKAGES)}
        print("imported")
        """
    )
    assert printed == "imported\n"


def imports_at_once(tree: ast.Module) -> set[str]:
    """The top-level names that importing a module imports: nothing of functions, nor for type checkers alone."""
    found: set[str] = set()
    nodes: list[ast.stmt] = [*tree.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With):
            nodes += [*node.body, *getattr(node, "orelse", ())]
    return found


def test_what_is_imported_is_a_dependency_by_itself() -> None:
    """Not by way of another: sniffio came with trio once, and a plain installation could not serve."""
    dependencies = {requirement.split(">")[0] for requirement in PYPROJECT["project"]["dependencies"]}
    ours = {*dependencies, *PACKAGES, *sys.stdlib_module_names}
    optional = {  # modules that are imported where their extra is installed
        "eventbus/backends/kafka": {"confluent_kafka"},
        "eventbus/cli/drawing.py": {"rich"},
        "eventbus/connect/sql_": {"sqlalchemy"},
        "eventbus/records/columnar.py": {"numpy"},
        "eventbus/records/starts.py": {"numpy"},
        "eventbus/telemetry": {"opentelemetry", "prometheus_client", "structlog"},
        "eventbus/testing": {"pytest", "_pytest"},
        "eventbus/web": {"uvicorn"},
        "outbox": {"sqlalchemy"},
        "outbox/migrations.py": {"alembic"},
        "schema_registry/client.py": {"urllib3"},
        "schema_registry/compatibility/proto_shapes.py": {"google"},
        "schema_registry/formats/json_schema.py": {"jsonschema", "jsonschema_specifications", "referencing"},
        "schema_registry/formats/proto": {"google"},
        "schema_registry/http": {"httptools", "starlette", "uvicorn"},
        "spark_sinks": {"pyspark", "pyarrow", "numpy"},
        "spark_sinks/targets/iceberg/io.py": {"pyiceberg"},
    }
    foreign: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            allowed = ours.union(*(libraries for start, libraries in optional.items() if name.startswith(start)))
            if unknown := imports_at_once(ast.parse(path.read_text("utf-8"))) - allowed:
                foreign[name] = unknown
    assert foreign == {}


def test_extras_are_the_promised_ones_and_all_holds_those_for_users() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert set(extras) == {
        "kafka", "avro", "protobuf", "registry", "sql", "spark", "delta", "iceberg", "console", "web", "cli", "re2",
        "reload", "otel", "object-store", "uvloop", "demo", "test", "docs", "dev", "bench", "fuzz", "all"
    }  # fmt: skip
    assert extras["all"] == [
        "eventbus-log[kafka,avro,protobuf,registry,sql,spark,delta,iceberg,object-store,console,web,cli,re2,reload,otel]"
    ]


def test_base_dependencies_stay_few() -> None:
    names = {requirement.split(">")[0] for requirement in PYPROJECT["project"]["dependencies"]}
    assert names == {"anyio", "msgspec", "crc32c", "cramjam", "cronsim", "mmh3"}


def test_a_plain_installation_takes_at_most_15_mb() -> None:
    """What the wheels unpack to; Python may double its own share with what it compiles."""
    taken = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py*") if path.suffix != ".pyc"}
    names, seen = [re.split(r"[\s>=<\[;]", each)[0] for each in PYPROJECT["project"]["dependencies"]], set[str]()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # one for another Python or another system
        names += [re.split(r"[\s>=<!~\[;(]", each)[0] for each in distribution.requires or () if "extra ==" not in each]
        files = [Path(str(file.locate())) for file in distribution.files or ()]
        taken |= {path for path in files if path.suffix != ".pyc" and path.is_file()}
    assert {"idna", "typing_extensions"} <= seen, "what they need is counted"
    assert sum(path.stat().st_size for path in taken) <= 15_000_000


def test_tests_are_no_package() -> None:
    """An ``__init__.py`` under tests/ would let ``tests/outbox`` shadow the package ``outbox``."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_console_script_points_at_a_callable() -> None:
    [script] = [entry for entry in metadata.entry_points(group="console_scripts") if entry.name == "eventbus"]
    assert callable(script.load())

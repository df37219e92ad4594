"""What ``to=`` may say."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from eventbus.errors import ConfigError
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.stages import Stage
from spark_sinks.targets.target import NewTable


@pytest.mark.system
@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("{path}/orders", "{path}/orders"),
        ("file://{path}/with%20space", "{path}/with space"),
        ("delta:{path}/orders", "delta:{path}/orders"),
        ("iceberg:{path}/orders", "iceberg:{path}/orders"),
        ("delta:file://{path}/orders", "delta:{path}/orders"),
        ("file:{path}/orders", "{path}/orders"),
        ("s3a://bucket/lake/orders/?region=x&timeout=5s", "s3://bucket/lake/orders"),
        ("delta:gs://bucket/orders", "delta:gs://bucket/orders"),
        ("az://container/orders?account_name=x", "az://container/orders"),
    ],
)
def test_names(tmp_path: Path, to: str, name: str) -> None:
    assert open_target(to.format(path=tmp_path)).name == name.format(path=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("", "names no directory"),
        ("delta:", "names no directory"),
        ("delta:s3://bucket", "'s3://bucket' names no table in an object store"),
        ("s3://bucket/../orders", "a path of ASCII letters"),
        ("gs://bucket/a%20b", "a path of ASCII letters"),
        ("s3://bucket/orders?regoin=eu-west-1", "options of s3://bucket cannot be used. .*'regoin'"),
        ("iceberg:s3://bucket/orders?secret_access_key=x", "^iceberg:s3://bucket/orders names no catalog"),
        ("hdfs://host/orders", "in local directories, s3://"),
        ("detla:./orders", "did you mean delta:"),
        ("fil:///orders", "Did you mean 'file'?"),
        ("postgres://me@host/shop", "Did you mean 'postgresql'?"),
        ("sqlite:shop.db", "by its URL, as in sqlite:///shop.db#orders"),
        ("postgresql:me@host/shop", "by its URL, as in postgresql://me@host/shop#orders"),
        ("delta:./a%20b", "Delta's libraries read %.."),
        ("iceberg:./a#b", "which end at '#'"),
    ],
)
def test_what_is_not_a_table(to: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_target(to)


def test_compression_is_checked() -> None:
    with pytest.raises(ConfigError, match="choose one of zstd"):
        open_target("./x", options=TargetOptions(compression="rar"))


@pytest.mark.parametrize(
    ("to", "module"), [("delta:./x", "deltalake"), ("iceberg:./x", "pyiceberg"), ("s3://b/x", "obstore")]
)
def test_missing_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, to: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"needs {module}.*pip install"):
        open_target(to)


@pytest.mark.system
def test_choosing_imports_no_library() -> None:
    code = (
        "import sys; from spark_sinks.targets.choose import open_target; open_target('./x');"
        "print([m for m in ('pyarrow', 'deltalake', 'pyiceberg', 'sqlalchemy', 'numpy', 'pyspark')"
        " if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


@pytest.mark.system
@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(["", "delta:", "iceberg:"], 2)])
def test_directory_of_another_kind_is_refused(tmp_path: Path, one: str, other: str) -> None:
    """A forgotten `delta:` must not land the topic once more among the files of its table."""
    target = open_target(f"{one}{tmp_path}/orders")
    target.open(NewTable("orders"), 0)
    target.close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"say {one}{tmp_path}/orders"):
        open_target(f"{other}{tmp_path}/orders").open(NewTable("orders"), 0)
    assert sorted(tmp_path.rglob("*")) == before
    target.open(NewTable("orders"), 0)
    target.close()


def test_files_for_a_database_are_not_staged_in_a_bucket() -> None:
    with pytest.raises(ConfigError, match=r"^stage='s3://b/x' cannot be used\. Files for a database wait in a local"):
        Stage("s3://b/x?secret_access_key=y")

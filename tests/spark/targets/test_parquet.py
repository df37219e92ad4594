"""Parquet tables: what every target promises, and what only plain directories need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import pandas
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from spark_sinks.shape import coordinate_fields
from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.files import Files, LocalFiles
from spark_sinks.targets.parquet.target import ParquetTarget
from spark_sinks.targets.target import Target
from tests.spark.targets.kit import Conformance, MakeRig, Record, Rig, land_values
from tests.spark.targets.steps import SteppingFiles

pytestmark = pytest.mark.system


class ParquetRig(Rig):
    def target(self) -> Target:
        def files(root: Path) -> Files:
            return SteppingFiles(LocalFiles(root), self.steps)

        return ParquetTarget(self.directory, TargetOptions(), make_files=files)

    def edit_account(self, change: Callable[[str], str]) -> None:
        newest = max((self.directory / "_eventbus" / "ledger").iterdir())
        newest.write_text(change(newest.read_text()))

    def schema(self) -> pa.Schema:
        return max(map(pq.read_schema, self._parts()), key=len)

    def outside(self) -> list[Record]:
        return plain_records(self.directory)

    def readers(self) -> Mapping[str, Callable[[], pa.Table]]:
        files = f"read_parquet('{self.directory}/**/*.parquet', union_by_name = true)"
        return {
            "duckdb": lambda: duckdb.sql(f"SELECT * FROM {files}").to_arrow_table(),
            "pyarrow": lambda: ds.dataset(self.directory, self.schema()).to_table(),
            "pandas": lambda: pa.concat_tables(
                [pa.Table.from_pandas(pandas.read_parquet(each, dtype_backend="pyarrow")) for each in self._parts()],
                promote_options="permissive",
            ),
        }

    def _parts(self) -> list[Path]:
        return sorted(self.directory.glob("*.parquet"))


def plain_records(directory: Path) -> list[Record]:
    """What pyarrow sees in a directory."""
    files = ds.dataset(directory, format="parquet", partitioning="hive").files
    table = ds.dataset(files, pa.schema(coordinate_fields()), "parquet").to_table(["_partition", "_offset"])
    return sorted((row["_partition"], row["_offset"]) for row in table.to_pylist())


@pytest.fixture
def rigs(tmp_path: Path) -> MakeRig:
    return lambda name: ParquetRig(tmp_path / name)


class TestConformance(Conformance):
    pass


def test_readers_of_directories_read_text_with_the_options_that_the_page_names(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path / "t", TargetOptions())
    for number, values in enumerate((["00501", "a/b"], ["12", "é %"])):
        land_values(target, pa.string(), values, number)
    target.close()
    expected = ["00501", "12", "a/b", "é %"]
    texts = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    assert sorted(pandas.read_parquet(tmp_path / "t", partitioning=texts).p) == expected
    files = f"read_parquet('{tmp_path}/t/*/*.parquet', hive_partitioning = true, hive_types_autocast = false)"
    assert duckdb.sql(f"SELECT p FROM {files} ORDER BY p").fetchall() == [(value,) for value in expected]

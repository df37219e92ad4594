"""Iceberg tables: what every target promises, and what only Iceberg needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.files import Files, LocalFiles
from spark_sinks.targets.iceberg.log import IcebergLog, Where
from spark_sinks.targets.iceberg.target import open_iceberg
from spark_sinks.targets.logged import TableLog
from spark_sinks.targets.target import Target
from tests.spark.targets.kit import Conformance, MakeRig, Record, Rig
from tests.spark.targets.steps import SteppingFiles, stepping_log


class IcebergRig(Rig):
    def target(self) -> Target:
        def files(root: Path) -> Files:
            return SteppingFiles(LocalFiles(root), self.steps)

        def log(where: Where, compression: str) -> TableLog:
            return stepping_log(IcebergLog(where, compression), self.steps)

        return open_iceberg(str(self.directory), TargetOptions(), make_files=files, make_log=log)

    def outside(self) -> list[Record]:
        with lake(self.directory.parent) as catalog:
            if not catalog.table_exists(f"default.{self.directory.name}"):
                return []
            table = catalog.load_table(f"default.{self.directory.name}").scan().to_arrow()
        if "_offset" not in table.column_names:
            return []
        return sorted((row["_partition"], row["_offset"]) for row in table.to_pylist())


def lake(directory: Path) -> SqlCatalog:
    """The catalog as its readers open it."""
    return SqlCatalog("default", uri=f"sqlite:///{directory}/catalog.db")


@pytest.fixture
def rigs(tmp_path: Path) -> MakeRig:
    return lambda name: IcebergRig(tmp_path / name)


class TestConformance(Conformance):
    pass

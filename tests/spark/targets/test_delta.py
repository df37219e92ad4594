"""Delta tables: what every target promises, and what only Delta needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.delta.log import DeltaLog
from spark_sinks.targets.delta.target import open_delta
from spark_sinks.targets.files import Files, LocalFiles
from spark_sinks.targets.logged import TableLog
from spark_sinks.targets.target import Target
from tests.spark.targets.kit import Conformance, MakeRig, Record, Rig, UpsertConformance
from tests.spark.targets.steps import SteppingFiles, stepping_log


class DeltaRig(Rig):
    upserts = True

    def target(self) -> Target:
        def files(root: Path) -> Files:
            return SteppingFiles(LocalFiles(root), self.steps)

        def log(path: Path, compression: str) -> TableLog:
            return stepping_log(DeltaLog(path, compression), self.steps)

        return open_delta(self.directory, TargetOptions(), make_files=files, make_log=log)

    def outside(self) -> list[Record]:
        if not DeltaTable.is_deltatable(str(self.directory)):
            return []
        table = DeltaTable(self.directory).to_pyarrow_table()
        if "_offset" not in table.column_names:
            return []
        return sorted((row["_partition"], row["_offset"]) for row in table.to_pylist())


@pytest.fixture
def rigs(tmp_path: Path) -> MakeRig:
    return lambda name: DeltaRig(tmp_path / name)


class TestConformance(Conformance):
    pass


class TestUpserts(UpsertConformance):
    pass

"""SQL databases for the tests of targets: see `tests.databases`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import event, inspect, text

from spark_sinks.targets.sql.address import parse_address
from spark_sinks.targets.sql.target import SqlTarget
from spark_sinks.targets.target import StagedFile
from tests.databases import THREE, Database, NewDatabase, databases, new_database
from tests.spark.targets.kit import Rig, Steps

__all__ = ["databases", "new_database"]

STEPS = ("do_execute", "do_executemany", "do_execute_no_params", "do_commit")


def never_wait(seconds: float) -> None:
    raise AssertionError("a transaction that nobody is in the way of was run again")


def make_target(url: str, table: str, **options: Any) -> SqlTarget:
    """Another one; by default it does not wait for what is away."""
    target = SqlTarget(parse_address(f"{url}#{table}"), **{"wait": never_wait, **options})
    if target.engine.dialect.name == "sqlite":
        event.listen(target.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return target


def write(target: SqlTarget, table: pa.Table) -> StagedFile:
    """Stage rows as a task does."""
    path = Path(target.stage_directory()) / f"{uuid.uuid4().hex}.staged"
    pq.write_table(table, path)
    return StagedFile(str(path), "", table.num_rows, path.stat().st_size)


def step_through(target: SqlTarget, steps: Steps) -> None:
    """A step before each statement and each commit, and after each commit, whose answer may be lost."""
    dialect: Any = target.engine.dialect

    def stepping(name: str) -> Callable[..., Any]:
        inner = getattr(dialect, name)

        def stepped(*args: Any, **named: Any) -> Any:
            steps.step()
            result = inner(*args, **named)
            if name == "do_commit":
                steps.step()
            return result

        return stepped

    for name in STEPS:
        setattr(dialect, name, stepping(name))


class SqlRig(Rig):
    """A table of a database."""

    upserts = True
    compacts = False
    locks = False
    nests = False

    def __init__(self, url: str, table: str, directory: Path) -> None:
        super().__init__(directory)
        self.url = url
        self.table = table

    def target(self) -> SqlTarget:
        target = make_target(self.url, self.table, stage=str(self.directory))
        step_through(target, self.steps)
        return target

    def schema(self) -> pa.Schema | None:
        target = make_target(self.url, self.table)
        place, _, table = self.table.rpartition(".")
        columns = inspect(target.engine).get_columns(table, place or None)
        target.close()
        if target.engine.dialect.name == "sqlite":
            return None
        return pa.schema(
            [pa.field(each["name"], pa.null(), metadata={"doc": each["comment"] or ""}) for each in columns]
        )

    def edit_account(self, change: Callable[[str], str]) -> None:
        target = make_target(self.url, self.table)
        schema, dot, table = self.table.rpartition(".")
        accounts = f"{schema}{dot}eventbus_sinks"
        named = {"name": table}
        with target.engine.begin() as connection:
            asked = text(f"SELECT account FROM {accounts} WHERE table_name = :name")
            account = connection.execute(asked, named).scalar_one()
            named["account"] = change(account)
            connection.execute(text(f"UPDATE {accounts} SET account = :account WHERE table_name = :name"), named)
        target.close()


@pytest.fixture(params=THREE)
def database(request: pytest.FixtureRequest, new_database: NewDatabase) -> Database:
    return new_database(request.param)


@pytest.fixture
def rigs(database: Database, tmp_path: Path) -> Iterator[Callable[[str], Rig]]:
    """Each in a schema of its own, or a file, so that all of them begin with nothing."""
    made: list[str] = []

    def make(name: str) -> Rig:
        if database.kind == "sqlite":
            return SqlRig(f"sqlite:///{tmp_path / name}.db", "orders", tmp_path)
        made.append(f"{database.engine.url.database}_{name}")
        with database.engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {made[-1]}"))
        return SqlRig(database.url, f"{made[-1]}.orders", tmp_path)

    yield make
    for each in made if database.kind == "mariadb" else ():  # there a schema is a database beside the first
        with database.engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {each}"))

"""Tables that others made."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlalchemy import text

from eventbus.errors import ConfigError
from spark_sinks.shape import coordinate_fields
from spark_sinks.targets.target import Batch, NewTable
from tests.databases import Database
from tests.spark.targets.kit import NOW_MS
from tests.spark.targets.sql.conftest import make_target

pytestmark = pytest.mark.system


@pytest.mark.parametrize("database", ["sqlite", "psycopg"], indirect=True)
def test_table_that_somebody_made_before_the_first_rows_is_not_dropped(database: Database) -> None:
    target = make_target(database.url, "orders")
    target.open(NewTable("orders"), NOW_MS)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (mine INTEGER)"))
    with pytest.raises(ConfigError, match="another program made a table orders meanwhile"):
        target.commit(Batch({0: 1}, [], [], pa.schema(coordinate_fields())), NOW_MS)
    target.close()
    with database.engine.begin() as connection:
        assert connection.execute(text("SELECT mine FROM orders")).all() == []

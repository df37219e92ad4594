"""Tables of PostgreSQL, MySQL, MariaDB and SQLite: rows, quarantine and account change in one transaction."""

from spark_sinks.targets.sql.target import open_sql

__all__ = ["open_sql"]

"""Databases for the tests of faults: see `tests.databases`."""

from __future__ import annotations

from tests.databases import database, databases, new_database

__all__ = ["database", "databases", "new_database"]

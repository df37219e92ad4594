"""Databases for the live tests: see `tests.databases`."""

from __future__ import annotations

from tests.databases import databases, new_database

__all__ = ["databases", "new_database"]

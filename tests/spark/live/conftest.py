"""What the live tests share: databases (see `tests.databases`), and what pyspark's loggers may not do."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger

from tests.databases import databases, new_database

__all__ = ["databases", "new_database"]


@pytest.fixture(scope="session", autouse=True)
def formatters_stay() -> Iterator[None]:
    """pyspark's loggers give each handler a formatter of their own, and keep what they log to themselves once Spark has
    said what is wrong with a query. pytest adds its handlers to loggers of that kind: whatever is logged in tests after
    that would be JSON."""

    def add(self: PySparkLogger, handler: logging.Handler) -> None:
        logging.Logger.addHandler(self, handler)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PySparkLogger, "addHandler", add)
        yield

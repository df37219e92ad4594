"""Land topics in a warehouse through Spark, exactly once.

``spark_session()`` needs no installed Java, ``format("eventbus")`` reads a log directory with the columns of Spark's
Kafka source, and `land` makes a table of a topic. Importing this package does not import pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sinks.landing import LandReport, land
    from spark_sinks.running import LandProgress
    from spark_sinks.session.spark import spark_session
    from spark_sinks.source.datasource import register

__all__ = ["LandProgress", "LandReport", "land", "register", "spark_session"]

_HOMES = {
    "LandProgress": "spark_sinks.running",
    "LandReport": "spark_sinks.landing",
    "land": "spark_sinks.landing",
    "register": "spark_sinks.source.datasource",
    "spark_session": "spark_sinks.session.spark",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'spark_sinks' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value

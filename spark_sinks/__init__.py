"""Land topics in a warehouse through Spark, exactly once.

``spark_session()`` needs no installed Java, ``format("eventbus")`` reads a log directory with the columns of Spark's
Kafka source, and `land` makes a table of a topic. Importing this package does not import pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sinks.errors import SparkCrashed, SparkFailed
    from spark_sinks.landing import LandReport, land, land_many
    from spark_sinks.running import LandProgress
    from spark_sinks.session.doctor import doctor
    from spark_sinks.session.spark import spark_session
    from spark_sinks.session.warmup import warmup
    from spark_sinks.source.datasource import register
    from spark_sinks.typed_frames import typed
    from spark_sinks.upkeep.compact import compact
    from spark_sinks.upkeep.replay import replay_quarantine
    from spark_sinks.upkeep.status import status
    from spark_sinks.upkeep.verify import verify

__all__ = [
    "LandProgress",
    "LandReport",
    "SparkCrashed",
    "SparkFailed",
    "compact",
    "doctor",
    "land",
    "land_many",
    "register",
    "replay_quarantine",
    "spark_session",
    "status",
    "typed",
    "verify",
    "warmup",
]

_HOMES = {
    "LandProgress": "spark_sinks.running",
    "LandReport": "spark_sinks.landing",
    "SparkCrashed": "spark_sinks.errors",
    "SparkFailed": "spark_sinks.errors",
    "compact": "spark_sinks.upkeep.compact",
    "doctor": "spark_sinks.session.doctor",
    "land": "spark_sinks.landing",
    "land_many": "spark_sinks.landing",
    "register": "spark_sinks.source.datasource",
    "replay_quarantine": "spark_sinks.upkeep.replay",
    "spark_session": "spark_sinks.session.spark",
    "status": "spark_sinks.upkeep.status",
    "typed": "spark_sinks.typed_frames",
    "verify": "spark_sinks.upkeep.verify",
    "warmup": "spark_sinks.session.warmup",
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

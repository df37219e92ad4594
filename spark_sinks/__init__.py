"""Land topics in a warehouse through Spark, exactly once.

``spark_session()`` needs no installed Java, ``format("eventbus")`` reads a log directory with the columns of Spark's
Kafka source, and `land` makes a table of a topic. Importing this package does not import pyspark.

- ``landing``, ``landing_runs``, ``running``, ``tasks``, ``stage``, ``frames``: `land`
- ``source``: ``format("eventbus")``
- ``decoding``: values to columns
- ``targets``: the tables; each keeps the offsets at which the next run resumes (the account)
- ``session``, ``java``: a Spark session without an installed Java
- ``upkeep``, ``cli``: verify, status, replay, compact; ``eventbus spark``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.errors import SparkCrashed as SparkCrashed
from eventbus.errors import SparkFailed as SparkFailed
from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from spark_sinks.landing import LandReport as LandReport
    from spark_sinks.landing import land as land
    from spark_sinks.landing import land_many as land_many
    from spark_sinks.running import LandProgress as LandProgress
    from spark_sinks.session.doctor import doctor as doctor
    from spark_sinks.session.spark import spark_session as spark_session
    from spark_sinks.session.warmup import warmup as warmup
    from spark_sinks.source.datasource import register as register
    from spark_sinks.typed_frames import typed as typed
    from spark_sinks.upkeep.compact import compact as compact
    from spark_sinks.upkeep.replay import replay_quarantine as replay_quarantine
    from spark_sinks.upkeep.status import status as status
    from spark_sinks.upkeep.verify import verify as verify

_HOMES = {
    "landing": ("LandReport", "land", "land_many"),
    "running": ("LandProgress",),
    "session.doctor": ("doctor",),
    "session.spark": ("spark_session",),
    "session.warmup": ("warmup",),
    "source.datasource": ("register",),
    "typed_frames": ("typed",),
    "upkeep.compact": ("compact",),
    "upkeep.replay": ("replay_quarantine",),
    "upkeep.status": ("status",),
    "upkeep.verify": ("verify",),
}
__getattr__, __dir__ = lazy_names(
    globals(),
    _HOMES,
    also=(
        "SparkCrashed",
        "SparkFailed",
    ),
)

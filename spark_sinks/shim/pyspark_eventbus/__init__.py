"""``format("eventbus")`` in every Spark session, without a word to it.

Spark looks for top-level modules named ``pyspark_*`` and takes their ``DefaultSource`` as a source. The build puts this
one at the top level.
"""

from spark_sinks.source.datasource import EventBusDataSource as DefaultSource

__all__ = ["DefaultSource"]

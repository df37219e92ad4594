"""Rows of docs/internals/reports/checklist.md about pipelines and warehouses."""

from __future__ import annotations

from tests.checklist_rows import Row, Section

S = "tests/spark/"

# fmt: off
PIPELINES = Section(
    "Pipelines and warehouses", 163, 165,
    (
        Row(163, "data into a warehouse before retention takes it", "answered",
            "`eventbus spark land`: Parquet, Delta, Iceberg, SQL, each record once; what retention took before it was "
            "landed stops the landing, or is told by `eventbus spark verify`. Buckets (S3, HDFS) through a mount",
            (S + "live/test_landing.py::test_lands_all_then_nothing_then_what_is_new",
             S + "live/test_landing.py::test_kill_minus_nine_and_start_again",
             S + "live/test_following.py::test_what_comes_while_it_runs_is_landed_in_partitions_new_and_old"),
            ("27_spark_landing.py",), page="spark.md#exactly-once"),
        Row(164, "Spark as a client that processes", "answered",
            '`format("eventbus")` reads the directory of a log, batch and stream; Spark\'s own Kafka source reads '
            "`eventbus serve` and Kafka, unchanged",
            (S + "live/test_source.py::test_batch_read_equals_the_records",),
            ("28_spark_pipeline.py",), page="spark.md#custom-spark-jobs"),
        Row(165, "ETL early or late, silos, recovery", "answered",
            "a raw topic, a topic that Spark derives from it exactly once, a table of each; lost, it is landed again",
            (S + "live/test_landing.py::test_lands_all_then_nothing_then_what_is_new",),
            ("28_spark_pipeline.py",), page="spark.md#continuous-landing"),
    ),
)

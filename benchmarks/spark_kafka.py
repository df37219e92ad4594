"""Our source over a log directory beside Spark's own Kafka source over a real broker: the same records, to nowhere."""

from __future__ import annotations

from typing import Any

from figures import Figure
from harness import Numbers, Skip, case, scratch
from kafka_broker import bootstrap, filled_topic
from spark_landing import by_turns, session

SPARK_KAFKA_FIGURES = [
    Figure("K8a", "log -> noop / Kafka -> noop", "spark beside Kafka:log", "spark beside Kafka:kafka", 1.0, 1.5),
]


@case("spark beside Kafka", n=1_000_000, quick=20_000, rounds=1)
def beside_kafka(n: int) -> Numbers:
    """The topic is mirrored from the broker into a directory, so both hold the same batches."""
    import anyio

    from eventbus.errors import ConfigError
    from eventbus.mirror import Mirror
    from spark_sinks.source.origins import open_origin

    topic, servers = filled_topic(n), bootstrap()
    with scratch() as folder:
        there, here = f"kafka://{servers}", f"file://{folder}/log"

        async def copy() -> None:
            async with Mirror(there, here, topics=[topic], groups=None) as mirror:
                await mirror.copy()

        anyio.run(copy)
        origins = {"log": open_origin(here, topic), "kafka": open_origin(there, topic)}
        try:
            conf = origins["kafka"].session_conf()
        except ConfigError as error:
            raise Skip(str(error)) from error
        with session(conf) as spark:

            def drain(origin: Any) -> None:
                bounds = origin.bounds()
                start = {each: first for each, (first, _) in bounds.items()}
                end = {each: last for each, (_, last) in bounds.items()}
                origin.batch(spark, start, end).write.format("noop").mode("overwrite").save()

            return by_turns({name: lambda told=each: drain(told) for name, each in origins.items()}, n, 3)

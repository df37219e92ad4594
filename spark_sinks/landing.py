"""`land`: topics into tables, each record once.

Spark's Structured Streaming plans the batches, its tasks decode and write (`spark_sinks.tasks`), and the driver commits
each batch together with its offsets (`spark_sinks.running`). What the table says of its offsets is the truth.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import difflib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from eventbus.backends.shared_reader import readable_outside
from eventbus.durations import Duration, exact_ms
from eventbus.errors import ConfigError
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.values import SPARK_LACKS, Change, KeyKind, ValueKind, ValueSettings
from spark_sinks.frames import Frames
from spark_sinks.java.jvm import require_pyspark
from spark_sinks.landing_runs import run_all
from spark_sinks.partitions import check_key_columns, check_partition_columns
from spark_sinks.running import LandProgress, Limits, Running
from spark_sinks.shape import COORDINATES, DATE, KEY
from spark_sinks.source.offsets import EARLIEST, LATEST, parse, resolve
from spark_sinks.source.origin import Origin
from spark_sinks.source.origins import open_origin, topics_of
from spark_sinks.targets.choose import TargetOptions, is_database, open_target
from spark_sinks.targets.place import below
from spark_sinks.targets.target import NewTable

if TYPE_CHECKING:
    import msgspec
    from pyspark.sql import DataFrame, SparkSession

    from serdes.registry import SchemaClient

_log = logging.getLogger("eventbus.spark")
ArrowSchema = Any
"""A `pyarrow.Schema`: unknown to type checkers, and it should not make `land` unknown too."""
DEFAULT_BATCH_RECORDS = 500_000
"""The most records that a run repeats after a crash."""
_LONG_JOB_RECORDS = 5_000_000


class LandReport(NamedTuple):
    """The result of one call of `land` for a topic.

    ``offsets``: the next offset to land of every partition, also of earlier calls. ``lag``: offsets that are
    not landed yet, by the end of the log as it was last read. ``table``: the table for people.
    """

    topic: str
    table: str
    rows: int
    rejected: int
    files: int
    batches: int
    offsets: dict[int, int]
    lag: int
    seconds: float


class LandOptions(TypedDict, total=False):
    """Options of `land` and `land_many`; `land` describes them."""

    value: ValueKind
    schema: type[msgspec.Struct] | ArrowSchema | str | None
    registry: str | SchemaClient | None
    key: KeyKind
    transform: Callable[[DataFrame], DataFrame] | None
    partition_by: str | Sequence[str] | Mapping[str, str]
    event_time: str | None
    upsert: bool | str | Sequence[str] | None
    starting_offsets: str
    max_offsets_per_trigger: int
    every: Duration | None
    on_incompatible: Change
    quarantine: bool
    quarantine_limit: float
    fail_on_data_loss: bool
    compression: str
    stage: str | None
    progress: Callable[[LandProgress], None] | None
    spark: SparkSession | None
    stop: threading.Event | None


def land(url: str, topic: str, to: str, **options: Unpack[LandOptions]) -> LandReport:
    """Land a topic as a table until it is caught up or, with ``every``, until ``stop`` is set.

    The table contains each record once, however often this is called and wherever an earlier call was killed.

    - ``url``: a log's directory or ``file://`` URL, ``kafka://host:port`` (a cluster, ``eventbus serve``), or a
      ``memory://`` whose bus is open in this process: Spark reads a copy, which goes with the log while this runs.
    - ``to``: a directory (Parquet), ``delta:DIRECTORY``, ``iceberg:...``, a SQLAlchemy URL, or ``console:``; for
      ``DIRECTORY`` also ``s3://``, ``gs://`` or ``az://``.
    - ``value``: ``avro`` (with a ``registry``; a log may hold its own), ``json`` (with a ``schema``), ``text`` or
      ``bytes``; ``auto`` detects it. ``schema``: a `msgspec.Struct` type, a pyarrow schema or Spark's DDL
      (``"carrier string, dep_delay double"``). Rows also get ``_topic, _partition, _offset, _timestamp`` and ``_key``,
      which is bytes or, with ``key="text"``, text. A null value becomes a row of nulls.
    - ``transform``: from DataFrame to DataFrame, called for each micro-batch after decoding. Row by row it is exactly
      once too; an aggregation sees one batch only.
    - ``partition_by``: ``"dt"`` (the day of ``event_time``, or else of the record's timestamp, UTC), a column, several,
      ``()`` for none, or a mapping from names to Spark SQL expressions. Databases are not partitioned.
    - ``upsert``: True (by the record's key) or the columns that tell rows apart: a row replaces the one before it, a
      null value deletes the rows of its key. Delta and databases.
    - ``starting_offsets``: where a new table starts: ``earliest``, ``latest`` or Kafka's JSON.
    - ``max_offsets_per_trigger``: records per batch, which is what a crash repeats; ``progress`` is called after each.
    - ``every``: seconds (or ``"10s"``) between batches; 0 starts the next immediately. None lands what there is.
    - ``on_incompatible``: what to do with values whose schema changed in a way that no column can follow: ``fail``,
      ``quarantine`` or ``new_column``.
    - ``quarantine``: records that cannot be decoded or landed are kept next to the table, in the same commit; more than
      ``quarantine_limit`` of a batch (and than 100) stop the landing, as all of them do with ``quarantine=False``.
    - ``stage``: where tasks put files for a database; a directory that driver and tasks share.
    - ``spark``: the session to use; by default the active session, else a new `spark_session`, stopped afterwards.

    `land_many` lands several topics.

    Raises `ConfigError` for wrong arguments. Raises `SerializationError` with topic, partition, offset and field when
    too many records cannot be decoded; batches before them stay landed. Raises `SchemaUnavailable` when the registry
    does not answer, and `OffsetOutOfRange` when retention removed records not yet landed. Raises `LogLocked` when
    another process of this machine lands the same table of files, and `ProducerFenced` when another landing took the
    table over, which is how databases and object stores keep two landings apart. Raises `SparkCrashed` when the JVM was
    killed, and `SparkFailed` for what Spark refuses, such as a column of ``transform`` that does not exist.
    """
    if are_several(topic):
        raise ConfigError(f"topic={topic!r}: land() lands one topic; several: land_many(url, topics, to)")
    reports = _land(url, topic, to, several=False, **_known(options))
    return next(iter(reports.values()))


def land_many(url: str, topics: str | Sequence[str], to: str, **options: Unpack[LandOptions]) -> dict[str, LandReport]:
    """Land several topics as `land` does, each as a separate table, and return the report of each.

    ``topics``: a sequence, a text with commas, or ``/a regular expression/``. ``{topic}`` in ``to`` is replaced, or the
    topic is appended.
    """
    return _land(url, topics, to, several=True, **_known(options))


def are_several(topics: str | Sequence[str]) -> bool:
    """True for a sequence, a text with commas and a regular expression."""
    return not isinstance(topics, str) or "," in topics or (topics.startswith("/") and topics.endswith("/"))


def _known(options: LandOptions) -> dict[str, Any]:
    for name in options:
        if name not in LandOptions.__annotations__:
            raise ConfigError(f"land() has no option {name!r}; it has {', '.join(LandOptions.__annotations__)}")
    return {**options}


def _land(
    url: str,
    topics: str | Sequence[str],
    to: str,
    *,
    several: bool,
    value: ValueKind = "auto",
    schema: type[msgspec.Struct] | ArrowSchema | str | None = None,
    registry: str | SchemaClient | None = None,
    key: KeyKind = "bytes",
    transform: Callable[[DataFrame], DataFrame] | None = None,
    partition_by: str | Sequence[str] | Mapping[str, str] = DATE,
    event_time: str | None = None,
    upsert: bool | str | Sequence[str] | None = None,
    starting_offsets: str = "earliest",
    max_offsets_per_trigger: int = DEFAULT_BATCH_RECORDS,
    every: Duration | None = None,
    on_incompatible: Change = "fail",
    quarantine: bool = True,
    quarantine_limit: float = 0.01,
    fail_on_data_loss: bool = True,
    compression: str = "zstd",
    stage: str | None = None,
    progress: Callable[[LandProgress], None] | None = None,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
) -> dict[str, LandReport]:
    started = time.monotonic()
    require_pyspark()
    every_ms = None if every is None else interval_ms(every)
    limits = _limits(max_offsets_per_trigger, quarantine, quarantine_limit, fail_on_data_loss)
    frames = Frames(transform, partition_by, event_time, compression)
    keys = _upsert_columns(upsert)
    with contextlib.ExitStack() as stack:
        runs: dict[str, Running] = {}
        origins: list[Origin] = []
        url = stack.enter_context(readable_outside(url))
        for topic in topics_of(url, topics):
            origin = open_origin(url, topic, fail_on_data_loss=fail_on_data_loss)
            target = open_target(table_of(to, topic, several), options=TargetOptions(compression, stage))
            lacks = target.lacks if frames.are_direct else target.lacks | SPARK_LACKS
            settings = ValueSettings(
                topic, value, schema, registry, key, on_incompatible, bool(keys), lacks, target.names
            )
            values = stack.enter_context(contextlib.closing(open_values(settings, url=url)))
            own_frames = frames.of(target, keys)
            # Spark reads a schema in its own language, and it has not been started.
            planned = None if isinstance(schema, str) else values.plan(None).columns
            columns = None if planned is None else list(planned.names)
            upsert_by = _upsert_key(keys, columns)
            if columns is not None and len(columns) > len(COORDINATES) + 1:  # else its schemas are yet to come
                own_frames.check_early(columns, upsert_by)
                own_frames.check_time(planned)
                check_key_columns(upsert_by, planned)
                check_partition_columns(own_frames.layout.partition_by if own_frames.are_direct else (), planned)
            new_table = NewTable(
                topic,
                own_frames.layout.partition_by,
                upsert_by,
                own_frames.are_transformed,
                starting_point(origin, starting_offsets) if target.state() is None else {},
                origin.topic_id(),
            )
            state = target.open(new_table, time.time_ns() // 1_000_000)
            stack.callback(target.close)
            running = runs[topic] = Running(origin, values, target, new_table, state, own_frames, limits, progress)
            running.check_kept()
            if not running.exists():
                _warn_of_absence(origin, url)
            origins.append(origin)
        waiting = sum([running.look() for running in runs.values()])
        if waiting or every_ms is not None:
            conf = {name: text for origin in origins for name, text in origin.session_conf().items()}
            with _Session(spark, waiting if every_ms is None else math.inf, conf) as session:
                for origin in origins:
                    origin.check_session(session)
                run_all(list(runs.values()), session, every_ms, stop)
        seconds = time.monotonic() - started
        return {topic: _report(topic, running, seconds) for topic, running in runs.items()}


def _warn_of_absence(origin: Origin, url: str) -> None:
    """A service and its landing may start in any order, so a topic that does not exist yet is only warned of."""
    near = difflib.get_close_matches(origin.topic, origin.topics(), 1)
    _log.warning(
        "Topic %r of %s does not exist yet. No row is landed until it is created.%s",
        origin.topic,
        origin.directory or url.partition("?")[0],
        f" Did you mean {near[0]!r}?" if near else "",
    )


def table_of(to: str, topic: str, several: bool) -> str:
    """Return the table of a topic: ``{topic}`` is replaced, or the name is appended if there are several topics."""
    if is_database(to):
        if several and "{topic}" not in to and "#" in to:
            raise ConfigError(f"to={to!r}: several topics need a table each: write {{topic}} where its name belongs")
        from spark_sinks.targets.sql.address import with_topic

        return with_topic(to, topic)
    if "{topic}" in to or not several or to == "console:":
        return to.replace("{topic}", topic)
    return below(to, topic)


def interval_ms(every: Duration) -> int:
    """Milliseconds of ``10``, ``"10s"``, ``"500 ms"``, ``"5 min"``, a timedelta. Raises `ConfigError`.

    A number alone counts seconds as text too: the command line has no other form.
    """
    if isinstance(every, str):
        every = re.sub(r"(?<=\d)\s+(?=[a-z])", "", every.strip())
        every = f"{every}s" if re.fullmatch(r"\d+(\.\d+)?", every) else every
    exact = exact_ms(every)
    if exact is None:
        raise ConfigError.about("every", every, "write seconds, or '500ms', '10s', '5m', '1h'")
    if not 0 <= exact < math.inf:
        raise ConfigError.about("every", every, "write seconds from 0 on")
    return round(exact)


def starting_point(origin: Origin, starting_offsets: str) -> dict[int, int]:
    """Return the first offset of each present partition for a new table. Raises `ConfigError`."""
    bounds = origin.bounds()
    named = {"earliest": EARLIEST, "latest": LATEST}.get(starting_offsets)
    if named is not None:
        return {partition: resolve(named, each) for partition, each in bounds.items()}
    if not starting_offsets.lstrip().startswith("{"):
        raise ConfigError(f"starting_offsets={starting_offsets!r}: write 'earliest', 'latest' or Kafka's JSON")
    wanted = {each.partition: offset for each, offset in parse(starting_offsets, "starting_offsets").items()}
    topics = {each.topic for each in parse(starting_offsets, "starting_offsets")}
    # A partition that never held a record may not be seen: there all places are the same.
    beyond = [each for each, offset in wanted.items() if offset >= 0 and not _within(offset, bounds.get(each, (0, 0)))]
    if topics - {origin.topic} or beyond:
        there = ", ".join(f"{each} from {first} to {end}" for each, (first, end) in sorted(bounds.items()))
        raise ConfigError(
            f"starting_offsets={starting_offsets!r} names what is not there: {origin.topic} has the partitions {there}"
        )
    return {partition: resolve(wanted.get(partition, EARLIEST), each) for partition, each in bounds.items()}


def _within(offset: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= offset <= bounds[1]


def _limits(max_offsets: int, quarantine: bool, quarantine_limit: float, fail_on_data_loss: bool) -> Limits:
    if max_offsets < 1:
        raise ConfigError(f"max_offsets_per_trigger={max_offsets!r}: a batch needs at least one record")
    if not 0 <= quarantine_limit <= 1:
        raise ConfigError(f"quarantine_limit={quarantine_limit!r} is a share of a batch: from 0 to 1 (0.01 is 1 %)")
    return Limits(max_offsets, quarantine, quarantine_limit, fail_on_data_loss)


def _upsert_columns(upsert: bool | str | Sequence[str] | None) -> tuple[str, ...]:
    if upsert is None or upsert is False:
        return ()
    columns = (KEY,) if upsert is True else (upsert,) if isinstance(upsert, str) else tuple(upsert)
    if not columns or not all(columns):
        raise ConfigError(f"upsert={upsert!r} names no column: write the columns that tell rows apart, or True")
    return columns


def _upsert_key(upsert: tuple[str, ...], columns: Sequence[str] | None) -> tuple[str, ...]:
    """The record's key is the column ``key`` where the value is one column too."""
    if columns is None or KEY in columns:
        return upsert
    return tuple("key" if name == KEY else name for name in upsert)


def _report(topic: str, running: Running, seconds: float) -> LandReport:
    running.look()
    return LandReport(
        topic,
        running.table,
        running.rows,
        running.rejected,
        running.files,
        running.batches,
        dict(running.state.offsets),
        running.lag,
        seconds,
    )


class _Session:
    """A session for the length of a ``with`` block; ended there if it was started there."""

    def __init__(self, given: SparkSession | None, records: float, conf: Mapping[str, str]) -> None:
        self._given = given
        # The optimizing compiler takes more CPU at the start than it saves in a short job: the work is done in Python.
        quick = records < _LONG_JOB_RECORDS
        self._conf = {**({"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"} if quick else {}), **conf}
        self._own: Any = None

    def __enter__(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from spark_sinks.session.spark import spark_session
        from spark_sinks.source.datasource import register

        session = self._given or SparkSession.getActiveSession()
        if session is None:
            session = self._own = spark_session("eventbus land", conf=self._conf, log_level="OFF")
        register(session)
        return session

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.stop()

"""One Spark session, on this machine, with the settings a landing job needs."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from eventbus.errors import ConfigError, SparkCrashed
from eventbus.forks import forked, watch_forks
from spark_sinks.java.jvm import Jvm, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_INT = 2**31 - 1


def default_conf() -> dict[str, str]:
    """Return the settings of `spark_session`, by Spark's names; each can be overridden there."""
    return {
        # Plain local[*] gives up at the first lost worker; 4 is the number of attempts of a task.
        "spark.master": "local[*,4]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Measuring a batch row by row is quadratic as soon as there is a list column (SPARK-51316): 14x. Rows bound it.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(_MAX_INT),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.catalogImplementation": "in-memory",
    }


def spark_session(
    app_name: str = "eventbus", *, conf: Mapping[str, object] | None = None, log_level: str = "ERROR", **more: object
) -> SparkSession:
    """Return a Spark session on this machine that knows ``format("eventbus")`` and needs no installed Java.

    ``conf`` holds Spark's settings by their dotted names; keyword arguments are the same with underscores for dots
    (``spark_driver_memory="2g"``). ``session.stop()``, leaving a ``with`` block, or the end of the interpreter ends the
    JVM too. An active session is returned unchanged, with the source registered. ``log_level`` is
    Spark's; ``OFF`` silences the Python workers as well.

    Raises `ConfigError` when pyspark is missing (with the ``pip install`` to run) or no Java 17 or newer is found.
    """
    require_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from spark_sinks.source.datasource import register

    wanted = {**default_conf(), **{key: _text(value) for key, value in (conf or {}).items()}}
    wanted |= {key.replace("_", "."): _text(value) for key, value in more.items()}
    if unknown := [key for key in wanted if not key.startswith("spark.")]:
        raise ConfigError(f"{', '.join(unknown)}: Spark's settings begin with 'spark.'")
    session = SparkSession.getActiveSession()
    if session is None:
        # A context left by the caller's own pyspark code brings its own JVM; ours would be a second one.
        jvm = Jvm(wanted, log_level=log_level) if getattr(SparkContext, "_gateway", None) is None else None
        session = connect(app_name, wanted, jvm)
    register(session)
    _watch_gateway(session)
    return session


class _Gateway:
    """The connection of this process to Spark's JVM, until a fork: the child must not use it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._process = os.getpid()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Refuse every call, also those that free objects of the JVM, which the parent uses; forget the session."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        self._client.send_command = self._refuse
        context: Any = SparkContext
        context._gateway = context._jvm = context._active_spark_context = None
        sessions: Any = SparkSession
        sessions._instantiatedSession = sessions._activeSession = None

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise forked("Spark", "The Spark session", self._process)


def _watch_gateway(session: SparkSession) -> None:
    """Have the session refused in forked children, once for each JVM."""
    context: Any = session.sparkContext
    client = context._gateway._gateway_client
    if not hasattr(client, "eventbus_gateway"):
        client.eventbus_gateway = _Gateway(client)


def connect(app_name: str, conf: Mapping[str, str], jvm: Jvm | None) -> SparkSession:
    """Return a session in a JVM of ours, which ends with it; or, without one, in that of pyspark."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.appName(app_name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    if jvm is None:
        return builder.getOrCreate()
    environ = {
        "PYSPARK_GATEWAY_PORT": str(jvm.port),
        "PYSPARK_GATEWAY_SECRET": jvm.secret,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    builder = builder.config("spark.sql.warehouse.dir", (jvm.directory / "warehouse").as_uri())
    builder = builder.config("spark.local.dir", str(jvm.directory / "tmp"))
    try:
        with _own_interrupt():
            session = builder.getOrCreate()
    except BaseException as error:
        has_crashed = isinstance(error, Py4JError | OSError) and jvm.has_ended()
        _disconnect(jvm)
        if has_crashed:
            raise SparkCrashed(
                "Spark's Java ended while its session was being created. It was killed, or the machine has too little "
                "memory for it (spark.driver.memory). Start it again."
            ) from error
        raise
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    _end_jvm_with(session, jvm)
    return session


@contextlib.contextmanager
def _own_interrupt() -> Generator[None]:
    """Keep the caller's handler of Ctrl-C: pyspark's calls the JVM, from within whatever call to it is under way."""
    if threading.current_thread() is not threading.main_thread():
        yield  # pyspark sets none there
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def _end_jvm_with(session: SparkSession, jvm: Jvm) -> None:
    stop_session = session.stop
    process = os.getpid()

    def stop() -> None:
        if process != os.getpid():
            return  # forked: the JVM is the parent's
        atexit.unregister(stop)
        try:
            stop_session()
        except Exception:  # pyspark's own, or a refused connection: it depends on what it asks first
            if not jvm.has_ended():
                raise
            _forget(session)
        finally:
            _disconnect(jvm)

    session.stop = stop
    atexit.register(stop)  # before the JVM's own: pyspark complains aloud of a JVM that went while it listens to it


def _forget(session: SparkSession) -> None:
    """Complete `SparkSession.stop` if the JVM is dead: pyspark fails at its first call to the JVM."""
    from pyspark.sql import SparkSession, SQLContext

    session.sparkContext.stop()  # it has forgotten the JVM's half by now
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None
    contexts: Any = SQLContext
    contexts._instantiatedContext = None


def _disconnect(jvm: Jvm) -> None:
    """Make pyspark forget the gateway before the JVM goes, so that a later session starts a new one."""
    from pyspark import SparkContext

    _keep_text(sys.exc_info()[1])
    context: Any = SparkContext
    gateway = context._gateway
    context._gateway = context._jvm = None
    if gateway is not None:
        gateway.shutdown()
    jvm.stop()


def _keep_text(error: BaseException | None) -> None:
    """Give an error that leaves the ``with`` block of a session its text now, and the errors that caused it.

    pyspark's str() of an error asserts that there is a JVM. It would be shown as "<exception str() failed>".
    """
    from pyspark.errors.exceptions.captured import CapturedException

    while error is not None:
        if isinstance(error, CapturedException):
            kind, text = type(error), str(error)

            def told(_: object, text: str = text) -> str:
                return text

            error.__class__ = type(kind.__name__, (kind,), {"__str__": told, "__module__": kind.__module__})
        error = error.__cause__ or error.__context__


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

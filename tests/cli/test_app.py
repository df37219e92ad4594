"""The frame around the commands: usage, exit codes, global options, plugins, errors, and what is imported when."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from eventbus.cli import app
from eventbus.errors import ConfigError
from eventbus.version import __version__

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"eventbus {__version__}\n", "")


@pytest.mark.system
@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_names_every_command(cli: Cli, args: tuple[str, ...]) -> None:
    result = cli(*args)
    assert result.code == 0
    for command in app.COMMANDS:
        assert f"\n    {command} " in result.out


@pytest.mark.parametrize("command", [*app.COMMANDS, "topics create", "topics alter", "log dump", "log verify"])
def test_every_command_has_help(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert result.code == 0
    assert result.out.startswith(f"usage: eventbus {command}")
    assert "--url" in result.out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["topcs"], "there is no command 'topcs'; did you mean 'topics'?"),
        (["zzz"], "there are: acls, "),
        (["topics"], "which one?"),
        (["log"], "which one?"),
        (["topics", "frobnicate"], "invalid choice: 'frobnicate'"),
        (["topics", "create"], "eventbus topics create: which topic?"),
        (["topics", "create", "a", "--topic", "b"], "two topics are given, 'a' and 'b'"),
        (["topics", "create", "a", "--partitions", "none"], "--partitions: 'none' is not a whole number"),
        (["topics", "create", "a", "--partitions", "0"], "--partitions: 0 is less than 1"),
        (["topics", "create", "a", "--config", "retention.ms"], "--config 'retention.ms' is not of the form key=value"),
        (["topics", "alter", "a"], "nothing to change"),
        (["topics", "list", "--parts", "3"], "unrecognized arguments: --parts 3"),
        (["--url"], "expected one argument"),
        (["topics", "list", "--url", "./data"], "'./data' is no URL: write file://./data"),
        (["topics", "list", "--url", "fiel://./data"], "unknown scheme 'fiel'"),
        (["topics", "list", "--url", "fiel://./data"], "did you mean 'file'?"),
        (["produce", "a", "--acks", "2"], "invalid choice: '2'"),
        (["produce", "a", "--property", "parse.keys=true"], "there is no property 'parse.keys'"),
        (["produce", "a", "--key", "k", "--property", "parse.key=true"], "two ways to give the key"),
        (["consume", "a", "--offset", "3"], "--offset N needs --partition"),
        (["consume", "a", "--offset", "first"], "'first' is not earliest, latest or an offset"),
        (["consume", "a", "--offset", "latest", "--from-beginning"], "both say where to start"),
        (["consume", "a", "--group", "g", "--partition", "0"], "leave out --partition"),
        (["consume", "a", "--property", "print.keys=true"], "there is no property 'print.keys'"),
        (["offsets", "a", "--time", "yesterday"], "'yesterday' is no time"),
        (["offsets", "a", "--time", "-6"], "-6 is no time"),
        (["offsets", "a", "--partitions", "0;1"], "no list of partition numbers"),
        (["offsets", "a", "--time", "-1", "--group", "g"], "answer different questions"),
        (["run", "app"], "not of the form module:bus"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_two_lines_on_stderr(cli: Cli, args: list[str], told: str) -> None:
    result = cli(*args)
    assert result.code == 2
    assert result.out == ""
    assert told in result.err
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert not Path("data").exists()


@pytest.mark.parametrize(
    "args", [("--url", "file://./other", "topics", "list"), ("topics", "list", "--url", "file://./other")]
)
def test_global_options_stand_before_or_after_the_command(cli: Cli, args: tuple[str, ...]) -> None:
    cli("topics", "create", "here", "--url", "file://./other")
    assert cli(*args).lines == ["here"]
    assert not Path("data").exists()


def test_the_url_comes_from_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_URL", "file://./from-environment")
    cli("topics", "create", "here")
    assert Path("from-environment").is_dir()
    assert cli("topics", "list", "--url", "file://./elsewhere").code == 1


@pytest.mark.parametrize(
    ("flag", "value", "url"),
    [
        ("--bootstrap-server", "h1:9092,h2:9092", "kafka://h1:9092,h2:9092"),
        ("--broker-list", "h1:9092", "kafka://h1:9092"),
        ("--zookeeper", "h1:2181/kafka", "kafka://h1:2181"),
        ("--zookeeper", "file://./old", "file://./old"),
    ],
)
def test_kafkas_flags_name_the_log_and_the_old_ones_warn(flag: str, value: str, url: str, cli: Cli) -> None:
    seen: list[Any] = []

    def register(subcommands: Any) -> None:
        subcommands.add_parser("probe").set_defaults(run=lambda args: seen.append(args.url))

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(app.COMMANDS, "probe", "probe")
        patched.setattr(app, "import_module", lambda name: type("Module", (), {"register": staticmethod(register)}))
        for args in ((flag, value, "probe"), ("probe", flag, value)):
            result = cli(*args)
            assert result.code == 0
            assert ("is an old flag" in result.err) == (flag != "--bootstrap-server")
    assert seen == [url, url]


def _entry_point(monkeypatch: pytest.MonkeyPatch, name: str, register: Any) -> None:
    class Point:
        dist = None
        value = "somewhere:register"

        def __init__(self) -> None:
            self.name = name

        def load(self) -> Any:
            if isinstance(register, Exception):
                raise register
            return register

    monkeypatch.setattr(app, "_entry_points", lambda: iter([Point()]))


def test_commands_of_other_packages_come_by_entry_point(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def register(subcommands: Any) -> None:
        parser = subcommands.add_parser("dlq", help="dead letters")
        parser.add_argument("what")
        parser.set_defaults(run=lambda args: print(args.what, args.url, args.json) or 3)

    _entry_point(monkeypatch, "dlq", register)
    assert cli("--json", "dlq", "redrive", "--url", "memory://") == (3, "redrive memory:// True\n", "")
    assert "dead letters" in cli("--help").out
    assert "did you mean 'dlq'?" in cli("dql").err


def test_a_plugin_that_cannot_be_loaded_does_not_hide_the_others(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _entry_point(monkeypatch, "dlq", ImportError("no module named sqlalchemy"))
    result = cli("--help")
    assert result.code == 0
    assert "command 'dlq' of somewhere:register cannot be loaded (ImportError" in result.err
    assert cli("dlq").code != 0
    assert cli("topics", "list", "--url", "memory://").code == 0


def test_what_an_error_adds_is_told_with_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: Any) -> None:
        error = ConfigError("this is wrong")
        error.add_note("and that too")
        raise error

    _entry_point(monkeypatch, "boom", lambda subcommands: subcommands.add_parser("boom").set_defaults(run=fail))
    assert cli("boom").err.splitlines() == ["error: this is wrong", "  and that too"]


def test_the_group_of_entry_points_is_the_documented_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **query: asked.append(query) or list[EntryPoint]())
    assert list(app._entry_points()) == []
    assert asked == [{"group": "eventbus.commands"}]


def test_a_bug_is_one_line_and_a_traceback_only_with_debug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def register(subcommands: Any) -> None:
        subcommands.add_parser("boom").set_defaults(run=lambda args: {}["missing"])

    _entry_point(monkeypatch, "boom", register)
    result = cli("boom")
    assert result.code == 1
    assert result.err.splitlines() == ["error: KeyError: 'missing'", "  this should not happen: --debug shows where"]
    with pytest.raises(KeyError):
        cli("boom", "--debug")


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (FileNotFoundError(2, "No such file or directory", "x.log"), 1, "error: No such file or directory: x.log"),
        (ExceptionGroup("", [ExceptionGroup("", [OSError(28, "No space left on device")])]), 1, "error: No space left"),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), 130, "interrupted"),
    ],
)
def test_what_is_raised_below(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, told: str
) -> None:
    def fail(args: Any) -> None:
        raise error

    _entry_point(monkeypatch, "fail", lambda subcommands: subcommands.add_parser("fail").set_defaults(run=fail))
    result = cli("fail")
    assert result.code == code
    assert result.err.startswith(told)
    assert len(result.err.splitlines()) == 1


@pytest.mark.system
def test_a_reader_that_goes_away_is_no_error(orders: Cli, spawn: Spawn) -> None:
    producer = spawn("produce", "orders")
    _, err = producer.communicate(b"a line that is long enough to fill a pipe\n" * 20_000)
    assert producer.returncode == 0, err
    process = spawn("consume", "orders", "--from-beginning")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=20)
    assert b"Traceback" not in err and b"rror" not in err
    assert process.returncode == 0


@pytest.mark.system
def test_python_m_eventbus_is_the_command(spawn: Spawn) -> None:
    process = spawn("topics", "list", "--url", "memory://")
    assert process.communicate(timeout=20) == (b"", b"")
    assert process.returncode == 0


@pytest.mark.system
def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    """Rich, numpy, pyarrow and Spark for no plain command; not even the own client for a usage error."""
    program = """
import sys
before = set(sys.modules)
from eventbus.cli import main
main(sys.argv[1:])
heavy = {"rich", "numpy", "pyarrow", "pyspark", "pandas", "spark_sinks"}
print(",".join(sorted(heavy & set(sys.modules))))
print(",".join(sorted(name for name in set(sys.modules) - before if name.startswith("eventbus."))))
"""
    for args in (["--version"], ["topics", "list", "--url", "memory://"]):
        done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=True)
        *_, heavy, own = done.stdout.splitlines()
        assert heavy == ""
        if args == ["--version"]:
            assert set(own.split(",")) <= {
                "eventbus.cli",
                "eventbus.cli.app",
                "eventbus.cli.parser",
                "eventbus.error_codes",
                "eventbus.errors",
                "eventbus.version",
            }


@pytest.mark.system
def test_closed_standard_streams_are_the_null_device() -> None:
    program = """
import os, sys
from eventbus.cli import main
code = main(["topics", "list", "--url", "memory://"])
null = os.stat(os.devnull)
print(code, *(os.path.samestat(os.fstat(number), null) for number in (0, 1)), file=sys.stderr)
"""
    line = 'exec "$0" -c "$1" <&- >&-'
    done = subprocess.run(["sh", "-c", line, sys.executable, program], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr == "0 True True\n"

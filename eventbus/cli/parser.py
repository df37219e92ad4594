"""The argument parser: Kafka's flag names, the global options before or after the command, short errors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Protocol

from eventbus.errors import ConfigError

DEFAULT_URL = "file://./data"

GLOBAL_VALUES = frozenset(
    {
        "--url",
        "--bootstrap-server",
        "--bootstrap-controller",
        "--zookeeper",
        "--broker-list",
        "--command-config",
        "--command-property",
    }
)
"""The global options that take a value."""


class UsageError(ConfigError):
    """The command line is wrong: exit code 2."""


class Subcommands(Protocol):
    """What a command's ``register`` function is given: argparse's subparsers action."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...


class Parser(argparse.ArgumentParser):
    """An argument parser whose every sub-command also takes the global options.

    Their defaults are suppressed, so a value given before the command is not undone after it.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)
        self.set_defaults(program=self.prog)  # for errors that only show once all is parsed
        add_global_options(self)

    fill: Callable[[], object] | None = None
    """Adds what this parser is about, once it is asked: the list of all commands needs their names alone."""

    def fill_now(self) -> None:
        """Add what `fill` has put off."""
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill()

    def format_help(self) -> str:
        self.fill_now()
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride] - argparse has overloads
        """What is left over is an error of the (sub)command that it was given to, with the nearest of its flags."""
        self.fill_now()
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            from eventbus.suggest import nearest

            known = self._option_string_actions  # argparse has no public list of them
            wrong = [word.partition("=")[0] for word in rest if word.startswith("--")]
            self.error(f"unrecognized arguments: {' '.join(rest)}{nearest(wrong[0], known) if wrong else ''}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}\n  see: {self.prog} --help")


def add_actions(subcommands: Subcommands, name: str, modules: Iterable[str], **options: Any) -> None:
    """A command of several: ``add(actions)`` of each of the modules, which are imported when the command is used."""
    parser = subcommands.add_parser(name, **options)

    def fill() -> None:
        actions = parser.add_subparsers(metavar="ACTION", title="actions")
        for module in modules:
            import_module(module).add(actions)

    if isinstance(parser, Parser):
        parser.fill = fill
    else:
        fill()


class _Renamed(argparse.Action):
    """An old flag of Kafka's tools: taken for its successor, with a warning."""

    def __init__(self, *args: Any, successor: str, why: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.successor, self.why = successor, why

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        notes: list[str] = getattr(namespace, "notes", [])
        namespace.notes = [*notes, f"{option} is an old flag ({self.why}); taken as {self.successor} {values}"]
        setattr(namespace, self.dest, bootstrap_url(values))


def add_global_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("global options")
    quiet: Any = argparse.SUPPRESS
    group.add_argument(
        "--url",
        default=quiet,
        metavar="URL",
        help=f"the log: file://./data, file:///abs/dir, memory://, kafka://host:9092 "
        f"(default: $EVENTBUS_URL, else {DEFAULT_URL})",
    )
    group.add_argument("--json", action="store_true", default=quiet, help="machine-readable output")
    group.add_argument("--debug", action="store_true", default=quiet, help="show tracebacks")
    group.add_argument(
        "--bootstrap-server",
        "--bootstrap-controller",
        dest="url",
        type=bootstrap_url,
        default=quiet,
        metavar="HOST:PORT",
        help="as --url kafka://",
    )
    group.add_argument(
        "--command-config", default=quiet, metavar="FILE", help="properties of the connection to a Kafka"
    )
    group.add_argument(
        "--command-property", action="append", default=quiet, metavar="KEY=VALUE", help="one of them; repeatable"
    )
    for flag, why in (
        ("--zookeeper", "no client talks to ZooKeeper, and Kafka 4.0 removed it"),
        ("--broker-list", "Kafka's tools renamed it"),
    ):
        group.add_argument(
            flag,
            dest="url",
            action=_Renamed,
            successor="--bootstrap-server",
            why=why,
            default=quiet,
            metavar="HOST:PORT",
            help=argparse.SUPPRESS,
        )


def bootstrap_url(value: str) -> str:
    """``host:port,...`` as a URL; a URL stays what it is. A ZooKeeper chroot (``/kafka``) falls away."""
    return value if "://" in value else f"kafka://{value.partition('/')[0]}"


def read_properties(path: str) -> dict[str, str]:
    """Return a properties file as Java writes it. Raises UsageError when it cannot be read."""
    from eventbus.properties import parse_properties

    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"properties file {path}: {getattr(error, 'strerror', None) or error}") from None


def default_url() -> str:
    """``EVENTBUS_URL``, else what the file that ``EVENTBUS_CONFIG`` names says, else ./data. Raises ConfigError."""
    if os.environ.get("EVENTBUS_CONFIG") or os.environ.get("EVENTBUS_URL_FILE"):
        from eventbus.client.configuration.resolution import url_outside  # commands that ask nothing start fast

        return url_outside() or DEFAULT_URL
    return os.environ.get("EVENTBUS_URL") or DEFAULT_URL


def add_topic(parser: argparse.ArgumentParser, *, required: bool = True, help: str = "the topic's name") -> None:
    """A topic as Kafka's tools take it (``--topic NAME``) and as people type it (``NAME``)."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=help)
    parser.add_argument("--topic", dest="topic_option", metavar="TOPIC", help=argparse.SUPPRESS)
    parser.set_defaults(topic_required=required)


def topic_of(args: argparse.Namespace) -> str | None:
    """Return the topic given either way.

    Raises:
        UsageError: none was given and the command needs one, or two different ones were given.
    """
    if args.topic and args.topic_option and args.topic != args.topic_option:
        raise UsageError(f"{args.program}: two topics are given, {args.topic!r} and {args.topic_option!r}: give one")
    topic: str | None = args.topic or args.topic_option
    if topic is None and args.topic_required:
        raise UsageError(f"{args.program}: which topic? Give its name, as in: {args.program} orders")
    return topic


def required_topic(args: argparse.Namespace) -> str:
    topic = topic_of(args)
    assert topic is not None, "add_topic(required=True) parsers only"
    return topic


def key_values(pairs: list[str] | None, flag: str) -> dict[str, str]:
    """``k=v`` options as a dict; the value may hold ``=`` and may be empty."""
    result: dict[str, str] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{flag} {pair!r} is not of the form key=value, as in: {flag} retention.ms=60000")
        result[key] = value
    return result


def positive(text: str) -> int:
    """Return an argparse type: an integer of at least 1."""
    return _integer(text, 1)


def natural(text: str) -> int:
    """Return an argparse type: an integer of at least 0."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value

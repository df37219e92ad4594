"""Which log, topic and table a command is about, and what its values are."""

from __future__ import annotations

import argparse
import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.cli.parser import UsageError, bootstrap_url
from eventbus.errors import EventBusError

if TYPE_CHECKING:
    from spark_sinks.upkeep.rows import ValueArguments

TABLES = """\
tables:
  ./warehouse/orders  a directory of Parquet files     delta:./lake/orders      a Delta table
  iceberg:./lake/orders  an Iceberg table              console:                 shows rows, keeps nothing
  postgresql://me@host/shop#orders, mysql://me@host/shop#orders, sqlite:///shop.db#orders    a table of a database
"""
_TOPIC = re.compile(r"[\w.-]{1,249}")
_PATTERN = re.compile(r"/.+/")
_ARGUMENTS = (
    "value", "schema", "registry", "key", "on_incompatible", "transform", "partition_by", "event_time", "upsert",
    "starting_offsets", "max_offsets_per_trigger", "every", "quarantine_limit", "quarantine", "fail_on_data_loss",
    "compression", "stage", "values", "before", "min_files",
)  # fmt: skip
_FLAGS = re.compile(rf"(?<![\w-])({'|'.join(_ARGUMENTS)})=(?=([^\s,;:)]?))")
_WORDS = {"to": "TABLE", "topics": "TOPIC", "path": "LOG"}
_OURS = {
    "--quarantine False": "--no-quarantine",
    "--fail-on-data-loss False": "--skip-lost",
    "(quarantine_limit)": "(--quarantine-limit)",
    "--upsert []": "no --upsert",
}


class Place(NamedTuple):
    """``topic``: None where the table says it."""

    url: str
    topic: str | None
    table: str


def add_place(parser: argparse.ArgumentParser, *, topic_required: bool) -> None:
    """Add the arguments ``[LOG] TOPIC TABLE``, or ``[[LOG] TOPIC] TABLE`` for a table that stores its topic."""
    shown = "[LOG] TOPIC TABLE" if topic_required else "[[LOG] TOPIC] TABLE"
    parser.add_argument("words", nargs="*", metavar=shown, help="LOG: a directory or URL (default: --url)")
    parser.usage = f"{parser.prog} {shown} [options]"
    parser.set_defaults(words_shown=shown, topic_required=topic_required)


def place_of(args: argparse.Namespace) -> Place:
    """Raises UsageError for too few or too many words, and for words in another order."""
    words: list[str] = args.words
    least = 2 if args.topic_required else 1
    if not least <= len(words) <= 3:
        found = f"there {'is' if len(words) == 1 else 'are'} {len(words) or 'none'}"
        raise UsageError(
            f"{args.program}: it takes the words {args.words_shown}, and {found}, as in: "
            f"{args.program} {'orders ' if args.topic_required else ''}./warehouse/orders"
        )
    url, topic, table = (*[None] * (3 - len(words)), *words)
    for name in (topic or "").split(",") if topic and not _PATTERN.fullmatch(topic) else ():
        if not _TOPIC.fullmatch(name.strip()):
            raise UsageError(
                f"{args.program}: {topic!r} is where the topic belongs, and no topic is called so: the order is "
                f"{args.words_shown}"
            )
    if not table:
        raise UsageError(f"{args.program}: the table's name is empty\n{TABLES}")
    return Place(log_url(url) if url else args.url, topic, table)


def places_of(args: argparse.Namespace) -> list[Place]:
    """Return the same for several topics, named as for a landing: a table each."""
    place = place_of(args)
    if place.topic is None or not ("," in place.topic or _PATTERN.fullmatch(place.topic)):
        return [place]
    from spark_sinks.landing import table_of
    from spark_sinks.source.origins import topics_of

    with in_our_words():
        topics = topics_of(place.url, place.topic)
        return [Place(place.url, topic, table_of(place.table, topic, several=True)) for topic in topics]


def log_url(text: str) -> str:
    """``host:9092`` is a cluster, anything else a URL or a directory."""
    return bootstrap_url(text) if re.fullmatch(r"[\w.-]+:\d+(,[\w.-]+:\d+)*", text) else text


# what values are ------------------------------------------------------------------------------------------------------


def add_values(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("values")
    group.add_argument(
        "--value", choices=("auto", "avro", "json", "text", "bytes"), default="auto",
        help="what they are (default: avro with a registry or the log's own schemas, json with --schema, else bytes)",
    )  # fmt: skip
    group.add_argument(
        "--schema", metavar="COLUMNS",
        help="of JSON: 'carrier string, delay double', or a class, module:Class",
    )  # fmt: skip
    group.add_argument("--registry", metavar="URL", help="of Avro: the schema registry; `log` for the one in the log")
    group.add_argument("--key", choices=("bytes", "text"), default="bytes", help="what _key is (default: bytes)")
    group.add_argument(
        "--on-incompatible", choices=("fail", "quarantine", "new-column"), default="fail",
        help="values whose schema no common column can hold (default: fail)",
    )  # fmt: skip


def values_of(args: argparse.Namespace) -> ValueArguments:
    from spark_sinks.upkeep.rows import ValueArguments

    schema = args.schema
    if schema is not None and re.fullmatch(r"[\w.]+:[\w.]+", schema):
        schema = named_object(schema, "--schema", args.program)
    return ValueArguments(args.value, schema, args.registry, args.key, args.on_incompatible.replace("-", "_"))


def named_object(name: str, flag: str, program: str) -> Any:
    """Import the object ``module:name``, also from the current directory. Raises UsageError."""
    import sys

    if "/" in name or name.partition(":")[0].endswith(".py") or not re.fullmatch(r"[\w.]+:[\w.]+", name):
        found = re.sub(r"\.py\b", "", name.partition(":")[0]).strip("./").replace("/", ".")
        attribute = name.partition(":")[2] or "name"
        raise UsageError(f"{program}: {flag} {name}: write a module and what is in it, as in {found}:{attribute}")

    if "" not in sys.path:
        sys.path.insert(0, "")
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{program}: {flag} {name}: {error}") from error
    except Exception as error:  # the module is the user's own, and may do anything when it is imported
        raise UsageError(f"{program}: {flag} {name}: {module} raises {type(error).__name__}: {error}") from error
    return found


# errors ---------------------------------------------------------------------------------------------------------------


@contextmanager
def in_our_words() -> Generator[None]:
    """Errors of the API name its arguments; here those are options."""
    try:
        yield
    except EventBusError as error:
        error.args = (as_options(str(error)), *error.args[1:])
        raise


def as_options(text: str) -> str:
    """``partition_by='x'`` is ``--partition-by 'x'``, ``to=`` is the word TABLE."""
    text = _FLAGS.sub(lambda found: f"--{found[1].replace('_', '-')}{found[2] and ' '}", text)
    for name, word in _WORDS.items():
        text = re.sub(rf"(?<![\w-]){name}=", f"{word} ", text)
    for theirs, ours in _OURS.items():
        text = text.replace(theirs, ours)
    return text

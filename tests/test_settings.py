"""One row is all that a setting needs; docs/reference/settings.md is the table.

``python -m pytest tests/test_settings.py --rewrite`` writes the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventbus import EventBus
from eventbus.backends import urls
from eventbus.broker import configs
from eventbus.client import config as client_config
from eventbus.client.configuration.display import rows_of
from eventbus.client.configuration.environment import read_environment
from eventbus.client.configuration.files import read_file
from eventbus.client.configuration.resolution import configure
from eventbus.client.handling import options
from eventbus.errors import ConfigError, InvalidConfig
from eventbus.server import properties
from eventbus.settings import server, table, topics
from eventbus.settings.setting import Scope, Setting
from tests.named import find_page

PAGE = find_page("settings.md")
SECTIONS: dict[str, tuple[Scope, ...]] = {
    "The bus": ("bus", "function"),
    "Its log, `memory://` or `file://`": ("log",),
    "Producers": ("producer",),
    "Consumers": ("consumer",),
    "Handlers": table.OF_A_HANDLER,
    "Clients on `kafka://`": table.PASSED,
}
TOP = """\
# Settings

`python -m pytest tests/test_settings.py --rewrite` writes this page from the settings table.
[Configuration](configuration.md) describes where settings are given, and which place takes precedence.

Each setting is shown with its default. Kafka's spelling has dots instead of underscores. Other spellings are in
parentheses; librdkafka's are accepted in a `kafka://` URL only. The important settings are bold. Times in `_ms` also
take texts (`"5s"`, `"PT1H"`) and timedeltas. A setting marked with * belongs to one producer or consumer: a bus has no
default for it. `eventbus config explain NAME` shows type and range in full.
"""
LIBRDKAFKA = "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"


def title_of(row: Setting) -> str:
    default = "" if row.is_passed else "=none" if row.default in (None, "", (), {}) else f"={row.default}"
    name = f"`{row.name}{default}`"
    also = ", ".join(f"`{other}`" for other in (row.kafka, row.librdkafka) if other and other != row.name)
    return (f"**{name}**" if row.importance == "high" else name) + "*" * row.own + (f" ({also})" if also else "")


def range_of(row: Setting) -> str:
    """The allowed values, where neither the default nor the meaning shows them."""
    if row.choices:
        return "" if all(choice in row.doc for choice in row.choices) else ", ".join(row.choices)
    if not row.is_number:
        return ""
    low, high = row.limits
    ends_with_the_type = high == row._replace(high=None).limits[1]
    limits = f"{low} to {high}" if not ends_with_the_type else f"from {low}" if low > 1 else ""
    return limits + (f", or {row.also}" if row.also is not None else "")


def line_of(row: Setting) -> str:
    allowed = range_of(row)
    return f"- {title_of(row)}: {row.doc}{f' ({allowed})' if allowed else ''}"


def without_effect() -> str:
    """The topic configs that are only stored, by the reason."""
    reasons: dict[str, list[str]] = {}
    for row in configs.CONFIG_KEYS.values():
        if row.no_effect:
            reasons.setdefault(row.no_effect.removeprefix("stored only: "), []).append(f"`{row.name}`")
    return "".join(f"- {', '.join(names)}: {reason}\n" for reason, names in reasons.items())


def render() -> str:
    parts = [TOP]
    for title, scopes in SECTIONS.items():
        found = table.rows(*scopes, own=True).values()
        if title == "Clients on `kafka://`":
            known = ", ".join(title_of(row) for row in found if row.importance != "low")
            parts.append(
                f"\n## {title}\n\n{len(found)} settings of librdkafka, above all {known}. `eventbus config list "
                f"--kafka` lists them, and [librdkafka]({LIBRDKAFKA}) documents them. Other logs ignore them.\n"
            )
        else:
            parts.append(f"\n## {title}\n\n" + "\n".join(map(line_of, found)) + "\n")
    effective = [row for row in configs.CONFIG_KEYS.values() if not row.no_effect]
    parts.append(
        "\n## Topics\n\nIn `configs={...}` of `bus.topic`, `log_defaults`, and `eventbus topics alter --config`. The "
        "key in parentheses sets the default for all topics in the properties file of a server.\n"
        + "\n" + "\n".join(map(line_of, effective)) + "\n"
        + "\nThese are checked, stored and shown, but have no effect:\n\n" + without_effect()
    )  # fmt: skip
    parts.append(
        "\n## Servers\n\n"
        "With dots, in the [properties file](../how-to/serve.md#settings) of `eventbus serve`, next to the settings of "
        "its log.\n"
        + "\n" + "\n".join(map(line_of, server.ROWS)) + "\n"
    )  # fmt: skip
    return "".join(parts)


def test_the_page_is_the_table(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(render(), "utf-8")
    assert PAGE.read_text("utf-8") == render(), "`python -m pytest tests/test_settings.py --rewrite` writes it"


def test_every_row_has_a_sentence_and_takes_its_default() -> None:
    for row in (*table.TABLE, *topics.ROWS, *server.ROWS):
        assert row.doc.strip(), row.name
        assert row.is_passed or row.default is None or row.read(row.default) is not None, row.name


NAME = "hedge_ms"
AddRow = Callable[[Scope], Setting]
STRUCTS = {"log": (urls, "BrokerConfig"), "producer": (client_config, "ProducerConfig")}
STRUCTS["consumer"] = (client_config, "ConsumerConfig")


@pytest.fixture
def add_row(monkeypatch: pytest.MonkeyPatch) -> Iterator[AddRow]:
    """Adds a row to the table; and its field, to the struct that holds the values of its scope."""
    caches = (table.rows, table.known, options._options)

    def clear() -> None:
        for one in caches:
            one.cache_clear()

    def add(scope: Scope) -> Setting:
        row = Setting(scope, NAME, "int", 7, "How long to wait before a second request.", 1, 9_000, importance="medium")
        monkeypatch.setattr(table, "TABLE", (*table.TABLE, row))
        clear()
        if scope in STRUCTS:
            module, name = STRUCTS[scope]
            base = getattr(module, name)
            field = (NAME, int, 7)
            monkeypatch.setattr(
                module, name, msgspec.defstruct(name, [field], bases=(base,), frozen=True, kw_only=True)
            )
        return row

    yield add
    monkeypatch.undo()
    clear()


@pytest.mark.parametrize("scope", ["log", "producer", "consumer", "librdkafka"])
def test_a_row_is_all_that_a_setting_needs(scope: Scope, add_row: AddRow, tmp_path: Path) -> None:
    add_row(scope)
    keyword: dict[str, Any] = {NAME: "5s"}
    bus = EventBus("memory://", **keyword)
    assert {row.setting: row.source for row in rows_of(bus.context.configuration)}[NAME] == "keyword"
    settings = bus.context.configuration.settings
    value = {**settings.log, **settings.producers, **settings.consumers}
    assert str(value.get(NAME, value.get("hedge.ms"))) == "5000"
    said, unknown = read_environment({"EVENTBUS_HEDGE_MS": "5s"})
    assert (said[NAME].value, unknown) == (5_000, {})
    for name, text in (
        ("a.toml", 'hedge_ms = "5s"\n'),
        ("b.toml", "hedge.ms = 5000\n"),
        ("c.properties", "hedge.ms=5s\n"),
    ):
        (tmp_path / name).write_text(text)
        assert read_file(str(tmp_path / name), "x").settings[NAME].value == 5_000
    with pytest.raises(ConfigError, match=r"did you mean 'hedge_ms'"):
        configure({"url": "memory://", "hedg_ms": 5})
    if scope != "librdkafka":
        with pytest.raises(ConfigError, match=r"hedge_ms=0: a whole number of milliseconds from 1 to 9000"):
            configure({"url": "memory://", NAME: 0})
    assert scope == "librdkafka" or f"- `{NAME}=7`: How long" in render()


def test_a_row_of_the_log_is_part_of_its_url(add_row: AddRow) -> None:
    add_row("log")
    assert urls.broker_config(urls.split_url("file://./data?hedge.ms=5s")[2]).hedge_ms == 5_000  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.system  # needs the client for kafka://
@pytest.mark.parametrize("scope", ["producer", "consumer", "librdkafka"])
def test_a_row_of_clients_is_part_of_a_kafka_url(scope: Scope, add_row: AddRow) -> None:
    from eventbus.backends.kafka.settings import read_settings

    add_row(scope)
    found = read_settings("h", {"hedge.ms": "5s"})
    assert {**found.given, **found.producers, **found.consumers} in ({NAME: 5_000}, {"hedge.ms": "5000"})


async def test_a_row_of_topics_is_checked_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Setting("topic", "hedge.ms", "int", "7", "how long to wait", 1, 9_000, kafka="log.hedge.ms")
    monkeypatch.setitem(configs.CONFIG_KEYS, row.name, row)
    monkeypatch.setitem(configs._SETTABLE, row.name, row)
    bus = EventBus("memory://")
    bus.topic("orders", configs={"hedge.ms": 5})
    async with bus:
        (described,) = await bus.admin.describe_topics(["orders"])
        assert described.configs["hedge.ms"][:3] == ("5", "7", "topic")
    with pytest.raises(InvalidConfig, match=r"hedge\.ms='0': allowed is a whole number of milliseconds from 1 to 9000"):
        configs.normalise({"hedge.ms": 0})
    assert "- `hedge.ms=7` (`log.hedge.ms`): how long to wait (1 to 9000)\n" in render()


def test_a_row_of_servers_is_a_key_of_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Setting("server", NAME, "int", 7, "How long to wait before a second request.", 1, 9_000)
    monkeypatch.setitem(properties.KEYS, row.dotted, row)
    monkeypatch.setattr(server, "ROWS", (*server.ROWS, row))
    assert properties.settings_of({"hedge.ms": "5"}).server == {NAME: 5}
    with pytest.raises(ConfigError, match=r"hedge.ms='0': a whole number of milliseconds from 1 to 9000"):
        properties.settings_of({"hedge.ms": "0"})
    assert f"- `{NAME}=7`: How long to wait before a second request. (1 to 9000)\n" in render()


def test_a_row_of_handlers_is_an_option(add_row: AddRow, monkeypatch: pytest.MonkeyPatch) -> None:
    add_row("call")
    spec: Any = options.ConsumerSpec
    monkeypatch.setattr(
        options, "ConsumerSpec", msgspec.defstruct("Spec", [(NAME, int, 7)], bases=(spec,), frozen=True, kw_only=True)
    )
    found: Any = options.consumer_spec("orders", {"hedge.ms": "5s"})
    assert found.hedge_ms == 5_000
    assert options.tuned(found, {NAME: "6s"}, "[handlers.bill]").hedge_ms == 6_000  # pyright: ignore[reportAttributeAccessIssue]

"""Settings from the environment and from files: which source wins, and the errors for wrong ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus, log_url
from eventbus.backends.masking import is_secret_setting, shown_url
from eventbus.client.config import consumer_settings, producer_settings
from eventbus.client.configuration import resolution
from eventbus.client.configuration.display import rows_of
from eventbus.client.configuration.environment import read_environment
from eventbus.client.configuration.files import read_file, toml_lines
from eventbus.client.handling.options import consumer_spec
from eventbus.errors import ConfigError, InvalidRequiredAcks
from eventbus.settings.table import OF_A_BUS, rows

CANARY = "hunter2-canary"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither this machine's variables nor what other tests were warned of."""
    for name in resolution.os.environ:
        if name.startswith("EVENTBUS_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(resolution, "_warned", set())
    monkeypatch.chdir(tmp_path)


def written(path: str, text: str) -> str:
    Path(path).write_text(text, "utf-8")
    return path


def linger(bus: EventBus) -> Any:
    return bus.context.configuration.settings.producers.get("linger_ms")


def sources(bus: EventBus) -> dict[str, str]:
    return {row.setting: row.source for row in rows_of(bus.context.configuration)}


# which one wins ------------------------------------------------------------------------------------------------------


def test_a_keyword_goes_before_the_environment_and_that_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = written("bus.toml", "linger_ms = 1\nbatch_size = 10\nclient_id = 'of-file'\n")
    assert linger(EventBus("memory://")) is None
    assert linger(EventBus("memory://", config_file=file)) == 1
    monkeypatch.setenv("EVENTBUS_CONFIG", file)
    monkeypatch.setenv("EVENTBUS_LINGER_MS", "2")
    bus = EventBus("memory://")
    assert (linger(bus), bus.context.client_id) == (2, "of-file")
    said = sources(bus)
    assert said["linger_ms"] == "EVENTBUS_LINGER_MS" and said["batch_size"] == "bus.toml, line 2"
    assert said["url"] == "keyword" and said["max_block_ms"] == "default"
    keyword: dict[str, Any] = {"linger_ms": 3}
    bus = EventBus("memory://", client_id="own", **keyword)
    assert (linger(EventBus("memory://", linger_ms=3)), bus.context.client_id) == (3, "own")
    assert bus.context.configuration.settings.producers["linger_ms"] == 3
    assert sources(bus)["linger_ms"] == "keyword"


_OTHERS = {
    "url": "file://./elsewhere", "service": "other", "client_id": "other", "acks": "0", "compression_type": "lz4",
    "partitioner": "murmur3", "partition_assignment_strategy": "range", "fsync": "os",
    "session_timeout_ms": "44000",
}  # fmt: skip
"""Values of settings that are neither numbers nor true and false."""


@pytest.mark.parametrize(
    "name", sorted(name for name, one in rows(*OF_A_BUS).items() if isinstance(one.default, str | int))
)
def test_a_keyword_with_the_default_value_takes_precedence_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Precedence depends on what was given, not on what differs from a default."""
    default = rows(*OF_A_BUS)[name].default
    other = str(not default).lower() if isinstance(default, bool) else _OTHERS.get(name, "7")
    monkeypatch.setenv(f"EVENTBUS_{name.upper()}", other)
    of_the_bus = name in rows("bus")

    def value_of(**keywords: Any) -> Any:
        own, config = (keywords, {}) if of_the_bus else ({}, keywords)
        chosen = resolution.configure({**own, **config})
        parts = chosen.settings
        found = {**parts.log, **parts.producers, **parts.consumers}
        found |= {one: getattr(chosen, one) for one in rows("bus")}
        return found.get(name)

    outside = value_of()
    keyword = value_of(**{name: default})
    assert outside is not None and keyword != outside
    assert keyword == default


@pytest.mark.system  # needs the client for kafka://
def test_a_client_id_in_the_url_is_that_of_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_CLIENT_ID", "outside")
    url = "kafka://localhost:1?client.id=of-url"
    assert EventBus(url, service="shop").context.client_id == "of-url"
    assert EventBus(url, service="shop", client_id="eventbus").context.client_id == "eventbus"


def test_the_urls_own_query_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_FSYNC", "os")
    bus = EventBus("memory://?fsync=interval")
    assert "fsync" not in bus.context.configuration.settings.log and sources(bus)["fsync"] == "url"
    assert EventBus("memory://").context.configuration.settings.log["fsync"] == "os"


def test_several_names_of_one_setting_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_PARTITION_ASSIGNMENT_STRATEGY", "sticky")
    bus = EventBus("memory://", partition_assignment_strategy=["range"])
    assert bus.context.configuration.settings.consumers == {"partition_assignment_strategy": ["range"]}


def test_without_a_url_the_environment_and_the_file_say_which_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EventBus().url == log_url() == "file://./data"
    monkeypatch.setenv("EVENTBUS_CONFIG", written("bus.toml", 'url = "memory://of-file"\n'))
    assert EventBus().url == log_url("file://./data") == "memory://of-file"
    monkeypatch.setenv("EVENTBUS_URL", "memory://of-environment")
    assert EventBus().url == log_url("file://./data") == "memory://of-environment"
    assert EventBus("memory://own").url == "memory://own"


def test_no_file_is_read_that_nobody_named() -> None:
    written("eventbus.toml", "linger_ms = 9\n")
    written("pyproject.toml", "[tool.eventbus]\nlinger_ms = 9\n")
    assert linger(EventBus("memory://")) is None


def test_the_lifes_settings_come_from_outside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_SLOW_LOOP_MS", "none")
    monkeypatch.setenv("EVENTBUS_DRAIN_TIMEOUT_MS", "500")
    found = EventBus("memory://").context.configuration
    assert (found.slow_loop_ms, found.drain_timeout_ms, found.wedged_after_ms) == (None, 500, 60_000)


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_LINGER_MS", "")
    assert linger(EventBus("memory://")) is None


async def test_what_is_said_outside_reaches_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_MAX_REQUEST_SIZE", "1000")
    async with EventBus("memory://", auto_create_topics=True) as bus:
        with pytest.raises(Exception, match="max_request_size"):
            await bus.send("t", b"x" * 2_000)


# the environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("EVENTBUS_LINGER_MS", "abc", r"environment variable EVENTBUS_LINGER_MS='abc': a whole number"),
        ("EVENTBUS_LINGER_MS", "-1", r"EVENTBUS_LINGER_MS='-1': a whole number of milliseconds, at least 0"),
        ("EVENTBUS_ENABLE_IDEMPOTENCE", "perhaps", r"EVENTBUS_ENABLE_IDEMPOTENCE='perhaps': true or false"),
        ("EVENTBUS_FSYNC", "never", r"EVENTBUS_FSYNC='never': commit, interval or os"),
        ("EVENTBUS_NUM_PARTITIONS", "0", r"EVENTBUS_NUM_PARTITIONS='0': a whole number from 1 to 10000"),
        ("EVENTBUS_COMPRESSION_TYPE", "brotli", r"EVENTBUS_COMPRESSION_TYPE='brotli': .*none, gzip, snappy"),
        ("EVENTBUS_PARTITIONER", "murmur", r"EVENTBUS_PARTITIONER='murmur': unknown partitioner"),
        ("EVENTBUS_DELIVERY_TIMEOUT_MS", "5 s", r"EVENTBUS_DELIVERY_TIMEOUT_MS='5 s': a whole number"),
        (
            "EVENTBUS_SLOW_LOOP_MS",
            "0",
            r"SLOW_LOOP_MS='0': a whole number of milliseconds, at least 1, or none",
        ),
        (
            "EVENTBUS_SLOW_LOOP_MS",
            "x",
            r"SLOW_LOOP_MS='x': a whole number of milliseconds, at least 1, or none",
        ),
        ("EVENTBUS_LOG_DEFAULTS", "x", r"EVENTBUS_LOG_DEFAULTS='x': a table of keys and values"),
        (
            "EVENTBUS_SESSION_TIMEOUT_MS",
            "2000",
            r"must be below session_timeout_ms=2000.*\(session_timeout_ms is set in EVENTBUS_SESSION_TIMEOUT_MS\)",
        ),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=message):
        EventBus("memory://")


def test_acks_two_from_the_environment_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_ACKS", "2")
    with pytest.raises(InvalidRequiredAcks, match=r"EVENTBUS_ACKS='2': .*there is no quorum count"):
        EventBus("memory://")


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("EVENTBUS_LINGR_MS", "did you mean 'EVENTBUS_LINGER_MS'?"),
        ("EVENTBUS_CONFG", "did you mean 'EVENTBUS_CONFIG'?"),
        ("EVENTBUS_AUTO_COMMIT_OFFSET", "the key is enable_auto_commit"),
        ("EVENTBUS_TIMEOUT_MS", "gone since Kafka 0.9, the key is request_timeout_ms"),
        ("EVENTBUS_GROUP_ID", "the key is group: each consumer has its own"),
        ("EVENTBUS_TRANSACTIONAL_ID", "it belongs to one producer"),
        ("EVENTBUS_BOOTSTRAP_SERVERS", "EVENTBUS_URL=kafka://host:9092"),
        ("EVENTBUS_QQQQQQQQQQ", "eventbus config list shows what there is"),
    ],
)
def test_an_unknown_variable_is_warned_of_once(
    variable: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, CANARY)
    for _ in range(3):
        EventBus("memory://")
    (record,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert variable in record.getMessage() and told in record.getMessage()
    assert CANARY not in caplog.text


def test_variables_of_others_are_no_mistakes() -> None:
    """Kubernetes says these of a service that is called "eventbus"."""
    environ = dict.fromkeys(
        [
            "EVENTBUS_WORKER",  # of `eventbus run --workers`
            "EVENTBUS_SERVICE_HOST",
            "EVENTBUS_SERVICE_PORT",
            "EVENTBUS_SERVICE_PORT_HTTP",
            "EVENTBUS_PORT",
            "EVENTBUS_PORT_9092_TCP",
            "EVENTBUS_PORT_9092_TCP_ADDR",
            "EVENTBUS_KAFKA_HOME",
            "EVENTBUS_DATABASE",
            "EVENTBUS_REGISTRY_TOKEN",
            "EVENTBUS_SPARK_JARS",
            "EVENTBUS_TEST_CLIENTS",
        ],
        "x",
    )
    assert read_environment(environ) == ({}, {})


# secrets -------------------------------------------------------------------------------------------------------------


def test_a_secret_may_stand_in_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_SASL_PASSWORD_FILE", written("secret", f"{CANARY}\n"))
    bus = EventBus("memory://")
    assert bus.context.configuration.settings.log["sasl.password"] == CANARY
    assert sources(bus)["sasl_password"] == "EVENTBUS_SASL_PASSWORD_FILE"


def test_a_setting_whose_name_ends_in_file_is_itself() -> None:
    said, _ = read_environment({"EVENTBUS_SASL_OAUTHBEARER_ASSERTION_FILE": "/not/there"})
    assert said["sasl_oauthbearer_assertion_file"].value == "/not/there"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"EVENTBUS_SASL_PASSWORD_FILE='secret': there is no such file; it names the file that holds the value"),
        (b"", "the file is empty"),
        (b"\n", "the file is empty"),
        (b"\xff", "is not UTF-8 text"),
        (b"x" * 70_000, "more than 65,536 bytes"),
    ],
)
def test_a_secrets_file_that_is_none(content: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if content is not None:
        Path("secret").write_bytes(content)
    monkeypatch.setenv("EVENTBUS_SASL_PASSWORD_FILE", "secret")
    with pytest.raises(ConfigError, match=message):
        EventBus("memory://")


def test_a_secret_and_a_file_of_it_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_SASL_PASSWORD", "other")
    monkeypatch.setenv("EVENTBUS_SASL_PASSWORD_FILE", written("secret", CANARY))
    with pytest.raises(ConfigError, match="EVENTBUS_SASL_PASSWORD and EVENTBUS_SASL_PASSWORD_FILE set") as caught:
        EventBus("memory://")
    assert CANARY not in str(caught.value)


def test_secrets_are_shown_nowhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("EVENTBUS_SSL_KEY_PASSWORD", CANARY)
    keywords: dict[str, Any] = {"sasl_password": CANARY, "sasl_oauthbearer_client_secret": CANARY}
    bus = EventBus("memory://", config_file=written("bus.toml", f'ssl.keystore.password = "{CANARY}"\n'), **keywords)
    found = bus.context.configuration
    shown = [repr(bus), repr(found), repr(found.settings), repr(found.outside), repr(rows_of(found)), str(found)]
    assert all(CANARY not in text for text in shown) and CANARY not in caplog.text
    url = f"memory://me:{CANARY}@h?sasl.password={CANARY}&ssl_key_password={CANARY}&x=1"
    assert shown_url(url) == "memory://me:***@h?sasl.password=***&ssl_key_password=***&x=1"
    for odd in ("/", "#", "@", "/:"):
        assert CANARY not in shown_url(f"kafka://me:{odd}{CANARY}@h:9092") + shown_url(
            f"kafka://me:{CANARY}{odd}@h:9092"
        )
    for odd in ("&", "#", "@", " ", "?", "/"):
        assert CANARY not in shown_url(f"kafka://h:9092?sasl_password=x{odd}{CANARY}&acks=1")
    monkeypatch.setenv("EVENTBUS_SSL_KEY_PASSWORD", "")
    with pytest.raises(ConfigError) as caught:
        EventBus("memory://", sasl_password=CANARY, **{"sasl.password": "x"})
    assert CANARY not in str(caught.value)


@pytest.mark.system
@pytest.mark.parametrize("form", ["kafka://me:{}@h:9092", "kafka://me@x.org:{}@h?acks=1", "kafka://h?sasl_password={}"])
def test_a_password_that_should_have_been_encoded_is_shown_nowhere(form: str) -> None:
    for odd in ("?", "#", "/", "@", "%", "&", ":", " ", "?x=", ";", "\\", "1?"):
        for password in (odd + CANARY, CANARY + odd, CANARY + odd + CANARY):
            url = form.format(password)
            assert CANARY not in shown_url(url), url
            try:
                EventBus(url)
            except ConfigError as error:
                assert CANARY not in str(error), url
                assert "percent-encoded" in str(error) or odd == " ", url
            else:
                assert "sasl_password" in url, "that is where it may stand"


@pytest.mark.parametrize(
    "url",
    [
        "kafka://one:9092,two:9092?client_id=me@here", "kafka://host/?client_id=a@b&acks=1", "file:///a:b/c@d",
        "file://./a:b@c", "memory://shop", "kafka://host?bootstrap=a#b",
    ],
)  # fmt: skip
def test_what_is_no_password_is_shown(url: str) -> None:
    assert shown_url(url) == url


def test_errors_and_settings_of_clients_show_no_secrets() -> None:
    for url in (f"kafka://me:{CANARY}@h:9092", f"kafk://me:{CANARY}@h?sasl.password={CANARY}"):
        with pytest.raises(ConfigError) as caught:
            EventBus(url)
        assert CANARY not in str(caught.value)
    told = repr(producer_settings({"sasl.password": CANARY})) + repr(consumer_settings({"ssl_key_pem": CANARY}))
    assert "'sasl.password': '***'" in told and "'ssl.key.pem': '***'" in told and CANARY not in told


def test_which_settings_are_secret() -> None:
    secret = "sasl.password SASL_PASSWORD ssl-key-password ssl.key.pem ssl.keystore.key sasl.jaas.config access_token"
    assert all(map(is_secret_setting, secret.split()))
    assert not any(map(is_secret_setting, ("sasl.username", "ssl.ca.location", "linger_ms", "ssl.key.location")))


# files ---------------------------------------------------------------------------------------------------------------

TOML = """\
# of the service
url = "memory://"
linger_ms = 5
batch.size = 1000
"session.timeout.ms" = 10_000
sasl.mechanism = "PLAIN"

[log_defaults]
retention.ms = 1000
"cleanup.policy" = "compact"

[ssl]
ca.location = "/ca.pem"

[handlers.bill]
concurrency = 8
"""


def test_a_toml_file() -> None:
    found = read_file(written("eventbus.toml", TOML), "x")
    assert {key: (one.value, one.source.place) for key, one in found.settings.items()} == {
        "url": ("memory://", "eventbus.toml, line 2"),
        "linger_ms": (5, "eventbus.toml, line 3"),
        "batch_size": (1000, "eventbus.toml, line 4"),
        "session_timeout_ms": (10_000, "eventbus.toml, line 5"),
        "sasl_mechanism": ("PLAIN", "eventbus.toml, line 6"),
        "log_defaults": ({"retention.ms": 1000, "cleanup.policy": "compact"}, "eventbus.toml, line 8"),
        "ssl_ca_location": ("/ca.pem", "eventbus.toml, line 13"),
    }
    assert found.handlers["bill"]["concurrency"].value == 8


def test_a_table_of_a_pyproject_file() -> None:
    found = read_file(written("pyproject.toml", '[project]\nname = "x"\n[tool.eventbus]\nacks = "all"\n'), "x")
    assert found.settings["acks"].source.place == "pyproject.toml, line 4"
    with pytest.raises(ConfigError, match=r"pyproject.toml has no table \[tool.eventbus\]"):
        read_file(written("pyproject.toml", "[project]\n"), "x")


def test_a_properties_file_of_a_java_client(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "# as Kafka's clients have it\nbootstrap.servers=one:9092, two:9092\nlinger.ms = 5\n"
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=org.Login required username="me" \\\n  password="hunter2-canary";\n'
        "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\nhandlers.bill.concurrency=8\n"
    )
    found = read_file(written("client.properties", text), "x")
    assert found.settings["url"].value == "kafka://one:9092,two:9092"
    assert (found.settings["linger_ms"].value, found.settings["linger_ms"].source.place) == (
        5,
        "client.properties, line 3",
    )
    password = found.settings["sasl_password"]
    assert (password.value, password.source.place) == (CANARY, "client.properties, line 6")
    assert found.settings["ssl_ca_location"].value == "/ca.pem"
    assert found.handlers["bill"]["concurrency"].value == "8"
    assert CANARY not in repr(found)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("b.toml", "linger_ms = \n", r"b.toml is not TOML: .*line 1"),
        ("b.toml", "x = 1\nlingr_ms = 5\n", r"b.toml, line 1: unknown setting 'x'"),
        ("b.toml", "\nlingr_ms = 5\n", r"b.toml, line 2: unknown setting 'lingr_ms'; did you mean 'linger_ms'\?"),
        ("b.toml", 'linger_ms = "abc"\n', r"b.toml, line 1: linger_ms='abc': a whole number"),
        ("b.toml", "linger_ms = true\n", r"b.toml, line 1: linger_ms=True: a whole number"),
        ("b.toml", "delivery_timeout_ms = true\n", r"line 1: delivery_timeout_ms=True: a whole number"),
        ("b.toml", "[producers]\nlinger = 5\n", r"b.toml, line 2: unknown table \[producers\]"),
        ("b.toml", "[handler.bill]\nconcurrency = 5\n", r"unknown table \[handler\]; did you mean 'handlers'\?"),
        (
            "b.toml",
            "[log_default]\nretention.ms = 5\n",
            r"unknown table \[log_default\]; did you mean 'log_defaults'\?",
        ),
        ("b.toml", "[handlers]\nbill = 5\n", r"a handler has a table of options, \[handlers.NAME\]"),
        ("b.toml", 'linger_ms = 5\n"linger.ms" = 6\n', r"line 1 and b.toml, line 2 set linger_ms to different values"),
        (
            "b.toml",
            'group_id = "g"\n',
            r"line 1: group_id is not a setting of a bus: the key is group: each",
        ),
        (
            "b.toml",
            "auto.commit.offset = false\n",
            r"auto.commit.offset is not a setting of a bus: the key is enable_auto",
        ),
        ("b.toml", 'sasl.password_file = "none"\n', r"line 1: sasl_password_path='none': there is no such file"),
        ("b.properties", "linger.ms=5\nlinger.ms=6\n", r"b.properties, line 1 and line 2 set linger.ms to different"),
        (
            "b.properties",
            "linger.ms=5\nlinger_ms=6\n",
            r"b.properties, line 2: 'linger_ms' .* Write linger.ms",
        ),
        ("b.properties", "x=\\u12\n", r"b.properties is no properties file: "),
        (
            "b.properties",
            "key.serializer=x\n",
            r"key.serializer is not a setting of a bus: a type has a serde",
        ),
        ("b.properties", "ssl.truststore.location=/x.jks\n", r"b.properties: ssl.truststore.location: a JKS store"),
        ("b.yaml", "", r"the name of a settings file ends in .toml or .properties"),
    ],
)
def test_wrong_files_are_named_with_the_line(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EventBus("memory://", config_file=written(name, text))


def test_files_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config_file='no.toml': there is no such file in /"):
        EventBus("memory://", config_file="no.toml")
    monkeypatch.setenv("EVENTBUS_CONFIG", "no.toml")
    with pytest.raises(ConfigError, match=r"environment variable EVENTBUS_CONFIG='no.toml': there is no such file"):
        EventBus("memory://")
    (tmp_path / "dir.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    for name, message in (("dir", "Is a directory"), ("bytes", "is not UTF-8"), ("large", "more than 1,048,576 bytes")):
        with pytest.raises(ConfigError, match=message):
            EventBus("memory://", config_file=f"{name}.toml")
    with pytest.raises(ConfigError, match="config_file=''"):
        EventBus("memory://", config_file="")


def test_a_handlers_name_may_have_dots() -> None:
    found = read_file(written("b.toml", '[handlers."shop.bill"]\nfetch.min.bytes = 8\n'), "x")
    said = found.handlers["shop.bill"]["fetch_min_bytes"]
    assert (said.value, said.source.place) == (8, "b.toml, line 2")
    with pytest.raises(ConfigError, match=r"line 2 and b.toml, line 3 set fetch_min_bytes to different"):
        read_file(written("b.toml", "[handlers.bill]\nfetch.min.bytes = 8\nfetch_min_bytes = 9\n"), "x")


def test_lines_are_found_past_texts_of_several_lines() -> None:
    assert toml_lines('a = """\n[x]\nb = 1\n"""\nc = 2\n[t.u]\n"d.e" = 3') == {
        ("a",): 1,
        ("c",): 5,
        ("t", "u"): 6,
        ("t", "u", "d.e"): 7,
    }


# handlers ------------------------------------------------------------------------------------------------------------


def with_handler(file: str, **options: Any) -> EventBus:
    bus = EventBus("memory://", config_file=file)
    bus.topic("orders", partitions=2)

    @bus.consumer("orders", group="g", **options)
    async def bill(order: str) -> None: ...

    return bus


async def test_a_table_of_a_handler_goes_before_its_decorator() -> None:
    text = "[handlers.bill]\nconcurrency = 8\ntimeout = 1.5\nfetch.min.bytes = 7\nsession_timeout_ms = 9000\n"
    bus = with_handler(written("bus.toml", text), concurrency=2)
    async with bus:
        (runner,) = bus.context.runners
        spec = runner.handler.spec
        assert (spec.concurrency, spec.timeout, spec.session_timeout_ms) == (8, 1.5, 9000)
        assert spec.client == {"fetch_min_bytes": 7}
    (declared,) = bus.context.handlers
    assert declared.spec.concurrency == 2  # another bus may have it too


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("concurrency = 0", r"b.toml, line 2: \[handlers.bill\]: concurrency=0: a whole number from 1 to"),
        ("concurrency = 'x'", r"\[handlers.bill\]: concurrency='x': a whole number from 1 to"),
        ("concurency = 1", r"concurency: no option of a handler; did you mean 'concurrency'"),
        ("order = 'key'", r"order: it defines the handler, and is set in the program"),
        ("exactly_once = true", r"exactly_once: it defines the handler, and is set in the program"),
        ("timeout = -1", r"timeout=-1.*more than 0 seconds"),
        ("session_timeout_ms = 2000", r"\[handlers.bill\]: .*must be below session_timeout_ms=2000"),
        ("fetch_min_bytes = 'x'", r"\[handlers.bill\]: fetch_min_bytes='x': a whole number of bytes"),
    ],
)
def test_wrong_options_of_a_handler_are_named(line: str, message: str) -> None:
    bus = with_handler(written("b.toml", f"[handlers.bill]\n{line}\n"))
    with pytest.raises(ConfigError, match=message):
        bus.context.handlers_in_force()


def test_a_table_that_contradicts_the_decorator_is_refused() -> None:
    file = written("b.toml", "[handlers.bill]\ncommit_every = 5\n")
    with pytest.raises(ConfigError, match=r"b.toml, line 2: \[handlers.bill\]: commit_every and exactly_once=True"):
        with_handler(file, exactly_once=True).context.handlers_in_force()
    file = written("b.toml", "[handlers.bill]\nconcurrency = 1\n")
    with pytest.raises(ConfigError, match="has no room for two"):
        with_handler(file, order="key", concurrency=4).context.handlers_in_force()


def test_a_table_of_a_handler_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """It may be another service's, unless the name looks like a slip."""
    with_handler(written("b.toml", "[handlers.reports]\nconcurrency = 5\n")).context.handlers_in_force()
    assert caplog.text == ""
    with_handler(written("b.toml", "[handlers.bil]\nconcurrency = 5\n")).context.handlers_in_force()
    assert "the bus has no handler 'bil'; did you mean 'bill'?" in caplog.text


# Kafka's names in decorators -----------------------------------------------------------------------------------------


def test_kafkas_dotted_names_are_options_of_handlers_in_a_file() -> None:
    kafka: dict[str, Any] = {
        "group.id": "g",
        "auto.offset.reset": "latest",
        "isolation.level": "read_uncommitted",
        "partition.assignment.strategy": "range, sticky",
        "group.instance.id": "a",
        "session.timeout.ms": 9_000,
        "max.poll.interval.ms": 60_000,
        "fetch.min.bytes": 7,
        "client.rack": "r",
    }

    spec = consumer_spec("t", kafka)
    assert (spec.group, spec.start, spec.isolation_level.name) == ("g", "latest", "READ_UNCOMMITTED")
    assert (spec.partition_assignment_strategy, spec.group_instance_id) == (("range", "sticky"), "a")
    assert (spec.session_timeout_ms, spec.max_poll_interval_ms) == (9_000, 60_000)
    assert spec.client == {"fetch_min_bytes": 7, "client_rack": "r"}
    with pytest.raises(ConfigError, match=r"group is given twice, as 'a' and as 'group.id': 'b'"):
        consumer_spec("t", {"group": "a", "group.id": "b"})
    with pytest.raises(ConfigError, match=r"fetch_min_bytes is given twice, as 1 and as 'fetch.min.bytes': 2"):
        consumer_spec("t", {"fetch_min_bytes": 1, "fetch.min.bytes": 2})
    for key in ("enable.auto.commit", "max.poll.records"):
        with pytest.raises(ConfigError, match=r"offsets are committed as records finish|for a handler it is batch=N"):
            consumer_spec("t", {key: 1})


def test_kafkas_dotted_names_are_settings_of_producers_and_topics() -> None:
    bus = EventBus("memory://")
    bus.topic("t", configs={"retention.ms": 1000})
    with pytest.raises(ConfigError, match=r"did you mean 'linger.ms'"):
        bus.producer("t", **{"lingr.ms": 5})

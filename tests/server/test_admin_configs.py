"""Configs over the wire: of topics, of the broker, of its loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from eventbus.broker.configs import CONFIG_KEYS
from eventbus.protocol import messages as m
from eventbus.testing.server import KafkaServer
from tests.server.test_admin import create, on_server, topic
from tests.server.wire import WireClient

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
TOPIC_CONFIG, STATIC, DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
INVALID_TOPIC, UNKNOWN_TOPIC, INVALID_CONFIG, INVALID_REQUEST = 17, 3, 40, 42

Resource = m.DescribeConfigsRequest.DescribeConfigsResource
Change = m.IncrementalAlterConfigsRequest.AlterableConfig


async def describe(
    client: WireClient, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **more: Any
) -> Any:
    resource = Resource(resource_type=kind, resource_name=name, configuration_keys=keys)
    [result] = (await client.call(m.DescribeConfigsRequest(resources=[resource], **more), version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def values(client: WireClient, kind: int, name: str) -> dict[str, str | None]:
    return {one.name: one.value for one in (await describe(client, kind, name)).configs}


async def alter(client: WireClient, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> Any:
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[Change(name=key, config_operation=change, value=value) for key, change, value in changes],
    )
    request = m.IncrementalAlterConfigsRequest(resources=[resource], **more)
    [result] = (await client.call(request, 1)).responses
    return result


# describe -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_tells_every_config_where_it_comes_from_and_its_type(version: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        kind = m.CreateTopicsRequest.CreatableTopicConfig
        await create(client, topic("orders", configs=[kind(name="retention.ms", value="60000")]))
        result = await describe(client, TOPIC, "orders", version=version, include_synonyms=True)
        assert (result.error_code, result.error_message) == (0, None)
        assert {one.name for one in result.configs} == set(CONFIG_KEYS)
        told = {one.name: one for one in result.configs}
        assert not any(one.read_only or one.is_sensitive for one in result.configs)
        own, ours, kafkas = told["retention.ms"], told["segment.bytes"], told["cleanup.policy"]
        assert [one.config_source for one in (own, ours, kafkas)] == [TOPIC_CONFIG, STATIC, DEFAULT]
        assert [(one.name, one.value, one.source) for one in own.synonyms] == [
            ("retention.ms", "60000", TOPIC_CONFIG),
            ("log.retention.ms", "604800000", DEFAULT),
        ]
        assert [(one.name, one.value, one.source) for one in ours.synonyms] == [
            ("log.segment.bytes", "2097152", STATIC),
            ("log.segment.bytes", "1073741824", DEFAULT),
        ]
        if version >= 3:
            assert [one.config_type for one in (own, kafkas)] == [5, 7]
            assert {one.documentation for one in result.configs} == {None}

    on_server(test, lambda: KafkaServer(log_defaults={"segment.bytes": 2_097_152}))


def test_some_keys_synonyms_and_documentation_come_when_asked_for() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("orders"))
        result = await describe(client, TOPIC, "orders", ["preallocate", "nothing"], include_documentation=True)
        [one] = result.configs
        assert (one.name, one.value, one.synonyms) == ("preallocate", "false", [])
        assert "stored only" in one.documentation

    on_server(test)


def test_the_broker_tells_what_its_users_look_for() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        result = await describe(client, BROKER, "1", include_synonyms=True)
        told = {one.name: one for one in result.configs}
        address = f"PLAINTEXT://{server.bootstrap}"
        expected = {
            "advertised.listeners": (address, STATIC),
            "listeners": (address, STATIC),
            "node.id": ("1", STATIC),
            "num.partitions": ("2", STATIC),
            "auto.create.topics.enable": ("true", DEFAULT),
            "log.retention.ms": ("60000", STATIC),
            "log.retention.hours": ("0", STATIC),
            "log.retention.bytes": ("-1", DEFAULT),
            "log.segment.bytes": ("1073741824", DEFAULT),
            "log.cleanup.policy": ("delete", DEFAULT),
            "message.max.bytes": ("1048588", DEFAULT),
            "default.replication.factor": ("1", DEFAULT),
            "min.insync.replicas": ("1", DEFAULT),
            "offsets.retention.minutes": ("10080", DEFAULT),
            "group.min.session.timeout.ms": ("10", STATIC),
            "transaction.max.timeout.ms": ("900000", DEFAULT),
            "log.dirs": (server.url, STATIC),
            "log.flush.interval.messages": ("1", STATIC),
            "sasl.enabled.mechanisms": ("", STATIC),
            "log.retention.minutes": (None, DEFAULT),
            "authorizer.class.name": ("", DEFAULT),
            "group.consumer.session.timeout.ms": ("45000", DEFAULT),
        }
        assert {name: (told[name].value, told[name].config_source) for name in expected} == expected
        assert all(one.read_only for one in result.configs)
        names = [one.name for one in result.configs]
        assert names == sorted(set(names))
        assert [(one.value, one.source) for one in told["num.partitions"].synonyms] == [("2", STATIC), ("1", DEFAULT)]

    on_server(test, lambda: KafkaServer(num_partitions=2, log_defaults={"retention.ms": 60_000}))


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", UNKNOWN_TOPIC),
        (TOPIC, "no/slash", INVALID_TOPIC),
        (BROKER, "7", INVALID_REQUEST),
        (LOGGER, "7", INVALID_REQUEST),
        (99, "x", INVALID_REQUEST),
    ],
)
def test_what_is_not_there_is_told(kind: int, name: str, code: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        result = await describe(client, kind, name)
        assert result.error_code == code and result.error_message

    on_server(test)


def test_resources_without_configs_have_none() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        for kind, name in ((BROKER, ""), (METRICS, "m")):
            result = await describe(client, kind, name)
            assert (result.error_code, result.configs) == (0, [])

    on_server(test)


def test_a_group_tells_what_its_members_go_by() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        assert await values(client, GROUP, "g") == {
            "consumer.heartbeat.interval.ms": "5000",
            "consumer.session.timeout.ms": "60000",
        }

    on_server(test, lambda: KafkaServer(group_consumer_session_timeout_ms=60_000))


def test_the_resources_are_listed() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))

        async def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
            response = await client.call(m.ListConfigResourcesRequest(resource_types=list(kinds)), version)
            assert response.error_code == 0
            return [(one.resource_type, one.resource_name) for one in response.config_resources]

        assert await listed(1) == [(TOPIC, "a"), (BROKER, "1"), (LOGGER, "1")]
        assert await listed(1, TOPIC) == [(TOPIC, "a")]
        assert await listed(0) == []
        response = await client.call(m.ListConfigResourcesRequest(resource_types=[99]), 1)
        assert response.error_code == 35

    on_server(test)


# alter ----------------------------------------------------------------------------------------------------------------


def test_set_delete_append_and_subtract() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))

        async def after(*changes: tuple[str, int, str | None]) -> dict[str, str | None]:
            result = await alter(client, TOPIC, "a", *changes)
            assert (result.error_code, result.error_message) == (0, None)
            return await values(client, TOPIC, "a")

        assert (await after(("retention.ms", SET, "5")))["retention.ms"] == "5"
        now = await after(("cleanup.policy", APPEND, "compact"), ("segment.ms", SET, "7"))
        assert (now["cleanup.policy"], now["segment.ms"], now["retention.ms"]) == ("delete,compact", "7", "5")
        assert (await after(("cleanup.policy", APPEND, "compact")))["cleanup.policy"] == "delete,compact"
        now = await after(("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
        assert (now["cleanup.policy"], now["retention.ms"]) == ("compact", "604800000")
        await after(("flush.ms", DELETE, None), ("no.such.key", DELETE, None))  # what is not set: no error, as in Kafka
        assert server.node.broker.topic_admin.topics["a"].configs == {"cleanup.policy": "compact", "segment.ms": "7"}

    on_server(test)


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ([("retention.msec", SET, "1")], INVALID_CONFIG, "retention.ms"),
        ([("retention.ms", SET, "soon")], INVALID_CONFIG, "soon"),
        ([("retention.ms", SET, None)], INVALID_REQUEST, "no value"),
        ([("retention.ms", APPEND, "1")], INVALID_CONFIG, "no list"),
        ([("retention.ms", 9, "1")], INVALID_REQUEST, "9"),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], INVALID_REQUEST, "twice"),
        ([("segment.ms", SET, "1"), ("retention.ms", SET, "soon")], INVALID_CONFIG, "soon"),
    ],
)
def test_a_wrong_change_changes_nothing(changes: list[tuple[str, int, str | None]], code: int, told: str) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))
        result = await alter(client, TOPIC, "a", *changes)
        assert result.error_code == code and told in result.error_message
        assert server.node.broker.topic_admin.topics["a"].configs == {}

    on_server(test)


def test_validate_only_changes_nothing() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))
        assert (await alter(client, TOPIC, "a", ("retention.ms", SET, "5"), validate_only=True)).error_code == 0
        assert (await alter(client, TOPIC, "a", ("x", SET, "5"), validate_only=True)).error_code == INVALID_CONFIG
        assert server.node.broker.topic_admin.topics["a"].configs == {}

    on_server(test)


@pytest.mark.parametrize("version", range(3))
def test_the_alter_configs_of_old_unsets_what_it_does_not_name(version: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))
        await alter(client, TOPIC, "a", ("retention.ms", SET, "5"), ("segment.ms", SET, "7"))
        resource = m.AlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name="a",
            configs=[m.AlterConfigsRequest.AlterableConfig(name="segment.ms", value="8")],
        )
        for only_checked, left in ((True, {"retention.ms": "5", "segment.ms": "7"}), (False, {"segment.ms": "8"})):
            request = m.AlterConfigsRequest(resources=[resource], validate_only=only_checked)
            [result] = (await client.call(request, version)).responses
            assert (result.error_code, result.resource_name) == (0, "a")
            assert server.node.broker.topic_admin.topics["a"].configs == left

    on_server(test)


def test_the_brokers_own_configs_are_set_at_its_start() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        for name in ("1", ""):
            result = await alter(client, BROKER, name, ("log.retention.ms", SET, "5"))
            assert result.error_code == INVALID_REQUEST and "at its start" in result.error_message
            unset = await alter(client, BROKER, name, ("leader.replication.throttled.rate", DELETE, None))
            assert unset.error_code == 0
        assert (await alter(client, GROUP, "g", ("x", SET, "5"))).error_code == INVALID_REQUEST

    on_server(test)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    one = logging.getLogger("eventbus.of-this-test")
    yield one
    one.setLevel(logging.NOTSET)


def test_loggers_have_levels_that_can_be_set(logger: logging.Logger) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        assert {"root", "eventbus.server", logger.name} <= (await values(client, LOGGER, "1")).keys()
        for word, level in (("DEBUG", logging.DEBUG), ("ERROR", logging.ERROR)):
            assert (await alter(client, LOGGER, "1", (logger.name, SET, word))).error_code == 0
            assert logger.level == level
            assert (await values(client, LOGGER, "1"))[logger.name] == word
        assert (await alter(client, LOGGER, "1", (logger.name, DELETE, None))).error_code == 0
        assert logger.level == logging.NOTSET
        assert (await alter(client, LOGGER, "1", ("nobody", SET, "INFO"))).error_code == INVALID_CONFIG
        assert (await alter(client, LOGGER, "1", (logger.name, SET, "LOUD"))).error_code == INVALID_CONFIG
        assert logger.level == logging.NOTSET

    on_server(test)

"""Client quotas and SCRAM users over the wire, kept over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus.coordinator.credentials import ScramMechanism, salt_password
from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.testing import KafkaServer
from tests.server.test_sasl import SASL, scram
from tests.server.wire import WireClient

UNSUPPORTED_VERSION, INVALID_REQUEST = 35, 42
UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL = 33, 91, 92, 93
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512

Parts = list[tuple[str, str | None]]


async def alter(
    client: WireClient, *entries: tuple[Parts, dict[str, float | None]], validate_only: bool = False
) -> list[int]:
    request = m.AlterClientQuotasRequest(
        entries=[
            m.AlterClientQuotasRequest.EntryData(
                entity=[
                    m.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in parts
                ],
                ops=[
                    m.AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for parts, values in entries
        ],
        validate_only=validate_only,
    )
    answer = await client.call(request, 1)
    for (parts, _), entry in zip(entries, answer.entries, strict=True):
        assert [(part.entity_type, part.entity_name) for part in entry.entity] == parts
        assert (entry.error_code == 0) == (entry.error_message is None)
    return [entry.error_code for entry in answer.entries]


async def describe(
    client: WireClient, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]] | int:
    request = m.DescribeClientQuotasRequest(
        components=[
            m.DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=how, match=name)
            for kind, how, name in components
        ],
        strict=strict,
    )
    answer = await client.call(request, version)
    if answer.error_code:
        assert answer.entries is None
        return answer.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


ALICE = (("user", "alice"),)
BOTH = (("client-id", "c"), ("user", "alice"))
DEFAULT_USER = (("user", None),)


async def test_quotas_are_set_told_and_taken_away() -> None:
    async with KafkaServer() as running, WireClient(running) as client:
        rates: dict[str, float | None] = {"producer_byte_rate": 1_000.0, "request_percentage": 0.5}
        assert await alter(
            client,
            ([("user", "alice")], rates),
            ([("user", "alice"), ("client-id", "c")], {"consumer_byte_rate": 2_000.0}),
            ([("user", None)], {"producer_byte_rate": 3_000.0}),
        ) == [0, 0, 0]
        for version in (0, 1):
            assert await describe(client, version=version) == {
                ALICE: rates,
                BOTH: {"consumer_byte_rate": 2_000.0},
                DEFAULT_USER: {"producer_byte_rate": 3_000.0},
            }
        assert await describe(client, ("user", EXACT, "alice"), strict=True) == {ALICE: rates}
        assert await describe(client, ("user", DEFAULT, None)) == {DEFAULT_USER: {"producer_byte_rate": 3_000.0}}
        assert await describe(client, ("client-id", SPECIFIED, None)) == {BOTH: {"consumer_byte_rate": 2_000.0}}
        assert await alter(client, ([("user", "alice")], {"producer_byte_rate": None})) == [0]
        assert await describe(client, ("user", EXACT, "alice"), strict=True) == {ALICE: {"request_percentage": 0.5}}
        assert await alter(client, ([("user", "alice")], {"request_percentage": None})) == [0]
        assert await describe(client, ("user", EXACT, "alice"), strict=True) == {}


async def test_an_alteration_is_stored_as_a_whole_or_not() -> None:
    async with KafkaServer() as running, WireClient(running) as client:
        assert await alter(
            client,
            ([("user", "alice")], {"producer_byte_rate": 1.0, "no_such": 1.0}),
            ([("user", "bob")], {"producer_byte_rate": 1.0}),
            ([("ip", "10.0.0.1")], {"connection_creation_rate": 5.0}),
            ([("topic", "t")], {"producer_byte_rate": 1.0}),
        ) == [INVALID_REQUEST, 0, 0, INVALID_REQUEST]
        assert await describe(client) == {
            (("ip", "10.0.0.1"),): {"connection_creation_rate": 5.0},
            (("user", "bob"),): {"producer_byte_rate": 1.0},
        }


async def test_a_look_ahead_changes_nothing() -> None:
    async with KafkaServer() as running, WireClient(running) as client:
        entry: tuple[Parts, dict[str, float | None]] = ([("user", "alice")], {"producer_byte_rate": 1.0})
        assert await alter(client, entry, validate_only=True) == [0]
        assert await describe(client) == {}


async def test_filters_that_mean_nothing() -> None:
    async with KafkaServer() as running, WireClient(running) as client:
        for components in (
            [("", EXACT, "t")],
            [("user", EXACT, None)],
            [("user", DEFAULT, "alice")],
            [("user", 9, None)],
            [("user", EXACT, "a"), ("user", EXACT, "b")],
            [("ip", EXACT, "10.0.0.1"), ("user", EXACT, "b")],
        ):
            assert await describe(client, *components) == INVALID_REQUEST, components
        assert await describe(client, ("topic", EXACT, "t")) == UNSUPPORTED_VERSION


# SCRAM users ---------------------------------------------------------------------------------------------------------


def upsertion(
    user: str, password: str = "secret", mechanism: int = SHA_256, iterations: int = 4_096, salt: bytes = b"salt"
) -> m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    known = ScramMechanism(mechanism) if mechanism in (1, 2) else SHA_256
    return m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salt_password(known, password, salt, max(iterations, 1)),
    )


def deletion(user: str, mechanism: int = SHA_256) -> m.AlterUserScramCredentialsRequest.ScramCredentialDeletion:
    return m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=mechanism)


async def alter_users(
    client: WireClient,
    upsertions: list[m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion],
    deletions: list[m.AlterUserScramCredentialsRequest.ScramCredentialDeletion] | None = None,
) -> dict[str, int]:
    request = m.AlterUserScramCredentialsRequest(deletions=deletions or [], upsertions=upsertions)
    answer = await client.call(request, 0)
    return {result.user: result.error_code for result in answer.results}


async def users(client: WireClient, *names: str) -> dict[str, int | dict[int, int]]:
    asked = [m.DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
    answer = await client.call(m.DescribeUserScramCredentialsRequest(users=asked or None), 0)
    return {
        result.user: result.error_code or {info.mechanism: info.iterations for info in result.credential_infos}
        for result in answer.results
    }


@pytest.mark.system
async def test_a_user_that_is_added_can_log_in_and_one_that_is_removed_cannot(tmp_path: Path) -> None:
    url, config = f"file://{tmp_path / 'log'}", ServerConfig(listeners=(Listener(port=0), SASL))
    async with KafkaServer(url, config) as running, WireClient(running) as admin:
        assert await alter_users(admin, [upsertion("carol"), upsertion("carol", mechanism=SHA_512)]) == {"carol": 0}
        async with WireClient(running, listener=1) as client:
            assert (await scram(client, SHA_256, "carol", "secret")).error_code == 0
    async with KafkaServer(url, config) as running, WireClient(running) as admin:
        running.node.broker.check()
        assert await users(admin) == {"carol": {SHA_256: 4_096, SHA_512: 4_096}}
        async with WireClient(running, listener=1) as client:
            assert (await scram(client, SHA_512, "carol", "secret")).error_code == 0
        assert await alter_users(admin, [upsertion("carol", "other", iterations=8_192)]) == {"carol": 0}
        async with WireClient(running, listener=1) as client:
            assert (await scram(client, SHA_256, "carol", "other")).error_code == 0
        assert await alter_users(admin, [], [deletion("carol")]) == {"carol": 0}
        async with WireClient(running, listener=1) as client:
            assert (await scram(client, SHA_256, "carol", "other")).error_code == 58
        assert await users(admin) == {"carol": {SHA_512: 4_096}}


async def test_credentials_that_break_kafkas_rules() -> None:
    async with KafkaServer() as running, WireClient(running) as admin:
        assert await alter_users(
            admin,
            [
                upsertion("few", iterations=4_095),
                upsertion("many", iterations=16_385),
                upsertion("nosalt", salt=b""),
                upsertion(""),
                upsertion("strange", mechanism=7),
                upsertion("twice"),
                upsertion("twice"),
                upsertion("fine"),
            ],
            [deletion("nobody")],
        ) == {
            "few": UNACCEPTABLE_CREDENTIAL,
            "many": UNACCEPTABLE_CREDENTIAL,
            "nosalt": UNACCEPTABLE_CREDENTIAL,
            "": UNACCEPTABLE_CREDENTIAL,
            "strange": UNSUPPORTED_SASL_MECHANISM,
            "twice": DUPLICATE_RESOURCE,
            "fine": 0,
            "nobody": RESOURCE_NOT_FOUND,
        }
        assert await users(admin) == {"fine": {SHA_256: 4_096}}
        assert await users(admin, "fine", "nobody") == {"fine": {SHA_256: 4_096}, "nobody": RESOURCE_NOT_FOUND}
        assert await users(admin, "fine", "fine") == {"fine": DUPLICATE_RESOURCE}

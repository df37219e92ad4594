"""ApiVersions: what is told of the versions served, and that old clients can live with it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from eventbus.protocol import API_KEYS, decode
from eventbus.protocol import messages as m
from eventbus.testing import KafkaServer
from tests.server.wire import WireClient

API_VERSIONS = 18
INVALID_REQUEST, UNSUPPORTED_VERSION = 42, 35
RANGES = {
    "Produce": (0, 0, 12), "Fetch": (1, 4, 18), "ListOffsets": (2, 1, 11), "Metadata": (3, 0, 13),
    "OffsetCommit": (8, 2, 10), "OffsetFetch": (9, 1, 10), "FindCoordinator": (10, 0, 6), "JoinGroup": (11, 0, 9),
    "Heartbeat": (12, 0, 4), "LeaveGroup": (13, 0, 5), "SyncGroup": (14, 0, 5), "DescribeGroups": (15, 0, 6),
    "ListGroups": (16, 0, 5), "SaslHandshake": (17, 1, 1), "ApiVersions": (18, 0, 4), "CreateTopics": (19, 2, 7),
    "DeleteTopics": (20, 1, 6), "DeleteRecords": (21, 0, 2), "InitProducerId": (22, 0, 5),
    "OffsetForLeaderEpoch": (23, 2, 4), "AddPartitionsToTxn": (24, 0, 3), "AddOffsetsToTxn": (25, 0, 4),
    "EndTxn": (26, 0, 5), "WriteTxnMarkers": (27, 1, 1), "TxnOffsetCommit": (28, 0, 5), "DescribeAcls": (29, 1, 3),
    "CreateAcls": (30, 1, 3), "DeleteAcls": (31, 1, 3), "DescribeConfigs": (32, 1, 4), "AlterConfigs": (33, 0, 2),
    "AlterReplicaLogDirs": (34, 1, 2), "DescribeLogDirs": (35, 1, 5), "SaslAuthenticate": (36, 0, 2),
    "CreatePartitions": (37, 0, 3), "DeleteGroups": (42, 0, 2), "ElectLeaders": (43, 0, 2),
    "IncrementalAlterConfigs": (44, 0, 1), "AlterPartitionReassignments": (45, 0, 1),
    "ListPartitionReassignments": (46, 0, 0), "OffsetDelete": (47, 0, 0), "DescribeClientQuotas": (48, 0, 1),
    "AlterClientQuotas": (49, 0, 1), "DescribeUserScramCredentials": (50, 0, 0),
    "AlterUserScramCredentials": (51, 0, 0), "DescribeQuorum": (55, 0, 2), "UpdateFeatures": (57, 0, 2),
    "DescribeCluster": (60, 0, 2), "DescribeProducers": (61, 0, 0), "DescribeTransactions": (65, 0, 0),
    "ListTransactions": (66, 0, 1), "ConsumerGroupHeartbeat": (68, 0, 1), "ConsumerGroupDescribe": (69, 0, 1),
    "ListConfigResources": (74, 0, 1), "DescribeTopicPartitions": (75, 0, 0),
}  # fmt: skip
"""Key and versions told to clients; one change here is one that clients notice."""


@pytest_asyncio.fixture
async def client() -> AsyncIterator[WireClient]:
    async with KafkaServer() as server, WireClient(server) as client:
        yield client


async def ranges_told(client: WireClient, version: int) -> dict[int, tuple[int, int]]:
    request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    response = await client.call(request, version)
    assert response.error_code == 0
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


@pytest.mark.parametrize("version", range(5))
async def test_every_version_tells_the_ranges(client: WireClient, version: int) -> None:
    told = await ranges_told(client, version)
    assert told == {key: (low, high) for key, low, high in RANGES.values()}
    assert {key: API_KEYS[key].name for key in told} == {key: name for name, (key, *_) in RANGES.items()}


async def test_produce_is_told_from_version_0_or_old_librdkafka_sends_uncompressed_records(client: WireClient) -> None:
    """KAFKA-18659; and FindCoordinator from 0, or it sends lz4 uncompressed. Neither says a word."""
    told = await ranges_told(client, 3)
    assert told[0][0] == 0 and told[10][0] == 0


async def test_the_versions_of_clients_that_do_not_negotiate_are_served(client: WireClient) -> None:
    """KafkaJS sends its own highest version whatever the least is; librdkafka 2.0 and aiokafka need old ones."""
    told = await ranges_told(client, 0)
    for key, needed in {0: (3, 7), 1: (4, 11), 2: (1, 3), 3: (0, 6)}.items():
        assert told[key][0] <= needed[0] and told[key][1] >= needed[1]


@pytest.mark.parametrize(("key", "version"), [(3, 4), (3, 9), (3, 10), (1, 4), (2, 1), (10, 0)])
async def test_a_client_may_ask_without_having_asked_for_versions(client: WireClient, key: int, version: int) -> None:
    """Sarama sends Metadata v9 or v10 first, before it knows any range."""
    name = next(name for name, (number, *_) in RANGES.items() if number == key)
    await client.call(getattr(m, f"{name}Request")(), version)


async def test_telemetry_is_not_told_or_librdkafka_logs_a_line_for_each_client(client: WireClient) -> None:
    assert not {71, 72} & set(await ranges_told(client, 3))


async def test_idempotent_producers_find_what_they_need(client: WireClient) -> None:
    """Without InitProducerId librdkafka fails for good, and Java aborts."""
    assert 22 in await ranges_told(client, 3)


@pytest.mark.parametrize("version", [3, 4])
async def test_transactions_v2_are_announced_with_the_requests_that_they_need(client: WireClient, version: int) -> None:
    request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    response = await client.call(request, version)
    (feature,) = response.finalized_features
    assert (feature.name, feature.min_version_level, feature.max_version_level) == ("transaction.version", 2, 2)
    assert response.finalized_features_epoch >= 0, "clients ignore the features of an epoch below 0"
    supported = [(one.name, one.min_version, one.max_version) for one in response.supported_features]
    assert supported == ([("transaction.version", 0, 2)] if version >= 4 else []), "KAFKA-17011"
    highest = {api.api_key: api.max_version for api in response.api_keys}
    assert (highest[0], highest[26], highest[28]) == (12, 5, 5), "Produce, EndTxn, TxnOffsetCommit"


@pytest.mark.parametrize("version", [5, 77, 32_767])
async def test_an_unknown_version_is_answered_in_version_0_with_our_own_range(client: WireClient, version: int) -> None:
    """Closing the connection instead locks out librdkafka, kafka-python and Java."""
    client.send_raw(struct.pack(">hhih1sx", API_VERSIONS, version, 7, 1, b"x") + b"what a later version may say")
    frame = await client.receive_raw()
    assert frame[:4] == (7).to_bytes(4, "big"), "the header is that of version 0: no tagged fields"
    response = decode(m.ApiVersionsResponse, 0, frame[4:])
    assert response.error_code == UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [(API_VERSIONS, 0, 4)]
    assert await ranges_told(client, 0), "and the connection goes on"


@pytest.mark.parametrize("version", [3, 4])
async def test_the_answers_header_is_that_of_version_0_also_in_flexible_versions(
    client: WireClient, version: int
) -> None:
    request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    client.send(request, version)
    frame = await client.receive_raw()
    assert not decode(m.ApiVersionsResponse, version, frame[4:]).error_code


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("x", ""), ("-x", "1"), ("x y", "1"), ("x", "1."), ("x\0", "1"), ("é", "1")]
)
async def test_software_names_are_checked(client: WireClient, name: str, version: str) -> None:
    request = m.ApiVersionsRequest(client_software_name=name, client_software_version=version)
    for asked in (3, 4):
        response = await client.call(request, asked)
        assert response.error_code == INVALID_REQUEST
    assert (await client.call(request, 2)).error_code == 0, "it was not sent in version 2"

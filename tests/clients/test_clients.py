"""Unmodified clients of other people, each feature with each client that has it. Their drivers say what they saw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from eventbus.testing import KafkaServer
from tests.clients.conftest import Server
from tests.clients.fleet import CLIENTS, FEATURES, Client, play
from tests.clients.stored import stored_codecs
from tests.clients.tools import KafkaTools

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

Play = Callable[..., dict[str, Any]]
Create = Callable[..., str]


LIBRDKAFKA, JAVA = "librdkafka 2.16", "4.3"
ELSEWHERE = ("compression", "cooperative-sticky", "static", "consumer", "transactions")
"""Proved in ``make test`` with librdkafka: in test_kcat.py, and in test_wire_*.py of tests/server."""
SYSTEM_TIER = {
    "produce": {client.version for client in CLIENTS} - {"3.9"},
    "idempotent": {LIBRDKAFKA},
    "read_committed": {LIBRDKAFKA},
    "secure": {LIBRDKAFKA},
    **{feature: set() for feature in ELSEWHERE},
}
"""The versions of the clients that prove a feature in ``make test``: the Java client, unless named here.

Every client produces and consumes there; the other pairs are in the slow tier.
"""


def those_with(feature: str) -> list[Any]:
    """Return the clients that have a feature, with the feature: parameters of a test that proves it."""
    chosen = SYSTEM_TIER.get(feature, {JAVA})
    return [
        pytest.param(
            client,
            feature,
            id=f"{feature}-{client.name}-{client.version}",
            marks=() if client.version in chosen else pytest.mark.slow,
        )
        for client in CLIENTS
        if feature in client.features
    ]


@pytest.fixture
def run(
    client: Client, served: Server, kafka_tools: Callable[[str], KafkaTools], request: pytest.FixtureRequest
) -> Play:
    """``run(scenario, **arguments)`` -> what the client's driver saw."""
    modules: Path | None = request.getfixturevalue("node_modules") if client.is_node else None

    def run(scenario: str, **arguments: Any) -> dict[str, Any]:
        return play(client, scenario, {"bootstrap": served.bootstrap, **arguments}, kafka_tools, modules)

    return run


@pytest.mark.parametrize(("client", "feature"), [*those_with("produce"), *those_with("idempotent")])
def test_what_is_produced_is_consumed_once_and_in_order(
    client: Client, feature: str, run: Play, name: str, create: Create
) -> None:
    check_records(run(feature, topic=create(name, 3), count=100))


@pytest.mark.parametrize(("client", "feature"), those_with("secure"))
def test_a_secured_server_lets_in_who_knows_the_password(
    client: Client, feature: str, run: Play, secured: dict[str, str], name: str
) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": secured["bootstrap"],
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": secured["mechanism"],
            "sasl.username": secured["username"],
            "sasl.password": secured["password"],
            "ssl.ca.location": secured["ca"],
        }
    )
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(20)
    security = {key: secured[key] for key in ("mechanism", "username", "password", "ca")}
    check_records(run("idempotent", bootstrap=secured["bootstrap"], security=security, topic=name, count=100))


def check_records(seen: dict[str, Any]) -> None:
    assert seen["failed"] == []
    records = seen["records"]
    assert sorted((key, value, headers) for _, _, key, value, headers in records) == sorted(
        (f"k{i}", f"v{i}", {"n": str(i)}) for i in range(100)
    )
    for partition in range(3):
        of_it = [record for record in records if record[0] == partition]
        assert [record[1] for record in of_it] == list(range(len(of_it))), "offsets without gap"
        numbers = [int(record[3][1:]) for record in of_it]
        assert numbers == sorted(numbers), "the producer's order"
        assert of_it, "every partition has its share"


@pytest.mark.parametrize(("client", "feature"), those_with("compression"))
def test_batches_are_kept_as_they_were_compressed(
    client: Client, feature: str, run: Play, served: Server, name: str, create: Create
) -> None:
    """A client that believes the server too old for a codec sends without it, silently."""
    topics = {codec: create(f"{name}-{codec}") for codec in client.codecs}
    seen = run(feature, topic=name, count=20, codecs=list(client.codecs))
    assert seen["failed"] == []
    assert seen["counts"] == dict.fromkeys(client.codecs, 20)
    for codec, topic in topics.items():
        assert stored_codecs(served.logs / f"{topic}-0") == {codec}


@pytest.mark.parametrize(("client", "feature"), those_with("transactions"))
def test_a_transaction_takes_its_offsets_along(
    client: Client, feature: str, run: Play, name: str, create: Create, fill: Callable[..., None]
) -> None:
    source, target = create(f"{name}-source"), create(f"{name}-target")
    values = [f"v{i}" for i in range(10)]
    fill(source, *values)
    seen = run(feature, source=source, target=target, group=name)
    assert seen["committed"] == values
    assert seen["all"] == 15, "the five aborted records are in the log"
    assert seen["offset"] == 10


def test_the_java_client_continues_after_a_transaction_that_timed_out(
    kafka_tools: Callable[[str], KafkaTools], name: str
) -> None:
    """Transactions V2 (KIP-890) allow it. Without them, the abort raises a fatal ProducerFencedException."""
    client = next(one for one in CLIENTS if (one.name, one.version) == ("Java client", JAVA))
    with KafkaServer(transaction_abort_timed_out_transaction_cleanup_interval_ms=10) as server:
        seen = play(client, "timeout", {"bootstrap": server.bootstrap, "topic": name}, kafka_tools, None)
    assert seen == {"refusal": "InvalidProducerEpochException", "committed": ["again0", "again1"]}


@pytest.mark.parametrize(("client", "feature"), those_with("read_committed"))
def test_read_committed_sees_neither_aborted_nor_open_transactions(
    client: Client, feature: str, run: Play, served: Server, name: str, create: Create
) -> None:
    topic = create(name)
    writer = Producer({"bootstrap.servers": served.bootstrap, "transactional.id": name})
    writer.init_transactions(20)
    for end in (writer.abort_transaction, writer.commit_transaction, writer.abort_transaction):
        writer.begin_transaction()
        for i in range(5):
            writer.produce(topic, f"{end.__name__}{i}", "k")
        writer.flush(20)
        end(20)
    writer.begin_transaction()
    writer.produce(topic, "committed last", "k")
    writer.commit_transaction(20)
    writer.begin_transaction()
    writer.produce(topic, "open", "k")
    assert writer.flush(20) == 0
    seen = run(feature, topic=topic, count=6)
    assert seen["values"] == [*(f"commit_transaction{i}" for i in range(5)), "committed last"]
    writer.abort_transaction(20)


def check_group(seen: dict[str, Any]) -> None:
    assert seen["failed"] == []
    assert sorted(len(share) for share in seen["shares"]) == [2, 2]
    assert sorted(partition for share in seen["shares"] for partition in share) == [0, 1, 2, 3]
    assert seen["seen"] == sorted(f"v{i}" for i in range(40)), "every record once"


@pytest.mark.parametrize(("client", "feature"), those_with("group"))
def test_a_group_shares_its_partitions(client: Client, feature: str, run: Play, name: str, create: Create) -> None:
    seen = run(feature, topic=create(name, 4), group=name, strategy=client.strategy)
    check_group(seen)
    assert seen["moved"] >= 4 and seen["moved"] % 4 == 0, "an eager rebalance takes everything away first"


@pytest.mark.parametrize(("client", "feature"), those_with("cooperative-sticky"))
def test_a_cooperative_group_moves_what_must_move(
    client: Client, feature: str, run: Play, name: str, create: Create
) -> None:
    seen = run("group", topic=create(name, 4), group=name, strategy=feature)
    check_group(seen)
    assert seen["moved"] == 2


@pytest.mark.parametrize(("client", "feature"), those_with("static"))
def test_a_static_member_comes_back_to_its_partitions(
    client: Client, feature: str, run: Play, name: str, create: Create
) -> None:
    seen = run(feature, topic=create(name, 4), group=name)
    assert seen == {"same": True, "rebalances": 0}


@pytest.mark.parametrize(("client", "feature"), those_with("consumer"))
def test_the_server_assigns_in_the_new_protocol(
    client: Client, feature: str, run: Play, name: str, create: Create
) -> None:
    seen = run("group", topic=create(name, 4), group=name, strategy=feature)
    check_group(seen)
    assert seen["moved"] == 2


@pytest.mark.parametrize(("client", "feature"), those_with("admin"))
def test_administration(client: Client, feature: str, run: Play, name: str) -> None:
    assert run(feature, topic=name) == {
        "created": "1000000",
        "changed": "2000000",
        "start": 4,
        "listed": True,
        "committed": 7,
        "gone": True,
    }


def test_every_feature_is_proved_by_somebody() -> None:
    assert all(any(feature in client.features for client in CLIENTS) for feature in FEATURES)

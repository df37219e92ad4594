"""Every command of Kafka's own scripts that one node can answer, with the tools of Kafka 4 and of 3.9."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At

from tests.clients.conftest import Server
from tests.clients.jars import LATEST, OLD
from tests.clients.tools import Done, KafkaTools
from tests.tiers import quick

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

Create = Callable[..., str]
Fill = Callable[..., None]


class Script:
    """``run("kafka-topics", "--list")`` with the server's address; fails the test if the tool does."""

    def __init__(self, tools: KafkaTools, bootstrap: str) -> None:
        self.tools = tools
        self.bootstrap = bootstrap

    def __call__(self, tool: str, *arguments: str, stdin: str = "", code: int = 0) -> Done:
        where = ("--bootstrap-server", self.bootstrap)
        line = (*arguments, *where) if tool == "kafka-cluster" else (*where, *arguments)  # its command goes first
        done = self.tools.run(tool, *line, stdin=stdin)
        assert done.code == code, f"{tool} {' '.join(arguments)} ended with {done.code}: {done.text}"
        return done

    def until(self, right: Callable[[str], bool], tool: str, *arguments: str) -> str:
        """Again and again until it prints what is right: a real Kafka's brokers learn of changes a moment later."""
        for _ in range(50):
            out = self(tool, *arguments).out
            if right(out):
                return out
        raise AssertionError(f"{tool} {' '.join(arguments)} still prints {out}")


@pytest.fixture
def script(tools: KafkaTools, served: Server) -> Script:
    return Script(tools, served.bootstrap)


def commit(served: Server, group: str, topic: str, offset: int) -> None:
    """An empty group that stands at ``offset``."""
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": group})
    consumer.commit(offsets=[At(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_topics(script: Script, name: str) -> None:
    made = script("kafka-topics", "--create", "--topic", name, "--partitions", "3", "--replication-factor", "1",
                  "--config", "retention.ms=1000000")  # fmt: skip
    assert f"Created topic {name}." in made.out
    assert name in script("kafka-topics", "--list").out.splitlines()
    described = script("kafka-topics", "--describe", "--topic", name).out
    head = re.search(
        r"Topic: (\S+)\s+TopicId: (\S{22})\s+PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: (.*)", described
    )
    assert head and head[1] == name and "retention.ms=1000000" in head[3]
    rows = re.findall(r"Partition: (\d)\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)
    assert rows == ["0", "1", "2"]
    script("kafka-topics", "--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in script("kafka-topics", "--describe", "--topic", name).out
    script("kafka-topics", "--create", "--if-not-exists", "--topic", name)
    again = script("kafka-topics", "--create", "--topic", name, code=1)
    assert f"Topic '{name}' already exists" in again.text, "what scripts look for"
    fewer = script("kafka-topics", "--alter", "--topic", name, "--partitions", "2", code=1)
    assert "InvalidPartitionsException" in fewer.text
    for filtering in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert name not in script("kafka-topics", "--describe", filtering).out
    assert name in script("kafka-topics", "--describe", "--topics-with-overrides").out
    script("kafka-topics", "--delete", "--topic", name)
    assert name not in script("kafka-topics", "--list").out.splitlines()
    assert "does not exist" in script("kafka-topics", "--describe", "--topic", name, code=1).text
    script("kafka-topics", "--delete", "--if-exists", "--topic", name)


def test_a_factor_above_the_brokers_is_refused(script: Script, name: str) -> None:
    refused = script("kafka-topics", "--create", "--topic", name, "--replication-factor", "3", code=1)
    assert "replication factor" in refused.text.lower()
    assert "InvalidReplicationFactorException" in refused.text


def test_console_producer_and_consumer(script: Script, name: str, create: Create) -> None:
    topic = create(name)
    with_keys = ("--property", "parse.key=true", "--property", "key.separator=:", "--property", "parse.headers=true")
    script("kafka-console-producer", "--topic", topic, *with_keys, stdin="a:1\tk1:v1\na:2,b:3\tk2:v2\n")
    shown = ("--property", "print.key=true", "--property", "print.headers=true", "--property", "print.offset=true")
    read = script(
        "kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2", *shown,
        "--property", "print.partition=true",
    )  # fmt: skip
    assert [line for line in read.out.splitlines() if "deprecated" not in line] == [
        "Partition:0\tOffset:0\ta:1\tk1\tv1",
        "Partition:0\tOffset:1\ta:2,b:3\tk2\tv2",
    ]
    assert "Processed a total of 2 messages" in read.text
    one = script("kafka-console-consumer", "--topic", topic, "--partition", "0", "--offset", "1", "--max-messages", "1")
    assert one.out.splitlines() == ["v2"]


def test_the_console_producer_compresses_and_waits_for_all(script: Script, name: str, create: Create) -> None:
    topic = create(name)
    script("kafka-console-producer", "--topic", topic, "--compression-codec", "zstd", "--request-required-acks", "all",
           "--producer-property", "enable.idempotence=true", stdin="one\ntwo\n")  # fmt: skip
    read = script("kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2")
    assert read.out.splitlines() == ["one", "two"]


def test_the_console_consumer_in_a_group(script: Script, name: str, create: Create, fill: Fill) -> None:
    topic = create(name)
    fill(topic, "a", "b", "c")
    arguments = ("--topic", topic, "--group", name, "--from-beginning", "--timeout-ms", "20000")
    assert script("kafka-console-consumer", *arguments, "--max-messages", "2").out.splitlines() == ["a", "b"]
    assert script("kafka-console-consumer", *arguments, "--max-messages", "1").out.splitlines() == ["c"]


def test_the_console_consumer_reads_what_was_committed(
    script: Script, served: Server, name: str, create: Create
) -> None:
    topic = create(name)
    writer = Producer({"bootstrap.servers": served.bootstrap, "transactional.id": name})
    writer.init_transactions(20)
    for end in (writer.abort_transaction, writer.commit_transaction):
        writer.begin_transaction()
        writer.produce(topic, end.__name__)
        writer.flush(20)
        end(20)
    arguments = ("--topic", topic, "--from-beginning")
    everything = script("kafka-console-consumer", *arguments, "--max-messages", "2")
    assert everything.out.splitlines() == ["abort_transaction", "commit_transaction"]
    committed = script(
        "kafka-console-consumer", *arguments, "--max-messages", "1", "--isolation-level", "read_committed"
    )
    assert committed.out.splitlines() == ["commit_transaction"]


def test_get_offsets(script: Script, name: str, served: Server, create: Create) -> None:
    topic = create(name, 2)
    producer = Producer({"bootstrap.servers": served.bootstrap})
    for timestamp in (1_000, 2_000, 3_000):
        producer.produce(topic, "x", partition=1, timestamp=timestamp)
    assert producer.flush(20) == 0
    at = ("--topic", topic, "--time")
    assert script("kafka-get-offsets", "--topic", topic).out.split() == [f"{topic}:0:0", f"{topic}:1:3"]
    assert script("kafka-get-offsets", *at, "earliest").out.split() == [f"{topic}:0:0", f"{topic}:1:0"]
    assert f"{topic}:1:1" in script("kafka-get-offsets", *at, "1500").out.split()
    assert f"{topic}:1:2" in script("kafka-get-offsets", *at, "max-timestamp").out.split()
    assert f"{topic}:1:3" in script("kafka-get-offsets", "--topic-partitions", f"{topic}:1").out.split()


def test_consumer_groups_are_listed_and_described(
    script: Script, name: str, served: Server, create: Create, fill: Fill
) -> None:
    topic = create(name)
    fill(topic, *"abcde")
    commit(served, name, topic, 2)
    assert name in script("kafka-consumer-groups", "--list").out.splitlines()
    states = script("kafka-consumer-groups", "--list", "--state").out
    assert re.search(rf"^{name}\s.*Empty", states, re.M)
    described = script("kafka-consumer-groups", "--describe", "--group", name)
    assert re.search(rf"^{name}\s+{topic}\s+0\s+(-\s+)?2\s+5\s+3\s+-\s+-\s+-", described.out, re.M), described.out
    assert "has no active members" in described.text
    state = script("kafka-consumer-groups", "--describe", "--group", name, "--state").out
    assert re.search(rf"^{name}\s+127\.0\.0\.1:\d+\s+\(1\).*Empty\s+0", state, re.M), state
    script("kafka-consumer-groups", "--delete", "--group", name)
    assert name not in script("kafka-consumer-groups", "--list").out.splitlines()
    missing = script("kafka-consumer-groups", "--describe", "--group", f"{name}-missing")
    assert "does not exist" in missing.text or "GroupIdNotFound" in missing.text or "not found" in missing.text


def test_members_of_a_group_are_described(
    script: Script, name: str, served: Server, create: Create, fill: Fill
) -> None:
    topic = create(name, 2)
    fill(topic, "a")
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": name, "client.id": "me",
                         "auto.offset.reset": "earliest", "enable.auto.commit": False})  # fmt: skip
    consumer.subscribe([topic])
    assert (found := consumer.poll(20)) and not found.error()
    consumer.commit(asynchronous=False)
    members = script("kafka-consumer-groups", "--describe", "--group", name, "--members", "--verbose").out
    assert re.search(rf"^{name}\s+me-\S+\s+/127\.0\.0\.1\s+me\s.*\b2\b.*\(?\b0,\s*1\b", members, re.M), members
    offsets = script("kafka-consumer-groups", "--describe", "--group", name).out
    assert re.search(rf"^{name}\s+{topic}\s+0\s+(-\s+)?1\s+1\s+0\s+me-\S+\s+/127\.0\.0\.1\s+me", offsets, re.M), offsets
    active = script("kafka-consumer-groups", "--reset-offsets", "--group", name, "--topic", topic, "--to-earliest",
                    "--execute")  # fmt: skip
    assert "inactive" in active.text, "the offsets of a group at work are not reset"
    consumer.close()


RESETS = [
    (["--to-latest"], 10),
    (["--shift-by", "-3"], 1),
    (["--to-datetime", "YESTERDAY"], 5),
    (["--from-file", "FILE"], 6),
]
"""In ``make test``: one that asks for the end, one that counts, one that asks for a time, and a plan."""


@pytest.mark.parametrize(
    ("strategy", "offset"),
    quick(
        [
            (["--to-earliest"], 0),
            (["--to-latest"], 10),
            (["--to-current"], 4),
            (["--to-offset", "7"], 7),
            (["--shift-by", "-3"], 1),
            (["--shift-by", "3"], 7),
            (["--shift-by", "100"], 10),
            (["--by-duration", "P1D"], 5),
            (["--to-datetime", "YESTERDAY"], 5),
            (["--from-file", "FILE"], 6),
        ],
        RESETS,
    ),
    ids=lambda value: "".join(value) if isinstance(value, list) else "",
)
def test_reset_offsets(
    script: Script, name: str, served: Server, create: Create, tmp_path: Path, strategy: list[str], offset: int
) -> None:
    topic = create(name)
    now = datetime.now(UTC)
    producer = Producer({"bootstrap.servers": served.bootstrap})
    for number in range(10):
        at = now - timedelta(days=2 if number < 5 else 0)
        producer.produce(topic, str(number), timestamp=int(at.timestamp() * 1000))
    assert producer.flush(20) == 0
    commit(served, name, topic, 4)
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,6\n")
    yesterday = (now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S.000")
    flags = [{"FILE": str(plan), "YESTERDAY": yesterday}.get(flag, flag) for flag in strategy]
    topics = [] if "--from-file" in flags else ["--topic", topic]
    told = script("kafka-consumer-groups", "--reset-offsets", "--group", name, *topics, *flags, "--dry-run").out
    assert re.search(rf"\b{name}\s+{topic}\s+0\s+{offset}\s", told), told
    done = script("kafka-consumer-groups", "--reset-offsets", "--group", name, *topics, *flags, "--execute").out
    assert re.search(rf"\b{name}\s+{topic}\s+0\s+{offset}\s", done), done
    described = script("kafka-consumer-groups", "--describe", "--group", name).out
    assert re.search(rf"^{name}\s+{topic}\s+0\s+(-\s+)?{offset}\s+10\s", described, re.M), described


def test_offsets_of_a_group_are_exported_and_deleted(
    script: Script, name: str, served: Server, create: Create, fill: Fill
) -> None:
    topic = create(name)
    fill(topic, *"abc")
    commit(served, name, topic, 2)
    plan = script("kafka-consumer-groups", "--reset-offsets", "--group", name, "--topic", topic, "--to-current",
                  "--dry-run", "--export").out  # fmt: skip
    assert [line.replace('"', "") for line in plan.splitlines() if topic in line] == [f"{topic},0,2"]
    deleted = script("kafka-consumer-groups", "--delete-offsets", "--group", name, "--topic", topic).out
    assert re.search(rf"{topic}\s+0\s+Successful", deleted), deleted


def test_configs_of_a_topic(script: Script, name: str, create: Create) -> None:
    topic = create(name)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    script("kafka-configs", *of_topic, "--alter", "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    described = script("kafka-configs", *of_topic, "--describe").out
    assert "retention.ms=5000" in described and "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=5000" in described
    script("kafka-configs", *of_topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in script("kafka-configs", *of_topic, "--describe").out
    everything = script("kafka-configs", *of_topic, "--describe", "--all").out
    assert "DEFAULT_CONFIG:log.segment.bytes=1073741824" in everything and "retention.ms=604800000" in everything
    unknown = script("kafka-configs", *of_topic, "--alter", "--add-config", "nonsense=1", code=1)
    assert "Unknown topic config name" in unknown.text or "InvalidConfigurationException" in unknown.text


def test_configs_of_the_broker(script: Script) -> None:
    everything = script("kafka-configs", "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all").out
    for key in (
        "num.partitions=1",
        "auto.create.topics.enable=true",
        "message.max.bytes=1048588",
        "advertised.listeners=",
    ):
        assert key in everything, key


def test_quotas_and_scram_users(script: Script, name: str) -> None:
    of_client = ("--entity-type", "clients", "--entity-name", name)
    script("kafka-configs", *of_client, "--alter", "--add-config", "producer_byte_rate=1048576")
    script.until(lambda told: "producer_byte_rate=1048576" in told, "kafka-configs", *of_client, "--describe")
    script("kafka-configs", *of_client, "--alter", "--delete-config", "producer_byte_rate")
    script.until(lambda told: "producer_byte_rate" not in told, "kafka-configs", *of_client, "--describe")
    of_user = ("--entity-type", "users", "--entity-name", name)
    script("kafka-configs", *of_user, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    described = script.until(
        lambda told: "SCRAM-SHA-256=iterations=4096" in told, "kafka-configs", *of_user, "--describe"
    )
    assert "secret" not in described
    script("kafka-configs", *of_user, "--alter", "--delete-config", "SCRAM-SHA-256")
    script.until(lambda told: "SCRAM" not in told, "kafka-configs", *of_user, "--describe")


def test_acls_without_an_authorizer(script: Script, name: str) -> None:
    refused = script("kafka-acls", "--list", code=1)
    assert "SecurityDisabledException" in refused.text or "No Authorizer is configured" in refused.text


def test_producer_and_consumer_perf_test(tools: KafkaTools, served: Server, name: str, create: Create) -> None:
    topic = create(name)
    sent = tools.run(
        "kafka-producer-perf-test", "--topic", topic, "--num-records", "5000", "--record-size", "100", "--throughput",
        "-1", "--producer-props", f"bootstrap.servers={served.bootstrap}", "acks=all", "--print-metrics",
    )  # fmt: skip
    assert sent.code == 0, sent.text
    assert re.search(r"5000 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), .*99.9th", sent.out), sent.out
    assert "producer-metrics:record-send-total" in sent.out
    read = tools.run(
        "kafka-consumer-perf-test", "--bootstrap-server", served.bootstrap, "--topic", topic, "--messages", "5000",
        "--timeout", "20000",
    )  # fmt: skip
    assert read.code == 0, read.text
    head, figures = (line.split(", ") for line in read.out.splitlines()[-2:])
    assert dict(zip(head, figures, strict=True))["data.consumed.in.nMsg"] == "5000", read.out


def test_delete_records(script: Script, name: str, create: Create, fill: Fill, tmp_path: Path) -> None:
    topic = create(name)
    fill(topic, *"abcdef")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
    told = script("kafka-delete-records", "--offset-json-file", str(plan)).out
    assert f"partition: {topic}-0\tlow_watermark: 4" in told
    assert script("kafka-get-offsets", "--topic", topic, "--time", "earliest").out.strip() == f"{topic}:0:4"


def test_transactions(script: Script, name: str, served: Server, create: Create) -> None:
    topic = create(name)
    writer = Producer({"bootstrap.servers": served.bootstrap, "transactional.id": name})
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(topic, "x")
    assert writer.flush(20) == 0
    listed = script("kafka-transactions", "list").out
    assert re.search(rf"^{name}\s+\d+\s+\d+\s+Ongoing", listed, re.M), listed
    described = script("kafka-transactions", "describe", "--transactional-id", name).out
    assert re.search(rf"^1\s+{name}\s+\d+\s+0\s+Ongoing\s.*{topic}-0", described, re.M), described
    producers = script("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0").out
    producer_id = re.search(r"^(\d+)\s+0\s+", producers, re.M)
    assert producer_id, producers
    hanging = script("kafka-transactions", "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "15")
    assert topic not in hanging.out
    script("kafka-transactions", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    after = script("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0").out
    assert re.search(rf"^{producer_id[1]}\s+0\s+\S+\s+\d+\s+\d+\s+None", after, re.M), after


def test_log_dirs(script: Script, name: str, create: Create, fill: Fill) -> None:
    topic = create(name, 2)
    fill(topic, "abc")
    told = script("kafka-log-dirs", "--describe", "--topic-list", topic).out
    (broker,) = json.loads(told.splitlines()[-1])["brokers"]
    assert broker["broker"] == 1
    (folder,) = broker["logDirs"]
    assert folder["error"] is None
    sizes = {each["partition"]: each["size"] for each in folder["partitions"]}
    assert sorted(sizes) == [f"{topic}-0", f"{topic}-1"] and sizes[f"{topic}-0"] > 61


def test_cluster(script: Script) -> None:
    assert re.fullmatch(r"Cluster ID: \S{22}", script("kafka-cluster", "cluster-id").out.strip())


def test_broker_api_versions(script: Script) -> None:
    told = script("kafka-broker-api-versions").out
    assert re.search(r"127\.0\.0\.1:\d+ \(id: 1 rack: null", told)
    assert re.search(r"Produce\(0\): 0 to \d+", told), "from 0, or old librdkafka sends uncompressed"


def test_features(script: Script) -> None:
    """Clients choose transactions V2 by this feature."""
    told = script("kafka-features", "describe").out
    assert re.search(r"transaction\.version.*SupportedMaxVersion: 2.*FinalizedVersionLevel: 2", told), told


def test_metadata_quorum(script: Script) -> None:
    told = script("kafka-metadata-quorum", "describe", "--status").out
    assert re.search(r"LeaderId:\s+1\b", told), told


def test_leader_election_is_not_needed(script: Script, name: str, create: Create) -> None:
    topic = create(name)
    told = script("kafka-leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "Valid replica already elected" in told.text


def test_reassignment_to_where_it_is(script: Script, name: str, create: Create, tmp_path: Path) -> None:
    topic = create(name)
    assert "No partition reassignments found" in script("kafka-reassign-partitions", "--list").out
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1], "log_dirs": ["any"]}]}
        )
    )
    script("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
    told = script("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--verify").out
    assert f"Reassignment of partition {topic}-0 is complete" in told or "is completed" in told, told


def test_verifiable_producer_and_consumer(
    kafka_tools: Callable[[str], KafkaTools], served: Server, name: str, create: Create
) -> None:
    tools, topic = kafka_tools(LATEST), create(name)
    where = ("--bootstrap-server", served.bootstrap, "--topic", topic, "--max-messages", "50")
    sent = tools.run_alone("kafka-verifiable-producer", *where)
    events = [json.loads(line) for line in sent.out.splitlines() if line.startswith("{")]
    assert [event["name"] for event in events].count("producer_send_success") == 50, sent.text
    read = tools.run_alone("kafka-verifiable-consumer", *where, "--group-id", name, "--session-timeout", "10000")
    events = [json.loads(line) for line in read.out.splitlines() if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 50, read.text
    assert any(event["name"] == "offsets_committed" and event["success"] for event in events), read.text


def test_groups(script: Script, name: str, served: Server, create: Create) -> None:
    if script.tools.version == OLD:
        pytest.skip("kafka-groups came with Kafka 4")
    commit(served, name, create(name), 0)
    listed = script("kafka-groups", "--list").out
    assert re.search(rf"^{name}\s+Classic", listed, re.M), listed

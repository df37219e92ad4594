"""Kafka's JSON message schemas as the text tables of ``eventbus/protocol/tables``.

    python tests/protocol/schemas.py DIRECTORY [--rewrite]

DIRECTORY holds the jars of one Kafka version (clients, group-coordinator, transaction-coordinator, metadata). Without
``--rewrite`` it says whether the tables are what the jars hold. The schemas are Apache Kafka's (Apache License 2.0).
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from eventbus import protocol

TABLES = Path(protocol.__file__).parent / "tables"
VERSION = "4.3.1"
"""Of Kafka: what the tables were made from."""

JARS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator", "kafka-metadata")

APIS = {
    "clients": """ApiVersions Metadata Produce Fetch ListOffsets OffsetForLeaderEpoch DeleteRecords InitProducerId
        AddPartitionsToTxn AddOffsetsToTxn TxnOffsetCommit EndTxn WriteTxnMarkers DescribeProducers
        DescribeTransactions ListTransactions""",
    "groups": """FindCoordinator JoinGroup SyncGroup Heartbeat LeaveGroup OffsetCommit OffsetFetch OffsetDelete
        DescribeGroups ListGroups DeleteGroups ConsumerGroupHeartbeat ConsumerGroupDescribe""",
    "admin": """CreateTopics DeleteTopics CreatePartitions DescribeConfigs AlterConfigs IncrementalAlterConfigs
        ListConfigResources DescribeCluster DescribeTopicPartitions DescribeLogDirs AlterReplicaLogDirs
        AlterPartitionReassignments ListPartitionReassignments ElectLeaders DescribeQuorum UpdateFeatures""",
    "security": """SaslHandshake SaslAuthenticate DescribeAcls CreateAcls DeleteAcls DescribeClientQuotas
        AlterClientQuotas DescribeUserScramCredentials AlterUserScramCredentials""",
}
LOG = """ConsumerProtocolSubscription ConsumerProtocolAssignment EndTxnMarker
    OffsetCommitKey OffsetCommitValue GroupMetadataKey GroupMetadataValue TransactionLogKey TransactionLogValue
    ConsumerGroupMetadataKey ConsumerGroupMetadataValue ConsumerGroupPartitionMetadataKey
    ConsumerGroupPartitionMetadataValue ConsumerGroupMemberMetadataKey ConsumerGroupMemberMetadataValue
    ConsumerGroupTargetAssignmentMetadataKey ConsumerGroupTargetAssignmentMetadataValue
    ConsumerGroupTargetAssignmentMemberKey ConsumerGroupTargetAssignmentMemberValue
    ConsumerGroupCurrentMemberAssignmentKey ConsumerGroupCurrentMemberAssignmentValue
    ConsumerGroupRegularExpressionKey ConsumerGroupRegularExpressionValue
    UserScramCredentialRecord RemoveUserScramCredentialRecord AccessControlEntryRecord RemoveAccessControlEntryRecord
    ClientQuotaRecord"""

STICKY = """
StickyAssignorUserData -1 0-1 -
  previous_assignment []TopicAssignment 0+
    topic string 0+
    partitions []int32 0+
  generation int32 1+ =-1
"""
"""Written out in Java (``StickyAssignor``), in no JSON file."""

_HEAD = """# {what}
# Derived from the message schemas of Apache Kafka {version} (Apache License 2.0).
# How to read it: eventbus/protocol/schema.py.
"""
_TITLES = {
    "clients": "What producers and consumers send, and transactions.",
    "groups": "Groups and their offsets.",
    "admin": "Topics, configs, the cluster.",
    "security": "Authentication, ACLs, quotas, credentials.",
    "log": "Records of Kafka's own topics, and what consumers tell each other through their coordinator.",
}


def snake(name: str) -> str:
    """``ThrottleTimeMs`` -> ``throttle_time_ms``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def load(jars: Path) -> dict[str, dict[str, Any]]:
    """Every schema in the jars, by name."""
    schemas: dict[str, dict[str, Any]] = {}
    for jar in JARS:
        with zipfile.ZipFile(jars / f"{jar}-{VERSION}.jar") as archive:
            for name in archive.namelist():
                if name.startswith("common/") and name.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                    schema = json.loads(text)
                    schemas[schema["name"]] = schema
    return schemas


def tables(schemas: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The text of every table, by its name."""
    made: dict[str, str] = {}
    for table, title in _TITLES.items():
        names = (
            [api + end for api in APIS[table].split() for end in ("Request", "Response")]
            if table in APIS
            else LOG.split()
        )
        head = _HEAD.format(what=title, version=VERSION)
        made[table] = "\n".join([head, *("\n".join(_message(schemas[name])) + "\n" for name in names)])
    made["log"] += STICKY
    return made


def _message(schema: dict[str, Any]) -> list[str]:
    flexible = schema["flexibleVersions"].replace("none", "-")
    lines = [f"{schema['name']} {schema.get('apiKey', -1)} {schema['validVersions']} {flexible}"]
    lines += _fields(schema["fields"], "  ")
    for structure in schema.get("commonStructs", []):
        lines += [f"  *{structure['name']}", *_fields(structure["fields"], "    ")]
    return lines


def _fields(fields: list[dict[str, Any]], indent: str) -> list[str]:
    lines: list[str] = []
    for field in fields:
        words = [snake(field["name"]), field["type"], field.get("versions") or field["taggedVersions"]]
        if "nullableVersions" in field:
            words.append("?" + field["nullableVersions"])
        if "tag" in field:
            assert field["taggedVersions"] == words[2], "a field that is tagged in some versions only"
            words.append(f"#{field['tag']}")
        if (default := _default(field)) is not None:
            words.append("=" + default)
        lines.append(indent + " ".join(words))
        lines += _fields(field.get("fields", []), indent + "  ")
    return lines


def _default(field: dict[str, Any]) -> str | None:
    if "default" not in field:
        return None
    default = field["default"]
    if default is None:  # JSON's null is no default to Kafka, "null" is; for structures see `writing`
        return None if field["type"].startswith("[]") else "null"
    text = str(default).lower() if field["type"] == "bool" else str(default)
    return None if text in ("", "0", "false") else text


def main() -> int:
    made = tables(load(Path(sys.argv[1])))
    different = [name for name, text in made.items() if not _same(TABLES / f"{name}.txt", text)]
    if "--rewrite" in sys.argv:
        TABLES.mkdir(exist_ok=True)
        for name in different:
            (TABLES / f"{name}.txt").write_text(made[name])
    print("differ:", *different) if different else print("the tables are what the jars hold")
    return bool(different)


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())

"""Connectors by configuration: files and tables to topics, topics to files, with the settings of Kafka Connect.

`Connectors` runs them with a bus; ``eventbus connect standalone`` runs them from a shell. Custom connectors derive from
`SourceConnector` or `SinkConnector`.
"""

from eventbus.connect.connector import (
    Connector,
    Context,
    Offset,
    Refused,
    SinkConnector,
    SinkRecord,
    SourceConnector,
    SourceRecord,
    partition_key,
)
from eventbus.connect.connectors import Connectors
from eventbus.connect.settings import REQUIRED, Key
from eventbus.connect.values import Field, Schema
from eventbus.errors import ConnectorsFailed

__all__ = [
    "REQUIRED", "Connector", "Connectors", "ConnectorsFailed", "Context", "Field", "Key", "Offset", "Refused", "Schema",
    "SinkConnector", "SinkRecord", "SourceConnector", "SourceRecord", "partition_key",
]  # fmt: skip

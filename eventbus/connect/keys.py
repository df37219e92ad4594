"""The settings of workers and all connectors, under Kafka Connect's names."""

from __future__ import annotations

from eventbus.connect.settings import REQUIRED, Key

_NO_REST = "a REST interface does not exist; use `eventbus connect` on the command line"
_STANDALONE = "it is of Connect's distributed mode; one process runs here"
_NO_TRANSFORMS = (
    "single message transforms are not run here: a handler between two topics changes records (@bus.consumer and "
    "@bus.producer), and so does the SELECT in query= of a JdbcSource; see docs/how-to/connect.md"
)

CONVERTERS = (
    Key("key.converter", doc="StringConverter, JsonConverter or ByteArrayConverter"),
    Key("key.converter."),
    Key("value.converter", doc="the same for values"),
    Key("value.converter."),
    Key("header.converter", ignored="headers are bytes"),
    Key("header.converter.", ignored="headers are bytes"),
)

WORKER_KEYS = (
    Key("bootstrap.servers", doc="brokers; or eventbus.url, or --url"),
    Key("eventbus.url", doc="the log: file://./data, kafka://host:9092"),
    *CONVERTERS,
    Key("offset.storage.file.filename", ignored="offsets of sources are kept in the log, with the records"),
    Key("offset.storage.topic", default="connect-offsets", doc="where offsets of sources are kept; compacted"),
    Key("offset.storage.partitions", "int", 1, "of that topic, when it is created", minimum=1),
    Key("offset.storage.replication.factor", "int", -1, "of that topic, when it is created; -1: the log's default"),
    Key("offset.flush.interval.ms", "int", 10_000, "how often sinks commit", minimum=1),
    Key("offset.flush.timeout.ms", ignored="a commit takes what it takes"),
    Key("task.shutdown.graceful.timeout.ms", "int", 5_000, "how long connectors may take to stop", minimum=0),
    Key("topic.creation.enable", "bool", True, "whether missing topics of connectors are created"),
    Key("plugin.path", ignored="connectors are Python classes, found by entry points and by their paths"),
    Key("plugin.discovery", ignored="connectors are Python classes, found by entry points and by their paths"),
    Key("exactly.once.source.support", ignored="sources are exactly once, always"),
    Key("internal.", ignored="Connect has dropped it"),
    Key("config.providers", ignored="${env:NAME} works without one; there are no others"),
    Key("config.providers.", ignored="${env:NAME} works without one; there are no others"),
    Key("group.id", ignored=_STANDALONE),
    Key("config.storage.", ignored=_STANDALONE),
    Key("status.storage.", ignored=_STANDALONE),
    Key("offset.storage.", ignored=_STANDALONE),
    Key("rest.", ignored=_NO_REST),
    Key("listeners", ignored=_NO_REST),
    Key("listeners.", ignored=_NO_REST),
    Key("admin.listeners", ignored=_NO_REST),
    Key("access.control.", ignored=_NO_REST),
    Key("connector.client.config.override.policy", ignored="producer.override. and consumer.override. are taken"),
    Key("producer.", doc="settings of the producers of sources"),
    Key("consumer.", doc="settings of the consumers of sinks"),
    Key("admin.", ignored="the connection's settings hold for all clients"),
)
"""The keys of a worker; settings of its connection to Kafka are removed before."""

COMMON_KEYS = (
    Key("name", default=REQUIRED, doc="of this connector: its offsets are kept under it"),
    Key("connector.class", default=REQUIRED, doc="FileStreamSource, FileStreamSink, JdbcSource, or module:Class"),
    Key("tasks.max", "int", 1, "a connector is one task here", minimum=1),
    *CONVERTERS,
    Key("errors.tolerance", default="none", choices=("none", "all"), doc="all: records at fault are skipped"),
    Key("errors.log.enable", "bool", False, "whether each of them is logged"),
    Key("errors.log.include.messages", "bool", False, "with its topic, partition and offset"),
    Key("errors.retry.timeout", ignored="a connector that fails is restarted, without limit"),
    Key(
        "errors.retry.delay.max.ms", "int", 60_000, "the longest wait before a failed connector begins again", minimum=1
    ),
    Key("config.action.reload", ignored="settings are read at the start"),
    Key("transforms", refused=_NO_TRANSFORMS),
    Key("transforms.", refused=_NO_TRANSFORMS),
    Key("predicates", refused=_NO_TRANSFORMS),
    Key("predicates.", refused=_NO_TRANSFORMS),
)

SOURCE_KEYS = (
    *COMMON_KEYS,
    Key("producer.override.", doc="settings of its producer"),
    Key("admin.override.", ignored="the worker's connection is used"),
    Key("topic.creation.default.partitions", "int", -1, "of topics it creates; -1: the log's default", minimum=-1),
    Key("topic.creation.default.replication.factor", "int", -1, "the same; -1: the log's default", minimum=-1),
    Key("topic.creation.groups", ignored="topics are created by topic.creation.default."),
    Key("topic.creation.default.", doc="configs of topics it creates: such as cleanup.policy"),
    Key("exactly.once.support", ignored="sources are exactly once, always"),
    Key("transaction.boundary", choices=("poll",), default="poll", doc="a transaction is what one poll brings"),
    Key("offsets.storage.topic", refused="offsets of all sources are in one topic: offset.storage.topic of the worker"),
)

SINK_KEYS = (
    *COMMON_KEYS,
    Key("topics", "list", (), "what it reads, parted by commas"),
    Key("topics.regex", doc="or a pattern of topics' whole names"),
    Key("consumer.override.", doc="settings of its consumer"),
    Key("errors.deadletterqueue.topic.name", default="", doc="where records at fault go, with errors.tolerance=all"),
    Key("errors.deadletterqueue.topic.replication.factor", "int", -1, "of that topic, when it is created"),
    Key("errors.deadletterqueue.context.headers.enable", "bool", False, "headers that say what was wrong"),
)

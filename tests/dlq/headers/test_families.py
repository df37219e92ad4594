"""Dead letters as other systems write them: their headers byte for byte, and what is read from them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlq.letters import DeadLetter, dead_letter
from eventbus.types import ConsumerRecord, Header, TimestampType, TopicPartition

JAVA_STACK = (
    "org.springframework.kafka.listener.ListenerExecutionFailedException: Listener failed\n"
    "\tat org.springframework.kafka.listener.ListenerContainer.decorate(ListenerContainer.java:2946)\n"
    "\tat java.base/java.lang.Thread.run(Thread.java:1583)\n"
    'Caused by: java.lang.NumberFormatException: For input string: "12a"\n'
    "\tat java.base/java.lang.Integer.parseInt(Integer.java:661)\n"
    "\tat com.acme.orders.OrderListener.lambda$price$0(OrderListener.java:42)\n"
    "\tat com.acme.orders.OrderListener.on(OrderListener.java:30)\n"
    "\t... 12 more\n"
)


def letter(headers: list[Header], value: bytes | None = b"v") -> DeadLetter:
    record = ConsumerRecord(
        "orders.dlq", 1, 7, 1_700_000_001_000, TimestampType.CREATE_TIME, b"k", value, tuple(headers)
    )
    read = dead_letter(record)
    assert read.all_headers == record.headers
    assert (read.id, read.key, read.value, read.timestamp_ms) == ("orders.dlq/1/7", b"k", value, 1_700_000_001_000)
    return read


def texts(**values: str) -> list[Header]:
    """``_`` is a dot in names."""
    return [(name, value.encode()) for name, value in values.items()]


def under(prefix: str, **values: str) -> list[Header]:
    return [(prefix + name.replace("_", "."), value.encode()) for name, value in values.items()]


ORIGINAL: list[Header] = [("trace", b"abc"), ("trace", None)]
SHARE_GROUP = under(
    "__dlq.errors.", topic="orders", partition="3", offset="128", group="billing", delivery_count="5",
    message="Delivery count exceeded.",
)  # fmt: skip
CONNECT = under(
    "__connect.errors.", topic="orders", partition="3", offset="128", connector_name="jdbc-sink", task_id="0",
    stage="VALUE_CONVERTER", class_name="org.apache.kafka.connect.json.JsonConverter",
    exception_class_name="org.apache.kafka.connect.errors.DataException",
    exception_message="Converting byte[] to Kafka Connect data failed due to serialization error: ",
    exception_stacktrace=JAVA_STACK,
)  # fmt: skip
STREAMS = under(
    "__streams.errors.", exception="java.lang.IllegalStateException", stacktrace=JAVA_STACK, message="no such order",
    topic="orders", partition="3", offset="128",
)  # fmt: skip
SPRING: list[Header] = [
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-cause-fqcn", b"java.lang.NumberFormatException"),
    ("kafka_dlt-exception-message", b'Listener failed; For input string: "12a"'),
    ("kafka_dlt-exception-stacktrace", JAVA_STACK.encode()),
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", b"\x00\x00\x00\x03"),
    ("kafka_dlt-original-offset", b"\x00\x00\x00\x00\x00\x00\x00\x80"),
    ("kafka_dlt-original-timestamp", struct.pack(">q", 1_700_000_000_000)),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"),
    ("kafka_dlt-original-consumer-group", b"billing"),
]
SPRING_RETRIED: list[Header] = [
    ("kafka_original-topic", b"orders"),
    ("kafka_original-partition", b"\x00\x00\x00\x03"),
    ("kafka_original-offset", b"\x00\x00\x00\x00\x00\x00\x00\x80"),
    ("kafka_original-timestamp", struct.pack(">q", 1_700_000_000_000)),
    ("kafka_original-timestamp-type", b"CreateTime"),
    ("kafka_original-consumer-group", b"billing"),
    ("kafka_exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_exception-cause-fqcn", b"java.lang.NumberFormatException"),
    ("kafka_exception-message", b"Listener failed"),
    ("kafka_exception-stacktrace", JAVA_STACK.encode()),
    ("retry_topic-original-timestamp", bytes.fromhex("018bcfe56800")),
    ("retry_topic-attempts", b"\x00\x00\x00\x04"),
    ("retry_topic-backoff-timestamp", bytes.fromhex("018bcfe57fd0")),
]
KARAFKA = texts(
    source_topic="orders", source_partition="3", source_offset="128", source_consumer_group="billing",
    source_attempts="3", source_trace_id="0f8fad5b-d9cb-469f-a165-70867728950e",
)  # fmt: skip
JAVA_FRAME = "OrderListener.java:OrderListener.lambda$price$0:42"
PLACE = {"source": TopicPartition("orders", 3), "source_offset": 128}

FAMILIES: list[tuple[str, list[Header], dict[str, Any]]] = [
    ("share-group", SHARE_GROUP, {**PLACE, "group": "billing", "attempts": 5, "message": "Delivery count exceeded."}),
    (
        "connect",
        CONNECT,
        {
            **PLACE,
            "group": "connect-jdbc-sink",
            "handler": "jdbc-sink",
            "error_class": "org.apache.kafka.connect.errors.DataException",
            "message": "Converting byte[] to Kafka Connect data failed due to serialization error: ",
            "stack": JAVA_STACK,
            "top_frame": JAVA_FRAME,
            "reason": "VALUE_CONVERTER",
        },
    ),
    (
        "streams",
        STREAMS,
        {
            **PLACE,
            "error_class": "java.lang.IllegalStateException",
            "message": "no such order",
            "stack": JAVA_STACK,
            "top_frame": JAVA_FRAME,
        },
    ),
    (
        "spring",
        SPRING,
        {
            **PLACE,
            "original_timestamp_ms": 1_700_000_000_000,
            "group": "billing",
            "error_class": "java.lang.NumberFormatException",
            "message": 'Listener failed; For input string: "12a"',
            "stack": JAVA_STACK,
            "top_frame": JAVA_FRAME,
        },
    ),
    (
        "spring",
        SPRING_RETRIED,
        {
            **PLACE,
            "original_timestamp_ms": 1_700_000_000_000,
            "group": "billing",
            "error_class": "java.lang.NumberFormatException",
            "message": "Listener failed",
            "stack": JAVA_STACK,
            "top_frame": JAVA_FRAME,
            "attempts": 4,
        },
    ),
    ("karafka", KARAFKA, {**PLACE, "group": "billing", "attempts": 3}),
]
IDS = ["share-group", "connect", "streams", "spring", "spring-retried", "karafka"]
UNTOLD: dict[str, Any] = {
    "source": None, "source_offset": None, "original_timestamp_ms": None, "group": "", "handler": "", "service": "",
    "error_class": "", "message": "", "stack": "", "top_frame": "", "reason": "", "attempts": None,
    "first_failed_ms": None, "last_failed_ms": None, "hops": 0,
}  # fmt: skip


@pytest.mark.parametrize(("family", "headers", "told"), FAMILIES, ids=IDS)
def test_each_family(family: str, headers: list[Header], told: dict[str, Any]) -> None:
    read = letter(ORIGINAL + headers)
    assert {name: getattr(read, name) for name in UNTOLD} == {**UNTOLD, **told}
    assert (read.family, read.headers, read.has_payload) == (family, tuple(ORIGINAL), True)


@pytest.mark.parametrize(("family", "headers", "told"), FAMILIES, ids=IDS)
def test_each_family_with_any_value_in_any_header(family: str, headers: list[Header], told: dict[str, Any]) -> None:
    for index, (name, _) in enumerate(headers):
        for value in (None, b"", b"\xff\xfe", b"-1", b"9" * 5000, b"\x00" * 9, b"a" * 100_000, b"\x1b[2J"):
            read = letter([*headers[:index], (name, value), *headers[index + 1 :]])
            sizes = (len(read.stack), len(read.message), len(read.group), len(read.handler), len(read.top_frame))
            assert all(size <= most for size, most in zip(sizes, (65_536, 8_192, 1_033, 1_024, 1_024), strict=True))
            assert read.attempts is None or 0 <= read.attempts <= 2**31
            assert read.source_offset is None or 0 <= read.source_offset < 2**63


@pytest.mark.system
@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for _, headers, _ in FAMILIES for name, _ in headers])
            | st.sampled_from(["eb-dlq-reason", "eb-dlq-hops", "eb-dlq-first-failed", "eb-dlq-top-frame"])
            | st.text(max_size=5),
            st.none() | st.binary(max_size=12) | st.integers().map(lambda number: str(number).encode()),
        ),
        max_size=12,
    ),
    st.none() | st.binary(max_size=3),
)
def test_any_headers(headers: list[Header], value: bytes | None) -> None:
    read = letter(headers, value)
    assert len(read.case) == 10
    assert set(read.headers) <= set(headers)


# one family among others ---------------------------------------------------------------------------------------------


def test_a_record_of_no_family() -> None:
    read = letter([*ORIGINAL, ("source_topic", b"orders"), ("kafka_deliveryAttempt", b"\x00\x00\x00\x02")])
    assert (read.family, read.source, len(read.headers)) == ("unknown", None, 4)


@pytest.mark.parametrize(
    ("first", "last", "family"),
    [(SPRING, CONNECT, "connect"), (CONNECT, SPRING, "spring"), (KARAFKA, STREAMS, "streams")],
)
def test_who_wrote_last_counts(first: list[Header], last: list[Header], family: str) -> None:
    """A dead letter of a dead letter: what the first one said is the record's own by now."""
    read = letter([*ORIGINAL, *first, *last])
    assert (read.family, read.headers) == (family, (*ORIGINAL, *first))


def test_the_last_family_that_tells_anything_counts() -> None:
    assert letter([*CONNECT, ("source_attempts", b"3")]).family == "connect"


def test_what_tells_of_hops_is_not_the_records_own() -> None:
    hops: list[Header] = [("eb-redrive-hops", b"1"), ("eb-retry-attempt", b"3")]
    assert letter([*ORIGINAL, *hops, *KARAFKA]).headers == tuple(ORIGINAL)
    assert letter([*ORIGINAL, *hops]).headers == tuple(ORIGINAL)


def test_spring_tells_of_each_hop_and_the_first_is_the_source() -> None:
    again = [
        ("kafka_dlt-original-topic", b"orders.DLT"),
        ("kafka_dlt-original-offset", struct.pack(">q", 5)),
        ("kafka_dlt-exception-cause-fqcn", b"java.io.IOException"),
        ("kafka_dlt-exception-stacktrace", b""),
    ]
    read = letter([*SPRING, *again])
    assert (read.source, read.source_offset, read.error_class) == (*PLACE.values(), "java.io.IOException")


def test_spring_through_retry_topics_and_then_dead_without_them() -> None:
    renamed = [(name, b"orders.DLT" if name.endswith("topic") else value) for name, value in SPRING]
    read = letter([*SPRING_RETRIED, *renamed])
    assert (read.source, read.attempts, read.message) == (
        PLACE["source"],
        4,
        'Listener failed; For input string: "12a"',
    )


def test_spring_with_a_key_that_could_not_be_read() -> None:
    places = [header for header in SPRING if "original" in header[0]]
    error = [
        ("kafka_dlt-key-exception-fqcn", b"o.DeserializationException"),
        ("kafka_dlt-key-exception-message", b"no"),
    ]
    read = letter([*places, *error])
    assert (read.error_class, read.message) == ("o.DeserializationException", "no")


@pytest.mark.parametrize(
    ("value", "attempts"),
    [
        (b"\x02", 2),
        (b"\x00\x00\x01\x00", 256),
        (b"12345", 12345),
        (b"\xff\xff\xff\xff", None),
        (b"", None),
        (b"x" * 9, None),
    ],
)
def test_spring_numbers_of_other_versions_and_clients(value: bytes, attempts: int | None) -> None:
    assert letter([*SPRING_RETRIED, ("retry_topic-attempts", value)]).attempts == attempts


def test_numbers_as_text_where_spring_writes_bytes() -> None:
    """Clients that copy the header names write them so."""
    texts = [("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", b"1003")]
    read = letter([*texts, ("kafka_dlt-original-offset", b"12345678")])
    assert (read.source, read.source_offset) == (TopicPartition("orders", 1003), 12_345_678)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("__dlq.errors.topic", b""), ("__dlq.errors.topic", b"../etc"), ("__dlq.errors.topic", b"o" * 250),
        ("__dlq.errors.topic", "ördér".encode()), ("__dlq.errors.partition", b"2147483648"),
        ("__dlq.errors.partition", b"three"), ("__dlq.errors.partition", None),
    ],
)  # fmt: skip
def test_a_place_that_there_cannot_be(name: str, value: bytes | None) -> None:
    read = letter([*SHARE_GROUP, (name, value)])
    assert (read.family, read.source, read.source_offset) == ("share-group", None, None)


def test_a_share_group_may_leave_the_payload_where_it_is() -> None:
    assert not letter(SHARE_GROUP, None).has_payload
    assert letter(SHARE_GROUP, b"").has_payload
    assert letter(CONNECT, None).has_payload, "a tombstone"


@pytest.mark.parametrize(
    ("stack", "frame"),
    [
        (
            "java.lang.Error\n\tat java.base/java.lang.Integer.parseInt(Integer.java:661)\n",
            "Integer.java:Integer.parseInt:661",
        ),
        ("x.Error\n\tat app//com.acme.A.run(A.java)\n", "A.java:A.run"),
        ("x.Error\n\tat java.base/java.lang.A.run(Native Method)\n\tat com.acme.B.go(Unknown Source)", "B.go"),
        ("no stack at all", ""),
    ],
)
def test_frames_of_java(stack: str, frame: str) -> None:
    assert letter([*STREAMS, ("__streams.errors.stacktrace", stack.encode())]).top_frame == frame


# cases ---------------------------------------------------------------------------------------------------------------


def test_letters_of_one_case() -> None:
    """Not which record it was, nor the line, which moves with each release."""
    moved = JAVA_STACK.replace("OrderListener.java:42", "OrderListener.java:57")
    other = letter(
        [*CONNECT, *under("__connect.errors.", offset="5", exception_stacktrace=moved, exception_message="!")]
    )
    assert other.case == letter(CONNECT).case
    different = [
        under("__connect.errors.", connector_name="other"),
        under("__connect.errors.", exception_class_name="java.lang.Error"),
        under("__connect.errors.", exception_stacktrace=JAVA_STACK.replace("price", "sum")),
    ]
    assert len({other.case, *(letter([*CONNECT, *headers]).case for headers in different)}) == 4


def test_a_letter_without_a_class_is_of_the_case_of_its_message() -> None:
    cases = [
        letter([*SHARE_GROUP, *under("__dlq.errors.", message=message)]).case
        for message in ("order 17 of 3f2a-77b1 is late", "order 9 of 00c1-99aa is late", "no such customer")
    ]
    assert cases[0] == cases[1] != cases[2]


def test_a_case_is_the_same_in_every_process() -> None:
    assert letter(CONNECT).case == "b300d434ce"

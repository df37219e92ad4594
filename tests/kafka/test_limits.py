"""What a topic's configs allow."""

from __future__ import annotations

from eventbus.backends.kafka.limits import NEVER_MS, UNKNOWN, TopicLimits, record_bytes

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def test_the_limits_of_a_topic() -> None:
    configs: dict[str, str | None] = {
        "max.message.bytes": "2000",
        "message.timestamp.before.max.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": "5000",
        "cleanup.policy": "compact,delete",
    }
    assert TopicLimits.read(configs) == TopicLimits(2_000, HOUR_MS, 5_000, needs_key=True)
    stamped = TopicLimits.read({**configs, "message.timestamp.type": "LogAppendTime"})
    assert stamped == TopicLimits(2_000, NEVER_MS, NEVER_MS, needs_key=True)
    before_kafka_4 = {"message.timestamp.difference.max.ms": "7000", "message.timestamp.after.max.ms": "5000"}
    assert TopicLimits.read(before_kafka_4) == TopicLimits(before_ms=7_000, after_ms=5_000)
    assert TopicLimits.read({}) == UNKNOWN


def test_timestamps_near_a_limit_count_as_beyond_it() -> None:
    """The broker's clock may be a minute away; a limit of seconds leaves half of it."""
    limits = TopicLimits(before_ms=HOUR_MS, after_ms=5_000)
    assert limits.accepted_times(NOW_MS) == (NOW_MS - HOUR_MS + 60_000, NOW_MS + 2_500)
    assert UNKNOWN.accepted_times(NOW_MS)[0] == 1  # 0 means "now" to librdkafka


def test_the_size_of_a_record_is_not_underestimated() -> None:
    assert record_bytes(None, None, None) >= 7
    assert record_bytes(b"key", b"value", [("né", None)]) >= 3 + 5 + 3 + 15

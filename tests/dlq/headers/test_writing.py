"""Our own dead letters: what is written for a record that failed, and read again."""

from __future__ import annotations

import logging

import pytest

from dlq.headers import Cause, Redact, dead_letter_record, size_of
from dlq.letters import DeadLetter, dead_letter
from eventbus.delays.retry_records import retry_entry
from eventbus.types import ConsumerRecord, Header, Record, TimestampType, TopicPartition

GOLDEN = (
    ("trace", b"1"),
    ("eb-redrive-hops", b"2"),
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"128"),
    ("__dlq.errors.group", b"billing"),
    ("__dlq.errors.delivery.count", b"4"),
    ("eb-dlq-handler", b"app.pay"),
    ("eb-dlq-service", b"billing-1"),
    ("eb-dlq-reason", b"exhausted"),
    ("eb-dlq-first-failed", b"1700000001000"),
    ("eb-dlq-last-failed", b"1700000002000"),
    ("eb-dlq-original-timestamp", b"1700000000000"),
    ("eb-dlq-hops", b"2"),
    ("__dlq.errors.message", b"bad order"),
    ("eb-dlq-error-class", b"ValueError"),
    ("eb-dlq-stack", b"ValueError: bad order\n"),
)


def failed(
    *headers: Header, key: bytes | None = b"k", value: bytes | None = b"v", topic: str = "orders"
) -> ConsumerRecord:
    return ConsumerRecord(topic, 3, 128, 1_700_000_000_000, TimestampType.CREATE_TIME, key, value, headers)


def cause(error: BaseException | None = None, reason: str = "exhausted", handler: str = "app.pay") -> Cause:
    return Cause(
        error=error,
        reason=reason,
        group="billing",
        handler=handler,
        service="billing-1",
        attempts=4,
        first_failed_ms=1_700_000_001_000,
        now_ms=1_700_000_002_000,
    )


def written(record: ConsumerRecord, why: Cause, max_bytes: int = 10**6, redact: Redact | None = None) -> Record:
    return dead_letter_record(record, why, max_bytes=max_bytes, redact=redact)


def read(record: Record) -> DeadLetter:
    return dead_letter(
        ConsumerRecord("dlq.billing", 1, 7, 5, TimestampType.CREATE_TIME, record.key, record.value, record.headers)
    )


def header(record: Record, name: str) -> bytes:
    (value,) = [value for found, value in record.headers if found == name]
    assert value is not None
    return value


def raised(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_a_dead_letter_byte_for_byte() -> None:
    letter = written(failed(("trace", b"1"), ("eb-redrive-hops", b"2")), cause(ValueError("bad order")))
    assert letter == Record(b"k", b"v", GOLDEN)


def test_what_is_written_is_read() -> None:
    told = read(written(failed(("trace", b"1")), cause(raised("bad order"), "rejected")))
    assert (told.family, told.source, told.source_offset) == ("eventbus", TopicPartition("orders", 3), 128)
    assert (told.group, told.handler, told.service, told.reason) == ("billing", "app.pay", "billing-1", "rejected")
    assert (told.attempts, told.first_failed_ms, told.last_failed_ms) == (4, 1_700_000_001_000, 1_700_000_002_000)
    assert (told.error_class, told.message, told.hops) == ("ValueError", "bad order", 0)
    assert told.top_frame.startswith("test_writing.py:raised:")
    assert told.stack.endswith("ValueError: bad order\n")
    assert (told.original_timestamp_ms, told.headers, told.has_payload) == (1_700_000_000_000, (("trace", b"1"),), True)


def test_without_an_error_the_reason_is_the_message() -> None:
    loop, crashed = read(written(failed(), cause(None, "loop"))), read(written(failed(), cause(None, "crashed")))
    assert (loop.message, loop.error_class, loop.stack) == ("loop", "", "")
    assert loop.case != crashed.case


def test_a_tombstone_is_a_payload() -> None:
    told = read(written(failed(key=None, value=None), cause()))
    assert (told.key, told.value, told.has_payload) == (None, None, True)


def test_what_the_retries_said_is_not_carried_on() -> None:
    entry = retry_entry(failed(("trace", b"1")), attempt=3, due_ms=1, first_failed_ms=1, error="ValueError: x")
    again = failed(*entry.headers)
    assert written(again, cause()) == written(failed(("trace", b"1")), cause())


@pytest.mark.parametrize(
    ("headers", "hops"),
    [((), 0), ((("eb-redrive-hops", b"3"),), 3), ((("eb-redrive-hops", b"many"),), 0)],
)
def test_hops_are_counted_over_redrives(headers: tuple[Header, ...], hops: int) -> None:
    assert read(written(failed(*headers), cause())).hops == hops


def test_a_dead_letter_of_a_dead_letter() -> None:
    """A handler that reads a topic of dead letters fails: the newest headers stand there once, and one hop more."""
    first = written(failed(("trace", b"1")), cause(raised("bad order")))
    second = written(failed(*first.headers, topic="dlq.billing"), cause(raised("worse")))
    names = [name for name, _ in second.headers]
    assert len(names) == len(set(names))
    told = read(second)
    assert (told.source, told.hops, told.headers) == (TopicPartition("dlq.billing", 3), 1, (("trace", b"1"),))


def test_a_dead_letter_of_anothers_dead_letter_keeps_its_headers() -> None:
    connect = ("__connect.errors.topic", b"orders"), ("__connect.errors.partition", b"0")
    told = read(written(failed(*connect), cause()))
    assert (told.family, told.headers) == ("eventbus", connect)


# sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["x", "é", "\U0001f600", "\ud800", "\x00", "a\n"])
def test_ours_are_never_large(text: str) -> None:
    """The headers are small for any error text, in any script."""
    why = cause(raised("begin " + text * 2_000_000 + " end"), "r" * 10_000, text * 10_000)
    letter = written(failed(), why)
    assert sum(len(name) + len(value or b"") for name, value in letter.headers) < 14 * 1024
    message = header(letter, "__dlq.errors.message")
    assert len(message) <= 1024 and message.startswith(b"begin ") and message.endswith(b" end")
    stack = header(letter, "eb-dlq-stack")
    assert len(stack) <= 8192 and stack.startswith(b"Traceback") and stack.endswith(b" end\n")
    for _, value in letter.headers:
        assert (value or b"").decode() is not None


def parts(letter: Record) -> str:
    names = [name for name, _ in letter.headers]
    has = {
        "value": letter.value is not None,
        "key": letter.key is not None,
        "headers": "trace" in names,
        "message": "__dlq.errors.message" in names,
        "stack": "eb-dlq-stack" in names,
    }
    assert has["value"] == ("eb-dlq-payload" not in names)
    return " ".join(name for name, is_there in has.items() if is_there)


def shrunk(record: ConsumerRecord, why: Cause) -> list[str]:
    """Return the parts in a record's dead letters, as the size limit of the topic decreases."""
    found: list[str] = []
    for size in range(60_000, 100, -50):
        letter = written(record, why, size)
        assert size_of(letter) <= size or not parts(letter)
        if parts(letter) not in found:
            found.append(parts(letter))
    return found


def test_what_does_not_fit_stays_in_the_source() -> None:
    """A long stack is dropped before short parts of the record."""
    record = failed(("trace", b"t" * 400), key=b"k" * 400, value=b"v" * 5000)
    why = cause(raised("x" * 5000))
    assert shrunk(record, why) == [
        "value key headers message stack",
        "key headers message stack",
        "key headers message",
        "key headers",
        "key",
        "",
    ]
    told = read(written(record, why, 800))
    assert (told.has_payload, told.source, told.source_offset) == (False, TopicPartition("orders", 3), 128)
    assert (told.error_class, told.reason) == ("ValueError", "exhausted")


def test_no_stack_is_left_out_where_that_does_not_help() -> None:
    record, why = failed(("trace", b"t" * 35_000), key=b"k" * 20_000), cause(raised("short"))
    assert parts(written(record, why, 30_000)) == "key message stack"
    assert parts(written(record, why, 10_000)) == "message stack"


def test_a_letter_that_fits_nowhere_is_the_shortest() -> None:
    letter = written(failed(value=b"v" * 100), cause(raised("short")), 10)
    assert parts(letter) == "" and read(letter).source_offset == 128


def test_the_limit_is_exact() -> None:
    record, why = failed(value=b"v" * 5000), cause(ValueError("x"))
    whole = size_of(written(record, why))
    assert written(record, why, whole).value is not None
    assert written(record, why, whole - 1).value is None


# redaction -----------------------------------------------------------------------------------------------------------


def test_redact_sees_what_the_error_wrote_and_nothing_else() -> None:
    seen: dict[str, str] = {}

    def redact(name: str, text: str) -> str | None:
        seen[name] = text
        return None if name == "eb-dlq-stack" else text.replace("4111-1111", "[card]")

    letter = written(failed(("trace", b"4111-1111")), cause(raised("card 4111-1111")), redact=redact)
    names = [name for name, _ in letter.headers]
    assert sorted(seen) == ["__dlq.errors.message", "eb-dlq-error-class", "eb-dlq-stack", "eb-dlq-top-frame"]
    assert header(letter, "__dlq.errors.message") == b"card [card]"
    assert "eb-dlq-stack" not in names and "eb-dlq-top-frame" in names
    assert ("trace", b"4111-1111") in letter.headers


def test_a_secret_is_redacted_before_the_text_is_cut() -> None:
    """A text that is cut in the middle of the secret still shows its half."""
    secret = "S3CRET-" + "Z" * 600
    letter = written(
        failed(), cause(ValueError("x" * 300 + secret + "y" * 5000)), redact=lambda _, text: text.replace(secret, "***")
    )
    assert b"Z" not in header(letter, "__dlq.errors.message")


def test_what_redact_returns_is_cut_too() -> None:
    letter = written(failed(), cause(raised("x")), redact=lambda name, text: text * 100_000)
    assert sum(len(value or b"") for _, value in letter.headers) < 14 * 1024


def test_a_text_that_redact_fails_at_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def redact(name: str, text: str) -> str:
        raise KeyError(text)

    with caplog.at_level(logging.ERROR, "eventbus.dlq"):
        letter = written(failed(), cause(raised("card 4111-1111")), redact=redact)
    assert not any(b"4111" in (value or b"") for _, value in letter.headers)
    assert "__dlq.errors.message" in caplog.text
    assert read(letter).source_offset == 128

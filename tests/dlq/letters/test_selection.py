"""Which dead letters are meant, and what becomes of them, as texts and records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlq.letters import dead_letter
from dlq.selection import STATUSES, LetterId, Selection, looks_dead
from dlq.state import LetterState, Step, new_step, read_key, read_state, with_step, write_key, write_state
from eventbus import ConsumerRecord, TimestampType
from eventbus.errors import ConfigError
from tests.dlq.letters.making import letter

names = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(names, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_id_is_read_as_it_is_written(topic: str, partition: int, offset: int) -> None:
    id = LetterId(topic, partition, offset)
    assert LetterId.of(str(id)) == id
    assert read_key(write_key(id)) == id


@pytest.mark.parametrize(
    "text",
    ["", "dlq.a", "a/0", "a/0/", "a//1", "/0/1", "a/-1/1", "a/0/1/2", "a/0/²", "a/0/" + "9" * 40, "a/0/01", "a/ 0/1"],
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ConfigError, match="topic/partition/offset"):
        LetterId.of(text)
    assert read_key(text.encode()) is None


@given(st.binary() | st.none())
def test_any_bytes_may_stand_in_the_topic_of_states(data: bytes | None) -> None:
    id = read_key(data)
    assert id is None or write_key(id) == data
    state = read_state(data)
    assert state is None or state.status in STATUSES


@pytest.mark.parametrize(
    "topic",
    [
        "dlq.billing",
        "DLQ-x",
        "orders-dlq",
        "orders.DLT",
        "orders_dlq",
        "orders-dead-letters",
        "orders_error",
        "q_skipped",
    ],
)
def test_names_of_dead_letter_topics(topic: str) -> None:
    assert looks_dead(topic)


@pytest.mark.parametrize("topic", ["orders", "errors", "dlqueue", "retry.billing", "dlq", "middle-dlq-name"])
def test_names_of_other_topics(topic: str) -> None:
    assert not looks_dead(topic)
    assert looks_dead(topic, {"errors.deadletterqueue.group.enable": "true"})


def read(number: int = 0, **how: Any) -> ConsumerRecord:
    made = letter(number, **how)
    return ConsumerRecord("dlq.a", 0, number, 5, TimestampType.CREATE_TIME, made.key, made.value, made.headers)


@pytest.mark.parametrize(
    ("selection", "is_taken"),
    [
        (Selection(), True),
        (Selection(topic="dlq.a", handler="bill", group="billing", error_class="ValueError"), True),
        (Selection(topic="dlq.b"), False),
        (Selection(handler="ship"), False),
        (Selection(group="shipping"), False),
        (Selection(error_class="KeyError"), False),
        (Selection(case="0000000000"), False),
        (Selection(contains="needle"), True),
        (Selection(contains="k-1"), True),
        (Selection(contains="no price"), True),
        (Selection(contains="NEEDLE"), False),
    ],
)
def test_selection_takes_letters_by_all_it_names(selection: Selection, is_taken: bool) -> None:
    found = dead_letter(read(key=b"k-1", value=b"\xff a needle \x00"))
    assert selection.takes(found) is is_taken


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"status": {"lost"}}, "'lost'"),
        ({"status": "open"}, "status="),
        ({"ids": "a/0/1"}, "ids="),
        ({"limit": -1}, "limit"),
    ],
)
def test_selection_that_means_nothing(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Selection(**wrong)


# states --------------------------------------------------------------------------------------------------------------


def test_history_keeps_its_beginning_and_its_end() -> None:
    state: LetterState | None = None
    for number in range(60):
        state = with_step(state, "id", new_step("parked", number, by="ann", note=f"n{number}"))
    assert state is not None
    assert len(state.steps) == 20
    assert [step.at_ms for step in state.steps[:2]] == [0, 41]
    assert state.last == Step("parked", 59, "ann", "n59")
    assert read_state(write_state(state)) == state


def test_past_of_another_topic_of_the_name_is_not_taken_over() -> None:
    before = with_step(None, "old", new_step("resolved", 1))
    assert with_step(before, "new", new_step("parked", 2)).steps == (Step("parked", 2),)


def test_text_that_cannot_be_written_is_told_apart() -> None:
    state = with_step(None, "t", new_step("parked", 1, by="a\udc80", note="\x1b[31m"))
    assert read_state(write_state(state)) == state
    assert (state.last.by, state.last.note) == ("a\\udc80", "\x1b[31m")


def test_note_too_long_to_keep() -> None:
    with pytest.raises(ConfigError, match="note: 1001 characters"):
        new_step("parked", 1, note="x" * 1_001)


@pytest.mark.parametrize(
    "value", [b'{"topic_id":"t","steps":[]}', b'{"topic_id":"t","steps":[{"status":"lost","at_ms":1}]}',
              b'{"topic_id":"t","version":2,"steps":[{"status":"open","at_ms":1}]}', b"[]", b"\xff",
              b'{"topic_id":"t","steps":[{"status":"open","at_ms":1}],"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}"]
)  # fmt: skip
def test_state_that_cannot_be_read_says_nothing(value: bytes) -> None:
    assert read_state(value) is None

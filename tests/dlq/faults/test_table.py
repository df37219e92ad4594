"""A table of faults between a failing handler and its dead letter, with the test of each."""

from __future__ import annotations

import pytest

from tests.named import check_named

RECORDS, TOPICS = "tests/dlq/faults/test_bad_records.py", "tests/dlq/faults/test_topics_in_trouble.py"
TIME, MEMBERS = "tests/dlq/faults/test_time.py", "tests/dlq/faults/test_members.py"
LETTERS, REDRIVE = "tests/dlq/letters/test_dead_letters.py", "tests/dlq/letters/test_redrive.py"
TABLE = {
    "a value that cannot be decoded": f"{RECORDS}::test_what_cannot_be_decoded_is_dead_at_once_as_it_was",
    "a key that cannot be decoded": f"{RECORDS}::test_a_key_that_its_handler_cannot_read_is_the_handlers_failure",
    "headers, repeated or no UTF-8": f"{RECORDS}::test_headers_of_any_kind_are_kept_and_believed_nothing",
    "an unknown schema id": f"{RECORDS}::test_an_unknown_schema_is_final",
    "the registry is down": f"{RECORDS}::test_a_registry_that_is_down_is_waited_for",
    "a handler hangs": f"{TIME}::test_a_handler_that_hangs_has_failed_when_its_time_is_over",
    "a handler kills the process": (
        "tests/dlq/crashes/test_crash_marks.py::test_those_that_kill_are_found_and_the_others_are_handled"
    ),
    "an error of megabytes, or that cannot be pickled": (
        f"{RECORDS}::test_an_error_of_any_size_and_kind_is_written_down_in_few_bytes"
    ),
    "the dead-letter topic is missing": f"{TOPICS}::test_a_dead_letter_topic_that_was_deleted_is_made_again",
    "the dead-letter topic is read-only": f"{TOPICS}::test_what_cannot_be_written_down_is_not_passed_over",
    "the dead-letter topic takes smaller records": (
        f"{TOPICS}::test_what_does_not_fit_the_dead_letter_topic_stays_in_its_source"
    ),
    "the retry topic has fewer partitions": f"{TOPICS}::test_a_retry_topic_that_is_too_narrow_is_widened",
    "brokers are down while a dead letter is written": (
        f"{TOPICS}::test_an_outage_of_the_dead_letters_is_waited_for_and_order_stays"
    ),
    "a dead letter of a dead letter": f"{TOPICS}::test_a_dead_letter_that_fails_is_a_dead_letter_of_whoever_read_it",
    "a dead letter that comes back for ever": f"{REDRIVE}::test_loop_is_ended_by_counting_hops",
    "redrive to a deleted topic": f"{REDRIVE}::test_topic_that_is_deleted_waits_for_another_of_the_name",
    "redrive while consumers are down": (
        f"{REDRIVE}::test_consumers_that_are_down_find_what_was_sent_when_they_come_back"
    ),
    "double redrive": f"{REDRIVE}::test_second_redrive_sends_nothing",
    "two redrives at once": f"{REDRIVE}::test_two_at_once_send_each_once",
    "an edit that breaks the schema": (
        "tests/dlq/letters/test_edit.py::test_value_that_names_its_schema_has_to_fit_it"
    ),
    "the original is gone": f"{LETTERS}::test_payload_is_fetched_where_the_letter_has_none",
    "the clock jumps": f"{TIME}::test_after_a_jump_of_the_clock_what_is_due_is_tried_once",
    "members come and go while records wait": f"{MEMBERS}::test_members_come_and_go",
    "a member that was given up goes on": f"{MEMBERS}::test_who_was_given_up_writes_no_second_dead_letter",
    "the group is renamed": f"{TOPICS}::test_a_renamed_group_begins_anew_and_the_old_one_keeps_what_waits",
    "tombstones, and a compacted source": f"{RECORDS}::test_a_tombstone_is_tried_again_and_dies_as_a_tombstone",
    "order is asked for, and there is no key": (
        f"{RECORDS}::test_records_without_a_key_wait_for_nobody_though_order_is_asked_for"
    ),
    "two services share their dead letters": f"{TOPICS}::test_two_services_may_share_their_dead_letters",
    "kill -9 at any moment": "tests/dlq/kill/test_kill.py::test_few_kills",
    "an end at any step": "tests/dlq/kill/test_steps.py::test_killed_at_every_third_step",
}


@pytest.mark.parametrize("test", TABLE.values(), ids=TABLE)
def test_each_has_its_test(test: str) -> None:
    check_named(test)

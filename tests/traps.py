"""What Kafka's clients trip over when a server does the obvious thing: the table of traps.md.

Each row was seen with real clients, or is what Kafka's broker does and its clients rely on; it names the tests that
hold it. ``python -m pytest tests/test_traps.py --rewrite`` writes the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.named import link, said


class Trap(NamedTuple):
    """One way to lose a client."""

    name: str
    """What a server must do."""
    otherwise: str
    """What happens if it does not."""
    tests: tuple[str, ...]
    """``path::name`` of test functions, below the root of the checkout."""


S, T, P = "tests/server/", "tests/clients/", "tests/protocol/"

VERSIONS = (
    Trap("Produce is told from version 0, FindCoordinator too, though Produce is served from 3 on (KAFKA-18659)",
         "librdkafka before 2.11 sends gzip, snappy and lz4 uncompressed, without a word",
         (S + "test_api_versions.py::test_produce_is_told_from_version_0_or_old_librdkafka_sends_uncompressed_records",
          T + "test_kcat.py::test_it_compresses")),
    Trap("Low versions stay: Metadata from 0, Fetch from 4",
         "librdkafka 2.0 gets no metadata, or cannot even produce; aiokafka's fetcher dies",
         (S + "test_api_versions.py::test_every_version_tells_the_ranges",
          S + "test_fetch.py::test_every_version_gives_batches_as_they_lie_in_the_log",
          S + "test_metadata.py::test_the_one_broker_is_told_where_it_is_advertised",
          T + "test_kcat.py::test_it_produces_and_consumes")),
    Trap("What KafkaJS sends is served whatever the range begins with: Metadata 6, ListOffsets 3, Produce 7, Fetch 11",
         "it ignores advertised minimums, and hangs in retries",
         (S + "test_api_versions.py::test_the_versions_of_clients_that_do_not_negotiate_are_served",
          S + "test_produce.py::test_every_version_stores_and_says_where",
          S + "test_list_offsets.py::test_ends_starts_and_times_in_every_version",
          T + "test_clients.py::test_what_is_produced_is_consumed_once_and_in_order")),
    Trap("Requests are served to who never asked for versions",
         "Sarama sends Metadata v9 or v10 before ApiVersions",
         (S + "test_api_versions.py::test_a_client_may_ask_without_having_asked_for_versions",)),
    Trap("Old and new encodings of the same request are both served",
         "aiokafka speaks transactions in version 0, KafkaJS stops at Fetch 11, franz-go begins at Fetch 18",
         (P + "test_oracle.py::test_kio_reads_and_writes_the_same_bytes",
          S + "test_transactions.py::test_a_transaction_in_every_version",
          S + "test_groups.py::test_join_sync_heartbeat_commit_leave_in_every_version",
          S + "test_offsets.py::test_commit_and_fetch_in_every_version")),
    Trap("An unknown version of ApiVersions is answered in version 0, error 35, with ApiVersions' own range",
         "librdkafka, kafka-python and Java never connect",
         (S + "test_api_versions.py::test_an_unknown_version_is_answered_in_version_0_with_our_own_range",)),
    Trap("The answer to ApiVersions has the header of version 0, also when its body is flexible",
         "the answer is one byte off",
         (S + "test_api_versions.py::test_the_answers_header_is_that_of_version_0_also_in_flexible_versions",
          P + "test_headers.py::test_the_response_header_of_api_versions_never_has_tags")),
    Trap("Request header 2 keeps `client_id` as a string of the old kind, then come its tagged fields",
         "no flexible request can be read",
         (P + "test_headers.py::test_headers_are_those_of_the_version",
          P + "test_headers.py::test_tagged_fields_in_a_header_are_passed_over")),
    Trap("Telemetry (71, 72) is not told of", "librdkafka calls it and logs a line for every client",
         (S + "test_api_versions.py::test_telemetry_is_not_told_or_librdkafka_logs_a_line_for_each_client",)),
    Trap("`transaction.version` 2 is announced at a features epoch of 0 or more, with Produce 12, EndTxn and "
         "TxnOffsetCommit 5; before ApiVersions 4 not as a supported feature",
         "the Java client uses the old transactions, and does not survive a timeout of one",
         (S + "test_api_versions.py::test_transactions_v2_are_announced_with_the_requests_that_they_need",
          S + "test_transactions.py::test_trap_a_producer_of_transactions_v2_continues_after_a_timeout")),
    Trap("InitProducerId is there", "librdkafka fails for good, and Java aborts: their producers are idempotent",
         (S + "test_api_versions.py::test_idempotent_producers_find_what_they_need",)),
    Trap("Error codes are ones the request's version knows: PRODUCER_FENCED from InitProducerId 4 and EndTxn 2 on",
         "aiokafka and KafkaJS do not see that they are fenced",
         (S + "test_transactions.py::test_trap_who_is_fenced_is_told_so_in_a_code_its_version_knows",
          S + "test_transactions.py::test_trap_init_by_a_fenced_producer",
          S + "test_wire_transactions.py::test_an_aiokafka_producer_that_is_replaced_is_fenced")),
)  # fmt: skip

RECORDS = (
    Trap("An answer to Fetch lists every partition asked for, whatever its budget",
         "Java and kafka-python throw the whole answer away: nobody gets anywhere",
         (S + "test_fetch.py::test_every_partition_asked_for_is_in_the_answer_whatever_the_limits",
          S + "test_fetch.py::test_small_limits_starve_no_partition")),
    Trap("It begins with the whole batch that holds the offset, and holds at least one whatever the limits",
         "a reader stands still before a large batch",
         (S + "test_fetch.py::test_an_offset_inside_a_batch_gives_the_whole_batch",
          S + "test_fetch.py::test_the_first_batch_may_be_larger_than_all_limits_and_no_other")),
    Trap("`session_id` 0 in every answer: no sessions, full requests", "a session half kept loses partitions",
         (S + "test_fetch.py::test_no_session_is_kept_so_every_request_is_complete",)),
    Trap("Topic ids are stable over a restart and new for a topic made anew; Fetch 13 goes by them, Produce by names",
         "a client reads another topic under an old name, or finds none",
         (S + "test_metadata.py::test_ids_outlive_a_restart_and_die_with_their_topic",
          S + "test_metadata.py::test_topics_by_id",
          S + "test_fetch.py::test_what_is_not_there_is_said_at_once",
          S + "test_api_versions.py::test_every_version_tells_the_ranges")),
    Trap("A time leads to the record, not to its batch; so does the largest time", "readers begin too early, or late",
         (S + "test_list_offsets.py::test_by_time_the_record_is_found_not_its_batch",
          S + "test_list_offsets.py::"
          "test_times_are_looked_up_in_records_also_when_they_are_compressed_and_out_of_order")),
    Trap("In a compacted topic a record without a key is refused, and named",
         "it can never be compacted, or one bad record costs the others",
         (S + "test_produce.py::test_records_without_key_in_a_compacted_topic_are_named_one_by_one",)),
    Trap("Compaction leaves gaps: an offset that is gone leads on to the next", "a reader stops there for ever",
         (S + "test_list_offsets.py::test_offsets_that_compaction_took_lead_to_the_next_record",
          "tests/log/test_cleaner.py::test_the_last_record_of_each_key_stays_where_it_was")),
    Trap("DeleteRecords may cut inside a batch", "too much is deleted, or too little",
         (S + "test_list_offsets.py::test_records_are_deleted_up_to_an_offset_also_inside_a_batch",)),
    Trap("acks=0 has no answer at all; what fails ends the connection", "all answers after it are taken for others",
         (S + "test_produce.py::test_acks_0_is_never_answered_and_the_next_answer_is_the_next_requests",
          S + "test_produce.py::test_what_fails_with_acks_0_ends_the_connection")),
)  # fmt: skip

GROUPS = (
    Trap("OffsetFetch of an unknown group: offset -1, empty metadata, no error",
         "consumers of librdkafka and KafkaJS fail before their first commit",
         (S + "test_offsets.py::test_trap_an_unknown_group_has_no_offsets_and_no_error",)),
    Trap("JoinGroup 4 and later without a member id: MEMBER_ID_REQUIRED, with an id",
         "members that died are waited for",
         (S + "test_groups.py::test_trap_a_new_member_is_given_its_id_first_from_v4_on",)),
    Trap('A text that may be null in later versions only is "" before', "old clients cannot read the answer",
         (S + "test_groups.py::test_trap_a_protocol_name_that_cannot_be_null_is_empty",
          P + "test_codec.py::test_null_is_empty_where_a_version_has_no_null")),
    Trap("Metadata of a commit comes back as it was, never as null", "KafkaJS and Sarama notice",
         (S + "test_offsets.py::test_trap_metadata_comes_back_as_it_was_up_to_4096_characters",)),
    Trap("Offsets below zero are stored", "KafkaJS resets groups by -1 and -2",
         (S + "test_offsets.py::test_trap_an_offset_below_zero_is_kept_as_kafka_keeps_it",)),
    Trap("Offsets that an open transaction may change are unstable to who asks for stable ones",
         "a consumer begins before what the transaction has read",
         (S + "test_offsets.py::test_trap_offsets_an_open_transaction_may_change_are_unstable",)),
    Trap("A parked request that is replaced by a newer one is answered too", "the answers after it never leave",
         (S + "test_groups.py::test_trap_a_join_asked_once_more_on_one_connection_answers_the_first_too",)),
    Trap("A consumer that is assigned nothing gets an assignment all the same", "clients cannot decode no bytes",
         (S + "test_groups.py::test_trap_a_consumer_that_is_assigned_nothing_gets_an_assignment_it_can_read",)),
    Trap("A static member that comes back under a new id fences the old one; a leader of before JoinGroup 9 is told to "
         "assign nothing", "two read the same partitions, or the group assigns twice",
         (S + "test_groups.py::test_trap_a_static_member_under_a_new_id_fences_the_old_one",
          S + "test_groups.py::test_trap_a_static_leader_of_before_v9_must_not_assign_when_it_comes_back")),
    Trap("One bad partition in AddPartitionsToTxn, and the others are OPERATION_NOT_ATTEMPTED",
         "a client writes where nothing was registered",
         (S + "test_transactions.py::test_trap_one_bad_partition_and_the_others_are_not_attempted",)),
    Trap("Offsets that arrive after the end of their transaction do not begin the next one",
         "a transaction nobody ends",
         (S + "test_transactions.py::test_trap_offsets_that_come_late_do_not_begin_the_next_transaction",)),
    Trap("A transaction that times out is aborted, its producer fenced", "its late commit would be of half of it",
         (S + "test_transactions.py::test_trap_a_transaction_that_times_out_is_aborted_and_its_producer_fenced",)),
    Trap("InitProducerId aborts what the producer before left open, first",
         "a new producer commits the records of the dead one",
         (S + "test_transactions.py::test_trap_a_new_producer_aborts_what_the_one_before_left_open",)),
)  # fmt: skip

CONNECTIONS = (
    Trap("Answers leave in the order of the requests, also past a fetch that waits and a produce that is flushed",
         "clients take one answer for another, or close the connection",
         (S + "test_connection.py::test_answers_leave_in_the_order_of_the_requests",
          S + "test_fetch.py::test_answers_keep_their_order_behind_a_fetch_that_waits",
          S + "test_produce.py::test_answers_leave_in_the_order_of_the_requests_whatever_each_waits_for")),
    Trap("Whoever goes while its request waits is dropped, and wakes nobody's error",
         "uvloop refuses to write to it: the producer that woke the dead consumer loses its connection",
         (S + "test_fetch.py::test_all_who_wait_are_woken_and_one_that_is_gone_disturbs_nobody",
          S + "test_connection.py::test_uvloop_serves_too",
          S + "test_connection.py::test_a_parked_request_of_a_peer_that_has_gone_is_dropped")),
    Trap("Metadata tells the address that clients can reach, of the listener they came by",
         "clients find the server once, and then never again",
         (S + "test_metadata.py::test_the_one_broker_is_told_where_it_is_advertised",
          S + "test_connection.py::test_listeners_tell_each_client_where_it_came_from")),
    Trap("A real Kafka is asked: what it answers was recorded, or is compared while both run",
         "what seems right is not what clients know",
         (S + "test_group_answers.py::test_every_answer_is_kafkas",
          S + "test_consumer_group_answers.py::test_every_answer_is_kafkas_but_for_a_few",
          S + "test_acls_oracle.py::test_every_decision_is_kafkas",
          T + "test_security_answers.py::test_the_answers_are_kafkas")),
)  # fmt: skip

SECTIONS = {
    "Versions": VERSIONS, "Records": RECORDS, "Groups and transactions": GROUPS, "Connections": CONNECTIONS,
}  # fmt: skip


def render(path: Path) -> str:
    """The page, with links from ``path``."""
    lines = [
        "# What Kafka's clients trip over",
        "",
        "What a server of Kafka's protocol must do though it is not obvious, what clients make of it otherwise, and",
        "the tests that hold it. Drawn from `tests/traps.py`; a test looks every name up.",
    ]
    for title, traps in SECTIONS.items():
        lines += ["", f"## {title}", "", "| the server | otherwise | tests |", "|---|---|---|"]
        for trap in traps:
            tests = " · ".join(f"[{said(test)}]({link(test.partition('::')[0], source=path)})" for test in trap.tests)
            lines.append(f"| {trap.name} | {trap.otherwise} | {tests} |")
    return "\n".join(lines) + "\n"

"""What people look for who come from Kafka's books and clients, and where it is here: the table of checklist.md.

A row names the tests that prove its answer, the examples that show it, and the page that explains it; the test of this
table finds them all. ``python -m pytest tests/test_checklist.py --rewrite`` writes the page.
"""

from __future__ import annotations

from pathlib import Path

from tests.checklist_basics import CONCEPTS, SETTINGS
from tests.checklist_rows import MARK, Row, Section
from tests.checklist_schemas import SCHEMA_TOOLS, SCHEMAS
from tests.checklist_spark import PIPELINES
from tests.named import link, said

__all__ = ["CORRECTIONS", "SECTIONS", "Row", "Section", "render"]

C, B, K, L = "tests/client/", "tests/broker/", "eventbus/testing/conformance/", "tests/cli/"
S, T, X, R = "tests/server/", "tests/clients/", "tests/kafka/", "tests/schema_registry/"
D = "tests/dlq/"
N = "tests/outbox/"
W = L + "test_over_the_wire.py::"

PRODUCERS = Section(
    "Producers", 49, 84,
    (
        Row(49, "bootstrap.servers, several brokers", "answered",
            "the URL names them, `kafka://one:9092,two:9092`; the embedded log has no servers: its "
            "URL is a directory",
            (X + "test_settings.py::test_brokers",
             X + "test_looking.py::test_other_brokers_are_asked_when_the_first_is_away",
             X + "test_faults_refused.py::test_a_broker_that_sends_its_clients_to_where_nobody_is",
             L + "test_app.py::test_kafkas_flags_name_the_log_and_the_old_ones_warn"), (), "kafka-faults.md#at-start"),
        Row(50, "client.id", "answered", '`EventBus(client_id="billing")`; members of a group show it in '
            "`eventbus groups describe`",
            (L + "test_groups.py::test_describe_shows_members_and_who_is_idle",)),
        Row(51, "key.serializer, value.serializer", "answered",
            "chosen by type: str, int (Kafka's long), bytes, JSON for everything else, `serdes.Avro` where it is asked "
            "for; bytes equal to Kafka's",
            ("tests/serdes/test_primitives.py::test_known_bytes",
             "tests/serdes/test_choose.py::test_what_is_written_is_read",
             C + "test_checklist_producer.py::test_one_topic_takes_values_of_many_types_and_headers_in_order",
             C + "test_avro.py::test_keys_and_values_by_annotation"),
            ("23_mixed_serdes.py",), "schemas.md#the-first-avro-event"),
        Row(52, "a serializer class of one's own", "answered", "two methods, given to the bus by type; for keys too",
            ("tests/serdes/test_choose.py::test_a_custom_serde_holds_for_derived_types_both_ways",),
            ("05_custom_serde.py", "11_ebike_factory.py"), "publishing.md#formats-of-ones-own"),
        Row(53, "changing the format of a topic", "answered",
            "not in place: a schema that old readers, or old records, do not fit is refused when the bus starts; "
            "`eventbus schema check` tells it before the merge, with the line and the consumers that break",
            (C + "test_avro.py::test_a_schema_that_the_registry_refuses",
             R + "tools/test_check.py::test_a_change_that_breaks_names_the_line_and_the_consumers",
             R + "tools/test_commands.py::test_what_is_refused_is_explained",
             L + "test_demo.py::test_twice_with_every_field_and_a_schema_that_evolves_and_is_refused"),
            ("22_avro_evolution.py",), "schemas.md#a-type-changes"),
        Row(54, "acks 0, 1, all", "answered", "0 does not wait, 1 is written, all (default) is on the disk; a count is "
            "refused, there is no quorum to count",
            (C + "test_producer.py::test_acks_zero_does_not_wait", C + "test_config.py::test_acks_two_is_explained",
             K + "producers.py::acks_that_cannot_be_are_refused"), (), "publishing.md#what-an-ack-means"),
        Row(55, "retries, retry.backoff.ms, delivery.timeout.ms", "answered", "on a Kafka as there; the embedded log "
            "has no network to retry over: it stores at once or says why not, and passes over the keys",
            (X + "test_settings.py::test_keywords_are_as_good_as_the_url",
             X + "test_faults_frames.py::test_records_whose_acks_are_lost_are_stored_once",
             C + "test_config.py::test_settings_of_a_network_are_passed_over_where_there_is_none"),
            (), "kafka.md#settings"),
        Row(56, "retriable and fatal errors", "answered", "`error.retriable`, `error.fatal`, `error.code` as Kafka's",
            (C + "test_checklist_producer.py::test_errors_say_whether_the_same_call_may_succeed_later",
             C + "test_bus.py::test_a_record_too_large_fails_alone"), (), "errors.md#errors"),
        Row(57, "SerializationException, BufferExhausted, InterruptException", "answered", "`SerializationError` and "
            "`BufferExhausted` before the record is accepted; a cancelled send leaves the producer usable",
            (C + "test_bus.py::test_a_value_without_a_json_form_is_refused_before_it_is_sent",
             C + "test_producer.py::test_a_cancelled_send_leaves_the_producer_usable",
             C + "test_regressions.py::test_a_send_under_wait_for_does_not_wedge_the_log"), (), "errors.md#errors"),
        Row(58, "max.in.flight.requests.per.connection", "answered", "batches of a partition are stored in the order "
            "they were sent, whatever is in flight; what happens elsewhere is shown",
            (C + "test_producer.py::test_order_is_kept_between_waiting_and_not_waiting",
             "tests/log/test_producers.py::test_a_refused_batch_changes_nothing"), ("07_retries_and_order.py",)),
        Row(59, "enable.idempotence: producer id, epoch, sequence", "answered",
            "on by default; a duplicate is answered "
            "with its first offset, a gap is refused, the last five batches are remembered",
            (C + "test_producer.py::test_idempotence_is_on_unless_acks_say_otherwise",
             B + "test_isolation.py::test_a_duplicate_is_stored_once",
             "tests/log/test_producers.py::test_a_retry_after_a_restart_is_still_a_duplicate"),
            ("07_retries_and_order.py",), "publishing.md#transactions"),
        Row(60, "idempotence ends with the session", "answered", "a transactional id is the writer over restarts: who "
            "opens it last fences the others, what was open is aborted",
            (C + "test_transaction_faults.py::test_the_id_of_a_dead_producer_is_taken_over",
             C + "test_transactions.py::test_whoever_takes_an_id_over_fences_who_had_it"),
            (), "publishing.md#transactions"),
        Row(61, "batch.size, linger.ms, RecordAccumulator", "answered", "the same two triggers, per partition; "
            "`eventbus perf produce --print-metrics` tells how full batches were",
            (C + "test_producer.py::test_batches_leave_when_full",
             C + "test_producer.py::test_linger_gathers_records_of_many_tasks_in_one_batch",
             L + "test_perf.py::test_metrics_tell_of_the_batches"), (), "settings.md#producers"),
        Row(62, "buffer.memory, max.block.ms", "answered", "`send` waits for room, `send_nowait` raises "
            "`BufferExhausted`, `await producer.wait_for_room()` goes on",
            (C + "test_producer.py::test_the_buffer_is_bounded", C + "test_producer.py::test_send_many_waits_for_room"),
            (), "settings.md#producers"),
        Row(63, "compression.type", "answered", "none, gzip, snappy, lz4, zstd; a batch is stored as it was sent",
            (C + "test_producer.py::test_every_codec_is_read_back",
            "tests/records/test_compression.py::test_round_trip",
             "tests/records/test_compression.py::test_snappy_as_java_writes_it")),
        Row(64, "a batch fails as a whole", "answered", "each of its records hears the same error",
            (C + "test_checklist_producer.py::test_records_of_a_batch_share_its_outcome",)),
        Row(65, "fire and forget, synchronous, asynchronous", "answered", "`send_nowait`, `await send`, "
            "`on_delivery=`; `send_many` is the fastest",
            (C + "test_producer.py::test_send_many_returns_when_all_is_stored",), ("03_three_ways_to_send.py",)),
        Row(66, "RecordMetadata", "answered", "what an awaited send returns: topic, partition, offset, timestamp_ms",
            (C + "test_checklist_producer.py::test_every_awaited_send_tells_topic_partition_offset_and_time",
             K + "producers.py::acks_say_where_a_record_landed")),
        Row(67, "a Callback class", "answered", "any callable of (metadata, error), called once",
            (C + "test_bus.py::test_send_nowait_calls_back_once_with_metadata",
             K + "producers.py::every_delivery_is_told_of_once"), ("03_three_ways_to_send.py", "11_ebike_factory.py")),
        Row(68, "sending to a partition by number", "answered", "`partition=2`; one that is not there is refused "
            "before anything is sent",
            (C + "test_checklist_producer.py::test_a_partition_that_is_not_there_is_refused_before_anything_is_sent",)),
        Row(69, "keys: murmur2 modulo partitions", "answered", "byte for byte as the Java client",
            ("tests/records/test_murmur2.py::test_as_other_clients",
             C + "test_partitioner.py::test_keys_go_where_other_kafka_clients_send_them")),
        Row(70, "round robin without a key", "answered", '`partitioner="round_robin"`',
            (C + "test_partitioner.py::test_round_robin",), ("18_sticky_partitioner.py",)),
        Row(71, "the sticky partitioner", "answered", "the default without a key; the partition changes with the bytes "
            "sent, so a pause between sends does not spread them",
            (C + "test_partitioner.py::test_without_a_key_a_partition_is_kept_for_a_batch",),
            ("18_sticky_partitioner.py",)),
        Row(72, "a Partitioner class: critical alerts to partition 0", "answered", "a function of (topic, key, value, "
            "partitions), a class, or its name as `module:Class`",
            (C + "test_partitioner.py::test_a_function_decides_alone",
             C + "test_partitioner.py::test_a_class_by_itself_or_by_its_name"),
            ("04_custom_partitioner.py", "11_ebike_factory.py")),
        Row(73, "partition_key, which is not the key", "answered", "`partition_key=` picks the partition and is not "
            "stored", (C + "test_partitioner.py::test_partition_key_is_not_the_key",)),
        Row(74, "a timestamp of one's own", "answered", "`timestamp_ms=`",
            (K + "records.py::timestamps_come_back",)),
        Row(75, "headers", "answered", "a mapping, or pairs when a name occurs twice; their order is kept",
            (K + "records.py::headers_come_back_in_order_and_more_than_once",
             C + "test_producer.py::test_headers_must_be_headers")),
        Row(76, "a hot partition; salting, composite keys", "answered", "`eventbus topics skew TOPIC` names the key; "
            "what to do is on the page",
            (L + "test_skew.py::test_a_key_that_is_used_too_much_is_named_with_its_partition",),
            (), "guide.md#hot-partitions"),
        Row(77, "interceptor.classes", "answered",
            "`new_producer(interceptors=[...])`, `new_consumer(interceptors=[...])` "
            "with Kafka's hooks; around handlers, middleware",
            (C + "test_interceptors.py::test_every_way_to_send_passes_through",
            C + "test_interceptors.py::test_consumers_show_what_they_read_and_commit"),
            (), "publishing.md#interceptors"),
        Row(78, "JMX metrics", "answered", "`/metrics` for Prometheus: handlers, producers, flushes, groups, outbox, "
            "retries, as `bus.metrics()` has them; a dashboard and alerts (`eventbus telemetry`)",
            (C + "test_metrics.py::test_commits_batches_and_flushes_are_counted",
             "tests/telemetry/test_prometheus.py::test_every_sample_is_read_back_as_it_was",
             "tests/telemetry/test_dashboard.py"
             "::test_every_metric_and_label_of_the_dashboard_and_the_alerts_is_emitted"), (),
            "telemetry.md#metrics"),
        Row(79, "ProducerConfig constants, importance", "answered",
            "keywords with Kafka's names; a wrong one names the "
            "nearest; `eventbus config list` and `explain` tell default, importance and meaning",
            (C + "test_config.py::test_wrong_settings", C + "test_config.py::test_kafkas_dotted_names_are_accepted",
             C + "test_config_sources.py::test_kafkas_dotted_names_are_options_of_handlers_in_a_file",
             "tests/cli/test_config.py::test_every_setting_of_ours_is_explained"),
            (),
            "configuration.md#names"),
        Row(80, "timeout.ms, metadata.fetch.timeout.ms, block.on.buffer.full", "answered",
            "gone since Kafka 0.9: taken as their successors, with a warning that names them",
            (C + "test_config.py::test_keys_that_kafka_removed_are_taken_as_their_successors_with_a_warning",), (),
            "configuration.md#keys-that-do-not-exist"),
        Row(81, "one producer, many threads", "answered", "one for all tasks of the loop; from other threads "
            "`bus.blocking()`", (C + "test_producer.py::test_many_tasks_each_keep_their_order",
             C + "test_blocking.py::test_threads_join_a_bus_that_runs"), (),
            "lifecycle.md#threads-and-plain-programs"),
        Row(82, "close() on exit", "answered",
            "`async with`: leaving flushes; `with bus.blocking()` for plain programs",
            (C + "test_bus.py::test_what_was_sent_without_waiting_is_stored_when_the_bus_is_left",
             K + "producers.py::closing_a_producer_stores_what_it_was_given",
             C + "test_blocking.py::test_a_plain_program_sends_reads_and_commits")),
        Row(83, "transactions and fencing", "answered", "`bus.transaction(id)`, or begin, send, send_offsets, commit, "
            "abort; for handlers one flag",
            (K + "transactions.py::a_commit_shows_all_partitions_and_topics",
             K + "transactions.py::offsets_are_committed_with_the_records",
             C + "test_transactions.py::test_whoever_takes_an_id_over_fences_who_had_it",
             C + "test_exactly_once.py::test_transfers_are_made_once",
             X + "test_faults_refused.py::test_a_zombie_is_fenced",
             "tests/cluster_faults/test_coordinators.py::test_what_commit_says_is_so"),
            ("06_exactly_once.py",), "publishing.md#transactions"),
        Row(84, "Flume and other programs that write to Kafka", "answered",
            "whatever speaks Kafka's protocol writes to `eventbus serve`, by the brokers' address alone",
            (T + "test_clients.py::test_what_is_produced_is_consumed_once_and_in_order",
             T + "test_kafka_tools.py::test_console_producer_and_consumer"), page="clients.md#the-clients-tried"),
    ),
)  # fmt: skip

CONSUMERS = Section(
    "Consumers and groups", 85, 131,
    (
        Row(85, "subscribe: names or a pattern", "answered", '`@bus.consumer(["a", "b"])`, `pattern="ord.*"`, '
            "`consumer.subscribe`; new topics that match are taken up",
            (C + "test_groups.py::test_topics_that_match_a_pattern_are_taken_up_and_given_up",
             C + "test_bus.py::test_a_pattern_takes_up_topics_created_later")),
        Row(86, "assign: partitions without a group", "answered", "`consumer.assign([...])`; partitions added later "
            "are not taken",
            (C + "test_checklist_consumer.py::test_partitions_added_later_are_not_taken_by_who_assigned_its_own",
             C + "test_consumer.py::test_kept_partitions_lose_nothing_when_others_are_assigned"),
            ("04_custom_partitioner.py",)),
        Row(87, "a partition is added while running", "answered", "the group takes it up, from its first record",
            (X + "test_promises.py::test_kafka",
             C + "test_groups.py::test_new_partitions_are_shared_and_read_from_their_beginning",
             C + "test_bus.py::test_partitions_added_while_running_are_read"), ("10_add_a_partition.py",)),
        Row(88, "the poll loop", "answered", "`await consumer.poll(timeout_ms, max_records)`, or `async for`; handlers "
            "need none", (C + "test_consumer.py::test_poll_returns_each_record_once_in_order_per_partition",
             C + "test_consumer.py::test_a_waiting_poll_returns_as_soon_as_a_record_comes",
             C + "test_consumer.py::test_async_iteration"), ("14_customer_countries.py",),
            "consuming.md#in-a-loop-of-your-own"),
        Row(89, "a consumer is not thread-safe", "answered", "and says so: a second task or another thread is refused",
            (C + "test_consumer.py::test_two_tasks_cannot_poll_one_consumer",
             C + "test_regressions_handlers.py::test_one_consumer_one_opening_one_thread")),
        Row(90, "several threads for one consumer", "answered",
            '`concurrency=32, order="key"`: keys side by side, each '
            "in its order; the commit waits for the first unfinished record",
            (C + "test_workers.py::test_a_key_keeps_its_order_and_others_run_beside_it",
            C + "test_workers.py::test_what_is_given_up_has_no_gaps"), ("19_concurrency_and_order.py",),
            "guide.md#concurrency-and-order"),
        Row(91, "group.id: every group gets everything", "answered", "`group=`",
            (X + "test_promises.py::test_kafka",
             C + "test_bus.py::test_two_groups_each_get_everything", K + "groups.py::groups_do_not_see_each_other",
             C + "test_checklist_consumer.py::test_a_group_is_behind_by_its_own_lag_alone"), ("13_two_teams.py",)),
        Row(92, "more consumers than partitions", "answered", "the ones too many are idle: a line in the log, and "
            "`eventbus groups describe` says who",
            (C + "test_groups.py::test_more_members_than_partitions_leave_some_idle_and_say_so",
             L + "test_groups.py::test_describe_shows_members_and_who_is_idle")),
        Row(93, "group coordinator, heartbeats, generations", "answered",
            "Kafka's classic protocol, inside the process",
            (C + "test_membership.py::test_heartbeats_go_out_at_their_interval_and_tell_of_rebalances",
             B + "test_groups.py::test_members_are_told_of_a_rebalance_and_join_again",
             B + "test_groups.py::test_groups_survive_restarts"), (), "consuming.md#groups"),
        Row(94, "heartbeat.interval.ms, session.timeout.ms, max.poll.interval.ms", "answered", "all three, with Java's "
            "defaults", (X + "test_settings.py::test_the_url_speaks_for_clients_that_say_nothing",
             C + "test_groups.py::test_a_member_whose_session_ended_hears_of_it_and_joins_again",
             C + "test_groups.py::test_who_does_not_poll_for_max_poll_interval_loses_its_partitions_and_may_come_back",
             C + "test_config.py::test_kafkas_consumer_keys"), (), "consuming.md#in-a-loop-of-your-own"),
        Row(95, "work that takes longer than the session", "answered", "a handler keeps its place as long as it takes: "
            "polling does not wait for it; `timeout=` is the limit, if there is to be one",
            (C + "test_checklist_consumer.py::test_a_handler_that_takes_longer_than_every_timeout_keeps_its_place",
             C + "test_checklist_consumer.py::test_a_call_that_takes_too_long_has_failed",
             C + "test_watch.py::test_a_plain_function_that_takes_too_long_stops_its_partition_at_once"), (),
            "guide.md#time-limits"),
        Row(96, "fetch.min.bytes, fetch.max.wait.ms", "answered", "long polls as in Kafka",
            (C + "test_consumer.py::test_fetch_min_bytes_gathers_and_max_wait_ends_it",
             K + "records.py::a_poll_waits_for_as_many_bytes_as_were_asked_for")),
        Row(97, "max.poll.records", "answered", "`poll(max_records=)`; for handlers `batch=100`",
            (C + "test_checklist_consumer.py::test_batches_and_polls_are_no_longer_than_asked_for",)),
        Row(98, "max_wait_time, concurrency (Karafka)", "answered",
            "`fetch_max_wait_ms` and `concurrency=`, per consumer",
            (C + "test_consumer.py::test_fetch_min_bytes_gathers_and_max_wait_ends_it",), (),
            "guide.md#concurrency-and-order"),
        Row(99, "auto.offset.reset", "answered", '`start="earliest"` (default), "latest", "none", "by_duration:PT1H"',
            (X + "test_promises.py::test_kafka",
             C + "test_consumer.py::test_start_none_without_a_commit_is_an_error",
             C + "test_consumer.py::test_start_by_duration",
             K + "records.py::a_group_without_offsets_begins_where_start_says"), (), "consuming.md#offsets"),
        Row(100, "enable.auto.commit", "answered", "there, and off: it commits what was polled, done or not",
            (C + "test_commits.py::test_automatic_commits_are_off",
             C + "test_commits.py::test_automatic_commits_lose_what_is_still_at_work"),
            ("08_auto_commit_loses_work.py",), "consuming.md#in-a-loop-of-your-own"),
        Row(101, "auto.commit.offset, auto.commit.interval", "answered", "misspelt in many a book: refused, naming the "
            "real key", (C + "test_config.py::test_misspelt_and_foreign_consumer_keys_name_the_real_one",
             C + "test_config_sources.py::test_an_unknown_variable_is_warned_of_once",
             "tests/cli/test_config.py::test_a_key_that_is_none_names_the_right_one"), (),
            "configuration.md#keys-that-do-not-exist"),
        Row(102, "commitSync", "answered", "`await consumer.commit()`: on the disk when it returns",
            (C + "test_consumer.py::test_commit_covers_what_poll_returned_and_no_more",
             K + "groups.py::committed_offsets_survive_a_kill")),
        Row(103, "commitAsync with a callback", "answered",
            "`consumer.commit_nowait(callback=...)`, by Kafka's name `commit_async`",
            (C + "test_commits.py::test_a_commit_nobody_waits_for_tells_its_outcome",
             C + "test_consumer.py::test_commit_async_is_commit_nowait")),
        Row(104, "a sequence number, so that a retry does not go back", "answered", "built in: a retry that has become "
            "stale is dropped", (C + "test_commits.py::test_a_stale_retry_is_dropped_when_a_newer_commit_exists",)),
        Row(105, "commitAsync in the loop, commitSync at the end", "answered",
            "what handlers do by themselves; in a loop "
            "of one's own it reads the same",
            (C + "test_commits.py::test_the_pattern_of_the_books_commits_in_the_loop_and_waits_at_the_end",), (),
            "consuming.md#in-a-loop-of-your-own"),
        Row(106, "commit every 1,000 records, with metadata", "answered",
            "`commit({partition: OffsetAndMetadata(...)})`; "
            "for handlers `commit_every=1000`",
            (C + "test_commits.py::test_a_commit_every_so_many_records_with_a_note",
             C + "test_checklist_consumer.py::test_a_commit_every_so_many_records_does_not_wait_for_its_time",
             K + "groups.py::metadata_is_kept_beside_an_offset"), (), "guide.md#delivery"),
        Row(107, "CommitFailedException", "answered", "named by reason: `RebalanceInProgress`, `IllegalGeneration`, "
            "`UnknownMemberId`, `FencedInstanceId`; handlers deal with it",
            (C + "test_groups.py::test_commits_of_an_old_generation_are_refused",
             C + "test_runner.py::test_a_commit_that_the_group_refuses_gives_the_lane_up_with_one_line"), (),
            "consuming.md#in-a-loop-of-your-own"),
        Row(108, "mark_as_consumed, mark_as_consumed! (Karafka)", "answered", '`ack="manual"`: `record.ack()`, and '
            "`await record.ack_now()`, which returns when it is stored",
            (C + "test_ack.py::test_a_record_is_finished_when_it_is_acknowledged",
            C + "test_ack.py::test_ack_now_returns_when_the_commit_is_stored"), ("20_manual_acks.py",),
            "guide.md#acknowledging-by-hand"),
        Row(109, "position, committed, end, lag", "answered", "`position`, `committed`, `end_offsets`, `lag`, "
            "`uncommitted`; `eventbus offsets TOPIC --group G`",
            (C + "test_commits.py::test_position_committed_end_gap_and_lag",
             L + "test_offsets.py::test_a_group_shows_what_it_has_committed_and_its_lag"), (), "consuming.md#offsets"),
        Row(110, "last read, or next to read?", "answered", "always the next one; `record.next_offset`, no `+ 1`",
            (C + "test_consumer.py::test_commit_covers_what_poll_returned_and_no_more",), (), "consuming.md#offsets"),
        Row(111, "seek, to the beginning, the end, a time", "answered", "`seek`, `seek_to_beginning`, `seek_to_end`, "
            "`seek_to_time`; `eventbus groups reset-offsets`",
            (C + "test_consumer.py::test_seeking", C + "test_consumer.py::test_seek_by_time",
             L + "test_groups.py::test_where_to")),
        Row(112, "ConsumerRebalanceListener; offsets in a database", "answered",
            "`on_revoked`, `on_assigned`, `on_lost`; "
            "`tx=Session` or `outbox.SqlOffsets` keep offsets beside the rows",
            (C + "test_groups.py::test_offsets_kept_in_a_database_are_found_again_by_a_seek",
             C + "test_groups.py::test_a_listener_may_commit_before_it_gives_up_and_nothing_is_read_twice",
             N + "test_offsets.py::test_two_that_believe_to_own_a_partition_write_each_record_once"),
            ("15_offsets_in_a_database.py", "25_bank_transfer.py"), "outbox.md#the-inbox"),
        Row(113, "poll(0), then assignment()", "answered", "`await consumer.assigned()`; no record is lost by it",
            (C + "test_groups.py::test_assigned_waits_and_keeps_what_it_fetched",)),
        Row(114, "range, round robin, sticky, cooperative-sticky", "answered",
            "the four, with the figures of the courses "
            "as tests", (X + "test_promises.py::test_kafka",
             B + "test_assignors.py::test_eight_partitions",
             B + "test_assignors.py::test_range_and_round_robin_are_those_of_kafka_python"), (), "consuming.md#groups"),
        Row(115, "an assignor of one's own", "answered", "an object with Kafka's methods",
            (C + "test_groups.py::test_an_assignor_of_ones_own",)),
        Row(116, "eager and cooperative rebalances", "answered", "both; the example prints who stopped",
            (C + "test_groups.py::test_an_eager_rebalance_stops_everything",
             C + "test_groups.py::test_a_cooperative_rebalance_stops_only_what_moves"), ("09_rebalance.py",),
            "consuming.md#groups"),
        Row(117, "group.instance.id", "answered", "a member that is back within its session keeps its partitions",
            (X + "test_promises.py::test_kafka",
             C + "test_groups.py::test_a_static_member_that_restarts_within_its_session_keeps_its_partitions",
             C + "test_groups.py::test_the_older_of_two_members_with_one_static_id_is_fenced"), ("09_rebalance.py",)),
        Row(118, "why did it rebalance, and for how long?", "answered",
            "`eventbus groups events GROUP`: when, who came or went, how much moved. Each member logs "
            "its reason and how long it took (logger `eventbus.group`)",
            (L + "test_group_events.py::test_who_came_who_went_and_what_moved",
             L + "test_group_events.py::test_a_cooperative_rebalance_has_two_rounds",
             C + "test_checklist_consumer.py::test_members_log_why_they_rebalanced_and_for_how_long")),
        Row(119, "wakeup() and the shutdown hook", "answered", "cancellation; a signal drains, commits and leaves the "
            "group at once, a second one stops; exit codes tell how it went",
            (L + "test_run.py::test_a_service_runs_until_a_signal_and_commits",
             L + "test_run_signals.py::test_work_that_outlasts_the_drain_timeout_has_a_code_of_its_own",
             C + "test_signals.py::test_the_second_signal_stops_at_once",
             C + "test_groups.py::test_a_cancelled_task_leaves_at_once"), (), "running.md#signals-and-exit-codes"),
        Row(120, "replay with a random group", "answered",
            "`eventbus replay shop:bus HANDLER --from-beginning`: a group "
            "that is thrown away; or `groups reset-offsets`",
            (L + "test_replay.py::test_from_the_beginning_leaves_the_services_own_offsets_alone",
             L + "test_replay.py::test_outputs_are_published_again_only_when_that_is_wanted"),
            ("12_wrong_formula_then_replay.py",), "guide.md#replays"),
        Row(121, "console-consumer-12345", "answered",
            "the console consumer joins no group unless asked to, so there is "
            "nothing to clean up", (L + "test_groups.py::test_a_console_consumer_without_a_group_leaves_none_behind",)),
        Row(122, "at most once, at least once, exactly once", "answered", '`delivery="..."`: where the commit stands',
            ("tests/testing/test_crash_points.py::test_at_least_once_loses_nothing",
             "tests/testing/test_crash_points.py::test_at_most_once_may_lose_and_never_repeats",
             "tests/testing/test_crash_points.py::test_exactly_once_outputs_are_there_once",
             C + "test_exactly_once.py::test_power_cuts_at_any_call"), ("06_exactly_once.py",), "guide.md#delivery"),
        Row(123, "an idempotent consumer", "answered",
            "`tx=Session`: what a handler writes and its record's offset are one transaction, "
            "without a window of time; `Inbox(message_ids=...)` for senders that repeat themselves",
            (N + "inbox/test_kill.py::test_a_service_that_is_killed_counts_each_record_once",
             N + "inbox/test_counting.py::test_each_record_counts_once",
             N + "bank/test_bank.py::test_no_money_is_lost_or_made_when_the_bank_is_killed"),
            ("25_bank_transfer.py", "15_offsets_in_a_database.py"), "outbox.md#the-inbox"),
        Row(124, "isolation.level", "answered", "`read_committed` is the default",
            (X + "test_promises.py::test_kafka",
             K + "transactions.py::readers_stop_at_the_oldest_open_transaction",
             K + "transactions.py::nothing_of_an_aborted_transaction_is_ever_committed",
             C + "test_transactions.py::test_nothing_is_seen_before_the_commit_and_everything_after"), (),
            "publishing.md#transactions"),
        Row(125, "consume, process, produce in one transaction", "answered", "`exactly_once=True`",
            (C + "test_exactly_once.py::test_a_chain_of_services",
             "tests/faults/test_exactly_once_crashes.py::test_crashes"), ("06_exactly_once.py",),
            "guide.md#exactly-once"),
        Row(126, "an outbox between database and topic", "answered",
            "`outbox.publish(session, ...)`: the event is a row of your transaction; "
            "a relay publishes it once, in order",
            (N + "bank/test_bank.py::test_no_money_is_lost_or_made_when_the_bank_is_killed",
             N + "saga/test_saga.py::test_orders_are_packed_or_undone_when_the_shop_is_killed"),
            ("25_bank_transfer.py", "26_saga.py", "29_fastapi_outbox.py"), "outbox.md#five-minutes"),
        Row(127, "retries with back-off, then a dead letter topic", "answered",
            '`retry=Retry(delays=["5s", "1m"])`: tries at once and later, keys in their order, then `dlq.<group>`; '
            "`eventbus dlq list`, `redrive`, `edit` for whoever mends it",
            (D + "runtime/ladder.py::tries_at_once_then_later_then_a_dead_letter",
             D + "runtime/orders.py::records_of_a_key_stay_in_order_and_others_go_on",
             D + "kill/test_kill.py::test_few_kills", D + "letters/test_redrive.py::test_second_redrive_sends_nothing",
             D + "cli/test_list.py::test_the_cases_of_each_topic_the_largest_first",
             L + "test_demo.py::test_what_fails_on_its_way_to_the_board_is_tried_again_or_dead_and_redriven"),
            ("24_retry_and_dead_letters.py",), "failures.md#five-minutes"),
        Row(128, "long work in stages", "answered", "a topic between them", (), ("17_crawler_in_two_stages.py",)),
        Row(129, "scaling by lag", "answered", "KEDA or an autoscaler asks Prometheus for "
            "`eventbus_handler_lag_records`, or for the age of the oldest record; the page has the files",
            (L + "test_groups.py::test_describe_shows_state_offsets_and_lag",
             "tests/telemetry/test_page.py::test_every_metric_that_the_pages_name_is_emitted",
             C + "test_metrics.py::test_the_oldest_record_that_is_not_finished_has_an_age"), (),
            "telemetry.md#scaling-by-lag"),
        Row(130, "ConsumerRecords by partition", "answered", "`records.by_partition()` of what a poll returned",
            (C + "test_checklist_consumer.py::test_what_a_poll_returned_sorted_by_partition",), (),
            "consuming.md#in-a-loop-of-your-own"),
        Row(131, "group, topic, partition: one offset", "answered", "`eventbus groups describe G --offsets`, "
            "`bus.admin.group_offsets(group)`", (L + "test_groups.py::test_describe_shows_state_offsets_and_lag",
             B + "test_offsets.py::test_what_is_stored_is_kafkas_format")),
    ),
)  # fmt: skip

COMMANDS = Section(
    "The command line", 132, 146,
    (
        Row(132, "kafka-topics --create --partitions --replication-factor --config", "answered",
            "the same line behind `eventbus`, on a directory or a server; or `eventbus topics create`",
            (L + "test_kafka_scripts.py::test_a_script_does_what_it_does",
             L + "test_topics.py::test_replicas_are_assigned_to_the_one_broker",
             W + "test_topics"),
            page="commands.md#kafkas-command-lines"),
        Row(133, "--list, --describe, their columns", "answered",
            "Kafka's lines; `--json` for programs; patterns of names and every filter",
            (L + "test_topics.py::test_create_list_describe_alter_delete",
             L + "test_topics.py::test_filters_of_describe",
             L + "test_topics.py::test_patterns_of_names_as_in_kafkas_tool")),
        Row(134, "--alter --partitions", "answered",
            "a topic grows; keyed records are warned of",
            (L + "test_topics.py::test_more_partitions_for_keyed_records_warns",
             W + "test_topics")),
        Row(135, "--delete", "answered",
            "with its records and every group's offsets",
            (L + "test_topics.py::test_a_name_that_is_there_is_no_pattern",
             W + "test_topics")),
        Row(136, "--zookeeper, --broker-list", "answered",
            "taken for `--bootstrap-server`, with a warning",
            (L + "test_app.py::test_kafkas_flags_name_the_log_and_the_old_ones_warn",)),
        Row(137, "kafka-console-producer", "answered",
            "prompt, keys, headers, every reader property; settings from files and flags",
            (L + "test_console.py::test_the_prompt_on_a_terminal",
             L + "test_console.py::test_round_trip_with_keys_and_headers",
             L + "test_console.py::test_the_producers_flags_properties_and_files")),
        Row(138, "kafka-console-consumer", "answered",
            "from the beginning, an offset, as a group; formatters and deserializers by their names",
            (L + "test_console.py::test_where_to_start",
             L + "test_console.py::test_deserializers_by_their_names",
             L + "test_console.py::test_topics_by_pattern",
             L + "test_console.py::test_the_consumers_flags_properties_and_files")),
        Row(139, "kafka-get-offsets", "answered",
            "by time, pattern of topics and partitions",
            (L + "test_offsets.py::test_by_time_in_the_lines_of_kafkas_tool",
             L + "test_offsets.py::test_topics_and_partitions_by_pattern")),
        Row(140, "kafka-consumer-groups --list --describe", "answered",
            "state, members, offsets, lag, who is idle; of one group or all",
            (L + "test_groups.py::test_describe_shows_state_offsets_and_lag",
             L + "test_groups.py::test_several_groups_and_all_of_them",
             W + "test_records_offsets_and_groups")),
        Row(141, "--reset-offsets, every way", "answered",
            "shown first, done with `--execute`; plans go to a file and come from one",
            (L + "test_groups.py::test_where_to",
             L + "test_groups.py::test_a_plan_is_exported_changed_and_taken_from_its_file",
             L + "test_groups.py::test_a_group_with_members_is_left_alone")),
        Row(142, "kafka-producer-perf-test, kafka-consumer-perf-test", "answered",
            "Kafka's lines; transactions, warm-up, payload files",
            (L + "test_perf.py::test_produce_prints_the_line_of_kafkas_tool",
             L + "test_perf.py::test_transactions_of_a_producer",
             L + "test_perf.py::test_the_consumers_settings_metrics_and_details",
             W + "test_perf_and_transactions")),
        Row(143, "kafka-dump-log", "answered",
            "batches, records, indexes, snapshots; committed offsets, transactions, metadata decoded",
            (L + "test_logs.py::test_dump_in_the_words_of_kafkas_tool",
             L + "test_logs.py::test_flags_of_kafkas_dump_tool",
             L + "test_logs.py::test_committed_offsets_and_groups_are_decoded",
             L + "test_logs.py::test_transactions_are_decoded")),
        Row(144, "kafka-server-start, kafka-server-stop", "answered",
            "`eventbus serve`, with the same server.properties; Ctrl-C or SIGTERM stops it in order",
            (L + "test_serve.py::test_it_serves_until_a_signal_and_leaves_the_log_in_order",
             L + "test_serve.py::test_a_server_properties_file"),
            page="serve.md#settings"),
        Row(145, "docker-compose files, cleaning up", "answered",
            "there is nothing to compose; `eventbus serve --ephemeral` leaves nothing behind, and a directory "
            "survives restarts",
            (L + "test_serve.py::test_nothing_is_kept_of_an_ephemeral_log",
             S + "test_shared_log.py::test_what_a_bus_sends_a_client_reads"),
            page="serve.md#in-tests"),
        Row(146, "running it on Windows", "partly",
            "pure Python, so the package installs there; its tests have not been run there, nor has its server"),
    ),
)  # fmt: skip

DEMOS = Section(
    "Things to try", 166, 183,
    (
        Row(166, "hello, producer and consumer", "answered", "one file; `memory://` and `file://` with the same code",
            (L + "test_examples.py::test_hello_runs_on_a_file_too_and_again",), ("01_hello.py",)),
        Row(167, "order: 3 partitions, 100 keyed records", "answered", "what is in order, and what is not", (),
            ("02_ordering.py",)),
        Row(168, "a retry puts records out of order", "answered",
            "unless the producer is idempotent: both, over a network that loses something; a handler's tries keep each "
            'key\'s order, or not: `Retry(order="key")` or "none"',
            (D + "runtime/orders.py::records_of_a_key_stay_in_order_and_others_go_on",
             D + "runtime/orders.py::nothing_waits_where_no_order_is_kept"), ("07_retries_and_order.py",)),
        Row(169, "automatic commits lose work", "answered", "a crash in the middle, with and without", (),
            ("08_auto_commit_loses_work.py",)),
        Row(170, "two consumers, three partitions", "answered", "eager, cooperative, static: who stops", (),
            ("09_rebalance.py",)),
        Row(171, "add a partition while consuming", "answered", "it is taken up, and keys move", (),
            ("10_add_a_partition.py",)),
        Row(172, "a perf test against a running consumer", "answered",
            "`eventbus perf produce` and `consume`, side by side on `eventbus serve`",
            (L + "test_perf.py::test_produce_prints_the_line_of_kafkas_tool", W + "test_perf_and_transactions",
             L + "test_perf.py::test_a_group_commits_what_was_read"), (), "publishing.md#measuring"),
        Row(173, "three brokers, one of them dies", "answered",
            "on a cluster of the program's own: who leads, what the ISR says, and that nothing is lost",
            ("tests/failover/test_failover.py::test_the_example_tells_the_story_of_its_page",), ("21_failover.py",),
            "failover.md#the-exercise"),
        Row(174, "the e-bike factory", "answered", "audit, trends and alerts, each with the guarantees it needs", (),
            ("11_ebike_factory.py", "04_custom_partitioner.py", "05_custom_serde.py")),
        Row(175, "web clicks with a wrong formula", "answered", "replayed in a group of its own",
            (L + "test_replay.py::test_from_the_beginning_leaves_the_services_own_offsets_alone",),
            ("12_wrong_formula_then_replay.py",)),
        Row(176, "one HR topic, two teams", "answered", "each at its own pace", (), ("13_two_teams.py",)),
        Row(177, "customers by country", "answered", "a loop with a table in memory", (), ("14_customer_countries.py",
            )),
        Row(178, "offsets stored with the rows", "answered", "one database transaction for both: `tx=Session`, or "
            "`SqlOffsets` in a loop of your own",
            (N + "test_offsets.py::test_a_process_that_dies_between_any_two_steps_loses_and_doubles_nothing",
             N + "bank/test_bank.py::test_no_money_is_lost_or_made_when_the_bank_is_killed"),
            ("15_offsets_in_a_database.py", "25_bank_transfer.py"), "outbox.md#the-inbox"),
        Row(179, "a bank transfer", "answered",
            "over databases: debit and event, event and credit, one transaction each. Inside the log: `make demo` "
            "kills a bank in the middle of transfers and audits it",
            (L + "test_demo.py::test_the_bank_is_killed_in_the_middle_of_a_transfer_and_nothing_is_lost_or_doubled",
             N + "bank/test_bank.py::test_no_money_is_lost_or_made_when_the_bank_is_killed",
             N + "bank/test_bank.py::test_transfers_over_http"),
            ("25_bank_transfer.py", "06_exactly_once.py"), "outbox.md#what-holds-and-why"),
        Row(180, "a video: the pointer in the record, the file elsewhere", "answered", "the claim check", (),
            ("16_claim_check.py",)),
        Row(181, "a web crawler in two phases", "answered", "fetching and parsing scale apart", (),
            ("17_crawler_in_two_stages.py",)),
        Row(182, "file to topic to file", "answered",
            "two connectors of properties files: `eventbus connect standalone`",
            ("tests/connect/test_files.py::test_file_to_topic_to_file",
             "tests/connect/test_kills.py::test_each_line_and_each_row_is_there_once_after_kills"),
            ("33_file_to_topic_to_file.py",), "connect.md#five-minutes"),
        Row(183, "an invoices table to a topic", "answered",
            "what your programs write, through the outbox; tables that others write, by a SQL source: "
            "incrementing, timestamp, both, bulk",
            ("tests/connect/test_sql.py::test_each_row_comes_once_and_after_a_restart_too",
             "tests/connect/test_sql.py::test_types_and_times_of_each_database"),
            ("34_invoices_table.py", "25_bank_transfer.py"), "connect.md#tables"),
    ),
)  # fmt: skip

SECTIONS = (CONCEPTS, SETTINGS, PRODUCERS, CONSUMERS, COMMANDS, SCHEMA_TOOLS, SCHEMAS, PIPELINES, DEMOS)

CORRECTIONS = (
    ("`acks=2` waits for a quorum", "the values are 0, 1 and all (-1)"),
    ("consumers need ZooKeeper", "no client talks to it, and Kafka 4.0 removed it"),
    ("`auto.commit.offset=false`", "the key is `enable.auto.commit`"),
    ("`max.in.flight.requests`, `max.in.flight.requests.per.session`", "`max.in.flight.requests.per.connection`"),
    ("heartbeats are sent by `poll`", "in the background since 0.10.1 (KIP-62); the time between polls has a limit of "
     "its own, `max.poll.interval.ms`"),
    ("a session lasts 3, 10 or 30 seconds", "45 seconds by default since Kafka 3.0"),
    ("`acks=1` and no idempotence are the default", "`acks=all` and idempotence, since 3.0"),
    ("the default assignor is range", "range and cooperative-sticky, in this order, since 3.0"),
    ("the committed offset is that of the last record processed", "it is the *next* one to read: last + 1"),
    ("Kafka has no retries and no dead letters for consumers", "still true of plain consumers; share groups (4.x) "
     "redeliver and count attempts, Streams can hand bad records to a topic"),
    ("Avro records carry their schema", "Avro *files* do; a record carries the number of a schema in the registry"),
)  # fmt: skip
"""What older books and courses say, and what holds today."""


def render(path: Path) -> str:
    """The page, with links from ``path``."""
    lines = [
        "# From Kafka to here",
        "",
        "Where is ...? What people look for who know Kafka from books, courses or its own clients, and where it is",
        "here: the page that explains it, the example that shows it, the tests that prove it. *later* names the part",
        "that will bring it. The numbers are there to talk about a row. Drawn from `tests/checklist.py`; a test looks",
        "every name up.",
    ]
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", "| # | you look for | here | how | see |", "|---|---|---|---|---|"]
        lines += [_line(row, path) for row in section.rows]
    lines += ["", "## What older books say", "", "| there | today |", "|---|---|"]
    lines += [f"| {there} | {today} |" for there, today in CORRECTIONS]
    return "\n".join(lines) + "\n"


def _line(row: Row, path: Path) -> str:
    see = [f"[{_title(row.page)}]({link(row.page, source=path)})"] if row.page else []
    see += [f"[{name.removesuffix('.py')}]({link(f'examples/{name}', source=path)})" for name in row.examples]
    see += [f"[{said(test)}]({link(test.partition('::')[0], source=path)})" for test in row.tests]
    return f"| {row.number} | {row.item} | {MARK[row.status]} | {row.answer} | {' · '.join(see)} |"


def _title(page: str) -> str:
    return page.partition("#")[2].replace("-", " ")

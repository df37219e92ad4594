"""The keyword arguments of buses, clients and handlers, for type checkers and editors.

Import these classes to write a function that passes options on: ``def new_bus(**options: Unpack[BusOptions])``. Their
fields are written by ``python -m pytest tests/client/test_keywords.py --rewrite`` from `eventbus.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from eventbus.client.handling.middleware import Middleware
from eventbus.client.handling.options import Ack, Delivery, OnError, Order
from eventbus.client.interceptors import ConsumerInterceptor
from eventbus.client.partitioner import PartitionFunction
from eventbus.client.rebalance import Listener
from eventbus.coordinator.assignors import Assignor
from eventbus.durations import Duration, Milliseconds
from eventbus.recovery import FailurePolicy
from eventbus.types import Compression, ConsumerRecord, IsolationLevel, TopicPartition

OAuthCallback = Callable[[str], tuple[str, float]]
"""``(sasl.oauthbearer.config) -> (token, its expiry in seconds since the epoch)``, as in confluent-kafka."""
Start = Literal["earliest", "latest", "none"] | timedelta
"""The start of a group without a committed offset. A timedelta starts with records at most that old."""
Isolation = Literal["read_committed", "read_uncommitted"] | IsolationLevel
AssignorName = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]
Assignors = AssignorName | Assignor | type[Assignor] | Sequence[AssignorName | Assignor | type[Assignor]]
"""One assignor, or several in order of preference."""


class LogOptions(TypedDict, total=False):
    """Settings of a log that runs in this process. ``kafka://`` ignores them: they belong to the broker there."""

    fsync: Literal["commit", "interval", "os"]
    fsync_interval_ms: Milliseconds
    auto_create_topics: bool
    num_partitions: int
    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    offsets_retention_ms: Milliseconds
    offsets_retention_check_interval_ms: Milliseconds
    group_min_session_timeout_ms: Milliseconds
    group_max_session_timeout_ms: Milliseconds
    group_max_size: int
    group_initial_rebalance_delay_ms: Milliseconds
    group_consumer_session_timeout_ms: Milliseconds
    group_consumer_heartbeat_interval_ms: Milliseconds
    group_consumer_max_size: int
    transaction_state_log_num_partitions: int
    transaction_state_log_segment_bytes: int
    transaction_max_timeout_ms: Milliseconds
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Milliseconds
    transactional_id_expiration_ms: Milliseconds
    transaction_remove_expired_transaction_cleanup_interval_ms: Milliseconds
    producer_id_expiration_ms: Milliseconds
    log_retention_check_interval_ms: Milliseconds
    log_cleaner_backoff_ms: Milliseconds
    checkpoint_interval_ms: Milliseconds
    log_defaults: Mapping[str, str | int | float | bool | Sequence[str]]
    cluster_id: str | None


class ClientOptions(TypedDict, total=False):
    """librdkafka's settings of every client. Logs other than ``kafka://`` ignore them."""

    client_rack: str
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    debug: str
    topic_blacklist: str
    broker_address_family: Literal["any", "v4", "v6"]
    metadata_recovery_strategy: Literal["none", "rebootstrap"]
    security_protocol: Literal[
        "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "plaintext", "ssl", "sasl_plaintext", "sasl_ssl"
    ]
    ssl_cipher_suites: str
    ssl_curves_list: str
    ssl_sigalgs_list: str
    ssl_key_location: str
    ssl_key_password: str
    ssl_key_pem: str
    ssl_certificate_location: str
    ssl_certificate_pem: str
    ssl_ca_location: str
    ssl_ca_pem: str
    ssl_ca_certificate_stores: str
    ssl_crl_location: str
    ssl_keystore_location: str
    ssl_keystore_password: str
    ssl_providers: str
    ssl_engine_location: str
    ssl_engine_id: str
    https_ca_location: str
    https_ca_pem: str
    ssl_endpoint_identification_algorithm: Literal["none", "https"]
    sasl_mechanism: Literal["GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    sasl_kerberos_service_name: str
    sasl_kerberos_principal: str
    sasl_kerberos_kinit_cmd: str
    sasl_kerberos_keytab: str
    sasl_username: str
    sasl_password: str
    sasl_oauthbearer_config: str
    sasl_oauthbearer_method: Literal["default", "oidc"]
    sasl_oauthbearer_client_id: str
    sasl_oauthbearer_client_secret: str
    sasl_oauthbearer_scope: str
    sasl_oauthbearer_extensions: str
    sasl_oauthbearer_grant_type: str
    sasl_oauthbearer_token_endpoint_url: str
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_assertion_algorithm: str
    sasl_oauthbearer_assertion_claim_aud: str
    sasl_oauthbearer_assertion_claim_iss: str
    sasl_oauthbearer_assertion_claim_sub: str
    sasl_oauthbearer_assertion_file: str
    sasl_oauthbearer_assertion_jwt_template_file: str
    sasl_oauthbearer_assertion_private_key_file: str
    sasl_oauthbearer_assertion_private_key_passphrase: str
    sasl_oauthbearer_assertion_private_key_pem: str
    sasl_oauthbearer_metadata_authentication_type: str
    log_connection_close: bool
    topic_metadata_refresh_sparse: bool
    socket_keepalive_enable: bool
    socket_nagle_disable: bool
    enable_metrics_push: bool
    enable_ssl_certificate_verification: bool
    enable_sasl_oauthbearer_unsecure_jwt: bool
    sasl_oauthbearer_assertion_claim_jti_include: bool
    message_max_bytes: int
    receive_message_max_bytes: int
    max_in_flight_requests_per_connection: int
    metadata_max_age_ms: Milliseconds
    topic_metadata_refresh_interval_ms: Milliseconds
    topic_metadata_refresh_fast_interval_ms: Milliseconds
    topic_metadata_propagation_max_ms: Milliseconds
    socket_timeout_ms: Milliseconds
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_max_fails: int
    socket_connection_setup_timeout_ms: Milliseconds
    broker_address_ttl: int
    connections_max_idle_ms: Milliseconds
    reconnect_backoff_ms: Milliseconds
    reconnect_backoff_max_ms: Milliseconds
    retry_backoff_ms: Milliseconds
    retry_backoff_max_ms: Milliseconds
    statistics_interval_ms: Milliseconds
    api_version_request_timeout_ms: Milliseconds
    metadata_recovery_rebootstrap_trigger_ms: Milliseconds
    sasl_kerberos_min_time_before_relogin: int
    sasl_oauthbearer_assertion_claim_exp_seconds: int
    sasl_oauthbearer_assertion_claim_nbf_seconds: int


class JavaClientOptions(TypedDict, total=False):
    """Names that Kafka's Java client has for settings of librdkafka."""

    ssl_keystore_key: str
    ssl_keystore_certificate_chain: str
    ssl_truststore_location: str
    ssl_truststore_certificates: str
    sasl_mechanisms: Literal["GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    sasl_oauthbearer_client_credentials_client_id: str
    sasl_oauthbearer_client_credentials_client_secret: str
    send_buffer_bytes: int
    receive_buffer_bytes: int
    socket_connection_setup_timeout_max_ms: Milliseconds


class ConsumerClientOptions(TypedDict, total=False):
    """librdkafka's settings of consumers."""

    group_protocol: Literal["classic", "consumer"]
    group_remote_assignor: str
    coordinator_query_interval_ms: Milliseconds
    queued_min_messages: int
    queued_max_messages_kbytes: int
    fetch_queue_backoff_ms: Milliseconds
    fetch_max_bytes: int
    fetch_error_backoff_ms: Milliseconds


class ProducerClientOptions(TypedDict, total=False):
    """librdkafka's settings of producers."""

    queue_buffering_max_messages: int
    message_send_max_retries: int
    retries: int
    delivery_timeout_ms: Milliseconds
    message_timeout_ms: Milliseconds
    request_timeout_ms: Milliseconds
    batch_num_messages: int
    compression_level: int
    message_copy_max_bytes: int
    sticky_partitioning_linger_ms: Milliseconds
    queue_buffering_backpressure_threshold: int
    enable_gapless_guarantee: bool


class ProducerDefaults(ClientOptions, JavaClientOptions, ProducerClientOptions, total=False):
    """Settings that a bus may give to all of its producers."""

    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    batch_size: int
    linger_ms: Milliseconds
    buffer_memory: int
    max_block_ms: Milliseconds
    max_request_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | Compression
    enable_idempotence: bool
    transaction_timeout_ms: Milliseconds
    partitioner: Literal["murmur2", "murmur3", "round_robin"] | PartitionFunction


class ProducerFunctionOptions(ProducerDefaults, total=False):
    """Settings of ``@producer``, whose function then has a separate producer."""

    client_id: str


class ProducerOptions(ProducerFunctionOptions, total=False):
    """Settings of a producer opened with `EventBus.new_producer`."""

    transactional_id: str


class ConsumerDefaults(ClientOptions, JavaClientOptions, ConsumerClientOptions, total=False):
    """Settings that a bus may give to all of its consumers."""

    fetch_min_bytes: int
    fetch_max_wait_ms: Milliseconds
    max_partition_fetch_bytes: int
    check_crcs: bool
    session_timeout_ms: Milliseconds
    heartbeat_interval_ms: Milliseconds
    max_poll_interval_ms: Milliseconds
    partition_assignment_strategy: Assignors


class ConsumerOptions(ConsumerDefaults, total=False):
    """Settings of `EventBus.new_consumer`, besides what it reads."""

    client_id: str
    start: Start
    isolation_level: Isolation
    group_instance_id: str
    enable_auto_commit: bool
    auto_commit_interval_ms: Milliseconds
    request_timeout_ms: Milliseconds


class ReaderOptions(ConsumerOptions, total=False):
    """Settings of a consumer opened with `EventBus.reader`."""

    group: str | None


class NewConsumerOptions(ReaderOptions, total=False):
    """Options of `EventBus.new_consumer` besides the types of what it reads."""

    topics: str | Sequence[str]
    pattern: str | None
    partitions: Iterable[TopicPartition]
    on_assigned: Listener | None
    on_revoked: Listener | None
    on_lost: Listener | None
    interceptors: Sequence[ConsumerInterceptor]


class BusOptions(LogOptions, ProducerDefaults, ConsumerDefaults, total=False):
    """Settings of `EventBus`: its own, those of its log, and the defaults of its producers and consumers."""

    service: str | None
    client_id: str
    drain_timeout_ms: Milliseconds
    wedged_after_ms: Milliseconds
    slow_loop_ms: Milliseconds | None
    oauth_cb: OAuthCallback


class CallOptions(ConsumerDefaults, total=False):
    """Options of ``@bus.consumer`` that concern the call of the handler; ``@bus.every`` takes them too."""

    group: str
    client_id: str
    isolation_level: Isolation
    on_error: OnError
    retry: FailurePolicy | bool | int | Callable[..., Any]
    dead_letter: bool | str
    tx: object
    delivery: Delivery
    exactly_once: bool
    timeout: Duration | None
    commit_every: int | None
    commit_interval_ms: Milliseconds
    transaction_records: int
    transaction_timeout_ms: Milliseconds
    group_instance_id: str | None
    drain_timeout_ms: Milliseconds
    request_timeout_ms: Milliseconds


class HandlerDefaults(CallOptions, total=False):
    """Options that a `Router` may give to all of its handlers."""

    start: Start
    batch: bool | int
    concurrency: int | None
    order: Order
    ack: Ack
    filter: Callable[[ConsumerRecord], bool]
    replies: bool
    max_unfinished: int


class HandlerOptions(HandlerDefaults, total=False):
    """Options of ``@bus.consumer``; `eventbus.consumer` describes them."""

    pattern: str
    name: str
    middleware: Sequence[Middleware]


class ScheduleOptions(CallOptions, total=False):
    """Options of ``@bus.every`` besides its times."""

    middleware: Sequence[Middleware]

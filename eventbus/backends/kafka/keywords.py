"""The settings that ``kafka://`` passes to librdkafka, as keyword arguments with their types.

A setting's name is its keyword with dots in place of underscores: librdkafka's names have no underscores. `names` reads
its tables from here, and type checkers complete and check keyword arguments by these classes.
"""

from typing import Literal, TypedDict

from eventbus.durations import Milliseconds

# No `from __future__ import annotations` here: a class of text annotations takes ten times as long to create.


class JavaClientOptions(TypedDict, total=False):
    """Names that Kafka's Java client has for settings of librdkafka."""

    send_buffer_bytes: int
    receive_buffer_bytes: int
    socket_connection_setup_timeout_max_ms: Milliseconds
    ssl_truststore_location: str
    ssl_truststore_certificates: str
    ssl_keystore_certificate_chain: str
    ssl_keystore_key: str


class ClientOptions(TypedDict, total=False):
    """librdkafka's settings of every client. Logs other than ``kafka://`` ignore them."""

    client_rack: str
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    debug: str
    log_connection_close: bool
    message_max_bytes: int
    receive_message_max_bytes: int
    max_in_flight_requests_per_connection: int
    metadata_max_age_ms: Milliseconds
    topic_metadata_refresh_interval_ms: Milliseconds
    topic_metadata_refresh_fast_interval_ms: Milliseconds
    topic_metadata_refresh_sparse: bool
    topic_metadata_propagation_max_ms: Milliseconds
    topic_blacklist: str
    socket_timeout_ms: Milliseconds
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_keepalive_enable: bool
    socket_nagle_disable: bool
    socket_max_fails: int
    socket_connection_setup_timeout_ms: Milliseconds
    broker_address_ttl: int
    broker_address_family: Literal["any", "v4", "v6"]
    connections_max_idle_ms: Milliseconds
    reconnect_backoff_ms: Milliseconds
    reconnect_backoff_max_ms: Milliseconds
    retry_backoff_ms: Milliseconds
    retry_backoff_max_ms: Milliseconds
    statistics_interval_ms: Milliseconds
    api_version_request_timeout_ms: Milliseconds
    enable_metrics_push: bool
    metadata_recovery_strategy: Literal["none", "rebootstrap"]
    metadata_recovery_rebootstrap_trigger_ms: Milliseconds
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
    enable_ssl_certificate_verification: bool
    ssl_endpoint_identification_algorithm: Literal["none", "https"]
    sasl_mechanisms: str
    sasl_mechanism: Literal["GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    sasl_kerberos_service_name: str
    sasl_kerberos_principal: str
    sasl_kerberos_kinit_cmd: str
    sasl_kerberos_keytab: str
    sasl_kerberos_min_time_before_relogin: int
    sasl_username: str
    sasl_password: str
    sasl_oauthbearer_config: str
    enable_sasl_oauthbearer_unsecure_jwt: bool
    sasl_oauthbearer_method: Literal["default", "oidc"]
    sasl_oauthbearer_client_id: str
    sasl_oauthbearer_client_credentials_client_id: str
    sasl_oauthbearer_client_credentials_client_secret: str
    sasl_oauthbearer_client_secret: str
    sasl_oauthbearer_scope: str
    sasl_oauthbearer_extensions: str
    sasl_oauthbearer_grant_type: str
    sasl_oauthbearer_token_endpoint_url: str
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_assertion_algorithm: str
    sasl_oauthbearer_assertion_claim_aud: str
    sasl_oauthbearer_assertion_claim_exp_seconds: int
    sasl_oauthbearer_assertion_claim_iss: str
    sasl_oauthbearer_assertion_claim_jti_include: bool
    sasl_oauthbearer_assertion_claim_nbf_seconds: int
    sasl_oauthbearer_assertion_claim_sub: str
    sasl_oauthbearer_assertion_file: str
    sasl_oauthbearer_assertion_jwt_template_file: str
    sasl_oauthbearer_assertion_private_key_file: str
    sasl_oauthbearer_assertion_private_key_passphrase: str
    sasl_oauthbearer_assertion_private_key_pem: str
    sasl_oauthbearer_metadata_authentication_type: str


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
    enable_gapless_guarantee: bool
    compression_level: int
    message_copy_max_bytes: int
    sticky_partitioning_linger_ms: Milliseconds
    queue_buffering_backpressure_threshold: int

"""Settings that ``kafka://`` passes to librdkafka, which documents them. Other logs ignore them."""

from __future__ import annotations

from eventbus.settings.setting import Kind, Scope, Setting

_OF = {"librdkafka": "clients", "librdkafka producer": "producers", "librdkafka consumer": "consumers"}
_JAVA = {
    "socket_send_buffer_bytes": "send.buffer.bytes",
    "socket_receive_buffer_bytes": "receive.buffer.bytes",
    "socket_connection_setup_timeout_ms": "socket.connection.setup.timeout.max.ms",
    "ssl_ca_location": "ssl.truststore.location",
    "ssl_ca_pem": "ssl.truststore.certificates",
    "ssl_certificate_pem": "ssl.keystore.certificate.chain",
    "ssl_key_pem": "ssl.keystore.key",
    "sasl_mechanism": "sasl.mechanisms",
    "sasl_oauthbearer_client_id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl_oauthbearer_client_secret": "sasl.oauthbearer.client.credentials.client.secret",
}
"""Other names that are accepted; but for ``sasl.mechanisms`` they are those of Kafka's Java client."""
_CHOICES = {
    "client_dns_lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "broker_address_family": ("any", "v4", "v6"),
    "metadata_recovery_strategy": ("none", "rebootstrap"),
    "security_protocol": (
        "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "plaintext", "ssl", "sasl_plaintext", "sasl_ssl",
    ),
    "ssl_endpoint_identification_algorithm": ("none", "https"),
    "sasl_mechanism": ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "sasl_oauthbearer_method": ("default", "oidc"),
    "group_protocol": ("classic", "consumer"),
}  # fmt: skip
"""Type checkers and documentation read these words; librdkafka checks the value."""
_HIGH = ("security_protocol", "sasl_mechanism", "sasl_username", "sasl_password", "ssl_ca_location")
_MEDIUM = ("delivery_timeout_ms", "request_timeout_ms", "client_rack")


def _rows(scope: Scope, kind: Kind, names: str) -> tuple[Setting, ...]:
    doc = f"A setting of librdkafka's {_OF[scope]} on kafka://; other logs ignore it."
    return tuple(
        Setting(
            scope, name, kind, None, doc, None, choices=_CHOICES.get(name, ()), kafka=_JAVA.get(name),
            importance="high" if name in _HIGH else "medium" if name in _MEDIUM else "low",
        )
        for name in names.split()
    )  # fmt: skip


ROWS = (
    *_rows("librdkafka", "string", """
        client_rack client_dns_lookup debug topic_blacklist broker_address_family metadata_recovery_strategy
        security_protocol ssl_cipher_suites ssl_curves_list ssl_sigalgs_list ssl_key_location ssl_key_password
        ssl_key_pem ssl_certificate_location ssl_certificate_pem ssl_ca_location ssl_ca_pem ssl_ca_certificate_stores
        ssl_crl_location ssl_keystore_location ssl_keystore_password ssl_providers ssl_engine_location ssl_engine_id
        https_ca_location https_ca_pem ssl_endpoint_identification_algorithm sasl_mechanism
        sasl_kerberos_service_name sasl_kerberos_principal sasl_kerberos_kinit_cmd sasl_kerberos_keytab sasl_username
        sasl_password sasl_oauthbearer_config sasl_oauthbearer_method sasl_oauthbearer_client_id
        sasl_oauthbearer_client_secret sasl_oauthbearer_scope sasl_oauthbearer_extensions sasl_oauthbearer_grant_type
        sasl_oauthbearer_token_endpoint_url sasl_oauthbearer_sub_claim_name sasl_oauthbearer_assertion_algorithm
        sasl_oauthbearer_assertion_claim_aud sasl_oauthbearer_assertion_claim_iss sasl_oauthbearer_assertion_claim_sub
        sasl_oauthbearer_assertion_file sasl_oauthbearer_assertion_jwt_template_file
        sasl_oauthbearer_assertion_private_key_file sasl_oauthbearer_assertion_private_key_passphrase
        sasl_oauthbearer_assertion_private_key_pem sasl_oauthbearer_metadata_authentication_type
    """),
    *_rows("librdkafka", "boolean", """
        log_connection_close topic_metadata_refresh_sparse socket_keepalive_enable socket_nagle_disable
        enable_metrics_push enable_ssl_certificate_verification enable_sasl_oauthbearer_unsecure_jwt
        sasl_oauthbearer_assertion_claim_jti_include
    """),
    *_rows("librdkafka", "int", """
        message_max_bytes receive_message_max_bytes max_in_flight_requests_per_connection metadata_max_age_ms
        topic_metadata_refresh_interval_ms topic_metadata_refresh_fast_interval_ms topic_metadata_propagation_max_ms
        socket_timeout_ms socket_send_buffer_bytes socket_receive_buffer_bytes socket_max_fails
        socket_connection_setup_timeout_ms broker_address_ttl connections_max_idle_ms reconnect_backoff_ms
        reconnect_backoff_max_ms retry_backoff_ms retry_backoff_max_ms statistics_interval_ms
        api_version_request_timeout_ms metadata_recovery_rebootstrap_trigger_ms sasl_kerberos_min_time_before_relogin
        sasl_oauthbearer_assertion_claim_exp_seconds sasl_oauthbearer_assertion_claim_nbf_seconds
    """),
    *_rows("librdkafka consumer", "string", "group_protocol group_remote_assignor"),
    *_rows("librdkafka consumer", "int", """
        coordinator_query_interval_ms queued_min_messages queued_max_messages_kbytes fetch_queue_backoff_ms
        fetch_max_bytes fetch_error_backoff_ms
    """),
    Setting("librdkafka consumer", "request_timeout_ms", "int", None,
            "librdkafka's socket.timeout.ms of one consumer on kafka://; other logs ignore it.", None, own=True,
            librdkafka="socket.timeout.ms"),
    *_rows("librdkafka producer", "int", """
        queue_buffering_max_messages message_send_max_retries retries delivery_timeout_ms message_timeout_ms
        request_timeout_ms batch_num_messages compression_level message_copy_max_bytes sticky_partitioning_linger_ms
        queue_buffering_backpressure_threshold
    """),
    *_rows("librdkafka producer", "boolean", "enable_gapless_guarantee"),
)  # fmt: skip

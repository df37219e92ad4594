"""Settings of ``eventbus serve`` besides those of its log, under the keys of Kafka's ``server.properties``."""

from __future__ import annotations

from eventbus.settings.setting import Setting

ROWS = (
    Setting("server", "insecure", "boolean", False,
            "Serve other machines without TLS and SASL: what reaches the port may read and write everything.",
            kafka=""),
    Setting("server", "accept_replication_factor", "boolean", False,
            "Accept topics with a replication factor above 1, and keep one copy.", kafka=""),
    Setting("server", "socket_request_max_bytes", "int", 104_857_600,
            "The largest request; a larger one closes the connection.", 1),
    Setting("server", "unauthenticated_request_max_bytes", "int", 65_536,
            "The largest request before a connection has authenticated, where it must.", 1, kafka=""),
    Setting("server", "connection_in_flight_max_bytes", "long", 134_217_728,
            "Bytes of unanswered requests of one connection, after which nothing more is read from it.", 1, kafka=""),
    Setting("server", "in_flight_max_bytes", "long", 536_870_912,
            "Bytes of unanswered requests of all connections.", 1, kafka="queued.max.request.bytes",
            kafka_default="-1"),
    Setting("server", "connection_in_flight_max", "int", 1_000, "Unanswered requests of one connection.", 1, kafka=""),
    Setting("server", "max_connections", "int", 20_000, "Most connections.", kafka_default="2147483647"),
    Setting("server", "max_connections_per_ip", "int", 20_000, "Most connections of one address.",
            kafka_default="2147483647"),
    Setting("server", "connections_max_idle_ms", "long", 600_000,
            "A connection without a request for so long is closed.", 1),
    Setting("server", "handshake_timeout_ms", "long", 30_000,
            "How long a new connection may take to send its first request, and to authenticate where it must.", 1,
            kafka=""),
    Setting("server", "request_timeout_ms", "long", 120_000,
            "How long one request may take to arrive, and a peer to accept its answers.", 1, kafka=""),
    Setting("server", "connections_max_reauth_ms", "long", 0,
            "How long a login is valid; then the client authenticates again (KIP-368). 0: for ever."),
    Setting("server", "connection_failed_authentication_delay_ms", "int", 100,
            "How long a refused client waits for its answer; ten times that after five failures of its address."),
    Setting("server", "quota_window_num", "int", 11, "Number of windows whose mean rate a quota limits.", 1),
    Setting("server", "quota_window_size_seconds", "int", 1, "The length of one such window.", 1),
    Setting("server", "allow_everyone_if_no_acl_found", "boolean", False,
            "Whether everybody may use a resource that no ACL names."),
)  # fmt: skip

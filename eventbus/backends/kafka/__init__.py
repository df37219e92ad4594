"""``kafka://``: a Kafka cluster, through librdkafka (``confluent-kafka``).

librdkafka batches, sequences, retries and handles group membership; it has its own threads and blocks its callers. So
each producer and each consumer here has a thread, which communicates with the event loop once per batch, never per
record. Administration that ``confluent-kafka`` has no call for is requested with our own codec, see `wire`.

- ``backend``, ``settings``, ``sasl``, ``tokens``: connection and settings
- ``consumer``, ``poll_thread``, ``prefetch_buffer``, ``start_positions``, ``topic_identity``: reading
- ``producer``, ``producer_client``, ``partition_queue``, ``slices``, ``limits``: sending records
- ``delivery_reports``, ``transactions``: their outcome
- ``admin_handle``, ``topic_admin``, ``group_admin``, ``offset_admin``, ``wire``: administration
- ``broker_checks``, ``diagnosis``, ``client_statistics``, ``failures``: unreachable brokers, statistics and errors
"""

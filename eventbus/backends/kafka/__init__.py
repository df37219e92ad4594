"""``kafka://``: a Kafka cluster, through librdkafka (``confluent-kafka``).

librdkafka batches, sequences, retries and handles group membership; it has its own threads and blocks its callers. So
each producer and each consumer here has a thread, which communicates with the event loop once per batch, never per
record. Administration that ``confluent-kafka`` has no call for is requested with our own codec, see `wire`.

- ``backend``, ``settings``, ``sasl``, ``tokens``: connection and settings
- ``consumer``, ``member``, ``inbox``, ``beginnings``, ``topic_identity``: reading
- ``producer``, ``lane``, ``slices``, ``limits``, ``reports``, ``producer_client``, ``transactions``: writing
- ``admin_handle``, ``topic_admin``, ``group_admin``, ``offset_admin``, ``wire``: administration
- ``diagnosis``, ``watch``, ``counts``, ``failures``: what a cluster reports, and what fails
"""

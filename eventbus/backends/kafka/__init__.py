"""``kafka://``: a Kafka cluster, through librdkafka (``confluent-kafka``).

librdkafka batches, sequences, retries and handles group membership; it has its own threads and blocks its callers. So
each producer and each consumer here has a thread, which communicates with the event loop once per batch, never per
record. Administration that ``confluent-kafka`` has no call for is requested with our own codec, see `wire`.
"""

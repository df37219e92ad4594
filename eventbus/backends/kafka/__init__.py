"""``kafka://``: a real Kafka cluster, through librdkafka (``confluent-kafka``).

librdkafka batches, sequences, retries and keeps the place in a group; it has threads of its own and blocks its callers.
So each producer and each consumer here has one thread, which talks to the event loop once per batch, never per record.
What ``confluent-kafka`` has no call for (some of the administration) is asked with our own codec, see `wire`.
"""

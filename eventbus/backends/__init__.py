"""The backends of logs: embedded (memory, file) and Kafka.

- ``base``: the protocols that every backend implements; ``urls`` chooses one
- ``engine``, ``embedded``, ``flushes``, ``accumulator``, ``delivery``: ``memory://`` and ``file://``
- ``membership``: a member of a group, its heartbeats, and ``max_poll_interval_ms``
- ``embedded_consumer``, ``embedded_producer``, ``embedded_transactions``: the clients of an embedded log
- ``shared_reader``: a log in memory for readers in other processes
- ``kafka``: ``kafka://``
"""

"""Records that become due at a time: the queue of one partition, and retry partitions. Pure: no clock, no I/O."""

"""The parts of a producer: serialization, records that wait for their topic, and the deadline of its last flush."""

"""Bytes to objects and back, in Kafka's byte formats."""

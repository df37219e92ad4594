"""Avro's bytes to Python's objects and back: functions generated for a schema and a type."""

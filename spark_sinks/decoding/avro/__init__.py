"""Avro to Arrow, a column at a time: one pass of numpy per field over all records of one schema."""

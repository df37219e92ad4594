"""Convert Avro to Arrow column by column, with one numpy pass per field over all records of a schema."""

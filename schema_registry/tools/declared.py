"""What a bus declares of its topics: the subjects that its Avro types are under, written and read."""

"""The backends of logs: embedded (memory, file) and Kafka."""

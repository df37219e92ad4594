"""The seam to the logs: embedded (memory, file) and Kafka."""

"""An event bus for Python services on a Kafka-format log."""

"""``format("eventbus")``: a log directory as a source of Spark, with the options of Spark's Kafka source."""

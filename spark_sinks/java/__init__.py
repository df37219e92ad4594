"""The JVM: finding Java, starting it, speeding up its start, and fetching jars that pyspark lacks."""

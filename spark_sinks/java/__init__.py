"""The JVM: which Java, how it is started, what makes it start fast, and jars that pyspark does not bring."""

"""The settings table, like Kafka's ``ConfigDef``: all settings, their names, and the parser of their values."""

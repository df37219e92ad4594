"""Tables: the latest state of each key of a topic in memory, for handlers to look up."""

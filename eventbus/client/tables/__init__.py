"""Tables: what a topic says of each key, in memory, for handlers to look up."""

"""Looking after a table: how far it is, whether it holds what the topic held, and mending its quarantine."""

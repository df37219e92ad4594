"""The parts of a consumer: its fetch buffer, its commits, and what is undone before a record is read."""

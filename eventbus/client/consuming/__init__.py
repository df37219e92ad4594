"""The parts of a consumer: the fetch buffer, commits, and undoing interceptors' changes."""

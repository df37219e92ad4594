"""The parts of one run of a bus: checks at its start, signals, the watch over its health, and its one error."""

"""Decode a topic's values into rows, and determine the columns of its table."""

"""A batch: one run for each item, with a line of output for each."""

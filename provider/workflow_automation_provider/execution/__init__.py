"""The steps of a task, and the state that it keeps across tries."""

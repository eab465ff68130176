"""What a task does, in order, with what it remembers across tries."""

__all__: list[str] = []

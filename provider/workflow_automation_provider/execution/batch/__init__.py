"""
A batch: one run for each item.

- ``starter`` is the way of a batch, from its first check to its end: read it first.
- ``source``, ``json_lines`` and ``location`` read the items.
- ``in_flight``, ``sender``, ``pace`` and ``failures`` send them.
- ``results`` has the result of each item, and ``record`` keeps them in the task's state store.
- ``output``, ``report`` and ``progress`` show them: in a file, in an error and in the log.
"""

"""
A batch: one run for each item.

- ``run_batch`` is the way of a batch, from its first check to its end: read it first. ``options``
  has what the task asks for.
- ``source``, ``json_lines`` and ``location`` read the items.
- ``threads`` and ``failures`` send them.
- ``ends`` waits for the ends of their runs, and reads them.
- ``item_results`` has the result of each item, and ``batch_record`` keeps them in the task's state
  store.
- ``output``, ``summary`` and ``progress`` show them: in a file, in an error and in the log.
"""

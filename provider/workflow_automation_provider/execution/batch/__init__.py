"""
Start a run for each item of a batch, each at most once.

``starter`` is where to begin: it has the ``engine`` open the items that the ledger allows, in chunks, and the ``sender`` send
them as the ``throttle`` allows; ``results`` has their results, and ``report`` the words. ``source`` reads the items, ``output``
writes the results, and :mod:`~workflow_automation_provider.execution.batch_state` records the results for later tries.
"""

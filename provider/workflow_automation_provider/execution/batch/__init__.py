"""
Start a run for each item of a batch, each at most once.

``starter`` is where to begin: it has the ``driver`` open the items that the ledger and ``window`` allow, and the
``sender`` send them as the ``throttle`` allows; ``results`` has their results, and ``report`` the words. ``source``
reads the items, and :mod:`~workflow_automation_provider.execution.batch_state` records the results for later tries.
"""

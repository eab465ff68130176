"""
Start a run for each item of a batch, each at most once.

``engine`` is where to begin: it hands the items that ``windows`` opens to threads, at the ``pace`` of the
service. ``source`` reads the items, ``report`` keeps what became of them, and
:mod:`~workflow_automation_provider.execution.batch_state` records it for later tries.
"""

from __future__ import annotations

__all__: list[str] = []

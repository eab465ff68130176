"""The counts of a batch, as its entries, its result and the XCom ``progress`` have them."""

from __future__ import annotations


def batch_counts(total: int, **of: int) -> dict[str, int]:
    """
    Return the counts of a batch.

    :param of: how many items have which status; the others were not started
    """
    none = {"started": 0, "rejected": 0, "unknown": 0, "unidentified": 0}
    return {"total": total, **none, **of, "not_started": total - sum(of.values())}

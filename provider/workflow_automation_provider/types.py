"""The types of arguments and results, and their constants, to import from one place."""

from __future__ import annotations

from workflow_automation_provider.client.file_format import (
    DEFAULT_FILE_FORMAT,
    FileFormat,
    FormatWord,
)
from workflow_automation_provider.client.files import Element, File
from workflow_automation_provider.client.protocol import Run
from workflow_automation_provider.execution.batch.item_results import (
    BatchCounts,
    BatchItem,
    BatchSummary,
    ItemStatus,
)
from workflow_automation_provider.execution.batch.progress import PROGRESS_XCOM
from workflow_automation_provider.execution.batch.run_batch import OnRejected
from workflow_automation_provider.execution.batch.source import Batch
from workflow_automation_provider.execution.record.entries import RunResult
from workflow_automation_provider.execution.run.start import OnUnknownStart
from workflow_automation_provider.execution.upload import UploadRequest, UploadResult

__all__ = [
    "DEFAULT_FILE_FORMAT",
    "PROGRESS_XCOM",
    "Batch",
    "BatchCounts",
    "BatchItem",
    "BatchSummary",
    "Element",
    "File",
    "FileFormat",
    "FormatWord",
    "ItemStatus",
    "OnRejected",
    "OnUnknownStart",
    "Run",
    "RunResult",
    "UploadRequest",
    "UploadResult",
]

"""
What a type checker accepts as ``file_format``: checked by mypy in ``make lint``, never run.

An ignored error that mypy no longer sees is an error itself.
"""

from __future__ import annotations

import json

from workflow_automation_provider.operators.flows import UploadFilesOperator

plain = {"filename": "name", "body": "base64"}
read: dict[str, str] = json.loads('{"filename": "name", "body": "base64"}')


UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format=plain)
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format=read)
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format={"body": "base64"})
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format="data_url")
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format="b64")  # type: ignore[arg-type]
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format={"size": 1})  # type: ignore[dict-item]
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format=5)  # type: ignore[arg-type]

"""
What users may import, and with which arguments: a change of it is deliberate, or a mistake that shows here.

Of a module that users import, ``__all__`` says what it offers. Any other offers what has no underscore.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import pkgutil
import typing
from pathlib import Path

import pytest

import workflow_automation_provider
from code_blocks import read_code_blocks

PACKAGE = workflow_automation_provider.__name__
MODULES = [
    PACKAGE,
    *(found.name for found in pkgutil.walk_packages(workflow_automation_provider.__path__, f"{PACKAGE}.")),
]

FACADES = {f"{PACKAGE}.testing"}  # offer what other modules define

PROJECT = Path(__file__).parents[2]

# Module → name, or class.member → its arguments, its values, or what it is. Whatever changes here is told in
# CHANGELOG.md; what is listed nowhere may change at any time.
PUBLIC = {
    "assets": {
        "create_asset": "(*, base_url, flow_id, extra=None)",
        "convert_asset_to_openlineage": "(asset, lineage_context)",
        "sanitize_uri": "(uri)",
        "uri_of": "(base_url, flow_id)",
    },
    "client.files": {
        "DEFAULT_FILE_FORMAT": "{'name': 'name', 'content_type': 'content_type', 'content': 'base64'}",
        "Element": "a type",
        "File": "(name, size, content_type, source, open, fingerprint=Ellipsis)",
        "File.location": "property",
        "File.read_ahead": "property",
        "FileFormat": "a type",
        "FormatWord": "'name', 'base64', 'data_url', 'content_type', 'size'",
    },
    "client.protocol": {
        "Run": "(run_id, run_link, flow_id=None, response=None)",
    },
    "decorators.flows": {
        "trigger_flow_task": "(python_callable=None, *, multiple_outputs=True, **kwargs)",
    },
    "exceptions": {
        "Accepted": "NO, MAYBE, YES",
        "BatchInterruptedError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "BusyError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "Code": "INVALID, FILE, NOT_SENT, BUSY, REJECTED, KEY_REJECTED, NOT_FOUND, TOO_LARGE, REDIRECTED, START_UNKNOWN, START_REVOKED, UNIDENTIFIED, UPLOAD_UNKNOWN, RUN_FAILED, RUN_OVERDUE, RUN_SILENT, BATCH_INTERRUPTED",
        "FileUnavailableError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "InvalidRequestError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "NotSentError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "OutcomeUnknownError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "OutcomeUnknownError.accepted": "Accepted.MAYBE",
        "RejectedError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "UnidentifiedError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "UnidentifiedError.accepted": "Accepted.YES",
        "RunFailedError": "(message, *, result=None, **facts)",
        "RunFailedError.accepted": "Accepted.YES",
        "RunTimeoutError": "(message, *, result=None, **facts)",
        "WorkflowAutomationError": "(message, *, consequence='', next_step='', code=None, accepted=None, status=None, quote='', retry_after=None, conn_id=None, flow_id=None, run_id=None)",
        "WorkflowAutomationError.accepted": "Accepted.NO",
        "WorkflowAutomationError.reason": "property",
    },
    "execution.batch": {"OnRejected": "'fail', 'skip'", "PROGRESS_XCOM": "'progress'"},
    "execution.batch_source": {"Batch": "a type"},
    "execution.batch_record": {
        "BatchCounts": "total, started, rejected, unknown, remaining",
        "BatchSummary": "total, started, rejected, unknown, remaining, path",
        "BatchItem": "index, status, run_id, run_link, flow_id, response, why",
        "ItemStatus": "'started', 'unidentified', 'rejected', 'unknown', 'not started'",
    },
    "execution.ledger": {"RunResult": "run_id, run_link, flow_id, response, result"},
    "execution.start": {"OnUnknownStart": "'fail', 'start_again'"},
    "taskflow": {
        "trigger_flow_once": "(name, *, inputs=mappingproxy({}), flow_id=None, workflow_automation_conn_id='workflow_automation_default', on_unknown_start='fail', send_retry_timeout=60.0, context=None)",
    },
    "execution.upload": {
        "UploadRequest": "files, count, bytes, response",
        "UploadResult": "run_id, files, bytes, request_count, requests",
    },
    "get_provider_info": {"get_provider_info": "()"},
    "hooks.workflow_automation": {
        "WorkflowAutomationHook": "(workflow_automation_conn_id='workflow_automation_default')",
        "WorkflowAutomationHook.conn_name_attr": "'workflow_automation_conn_id'",
        "WorkflowAutomationHook.default_conn_name": "'workflow_automation_default'",
        "WorkflowAutomationHook.conn_type": "'workflow_automation'",
        "WorkflowAutomationHook.hook_name": "'Workflow Automation'",
        "WorkflowAutomationHook.close": "(self)",
        "WorkflowAutomationHook.connection": "property",
        "WorkflowAutomationHook.extra": "property",
        "WorkflowAutomationHook.get_conn": "(self)",
        "WorkflowAutomationHook.stop": "(self)",
        "WorkflowAutomationHook.trigger_flow": "(self, inputs=mappingproxy({}), flow_id=None)",
        "WorkflowAutomationHook.upload_files": "(self, run_id, files, flow_id=None)",
        "WorkflowAutomationHook.test_connection": "(self)",
    },
    "links": {
        "FlowRunLink": "()",
        "FlowRunLink.name": "'Open run'",
        "FlowRunLink.xcom_key": "property",
        "FlowRunLink.persist": "(cls, context, run_link, *, at_once=True)",
        "FlowRunLink.get_link": "(self, operator, *, ti_key)",
    },
    "notifications.flows": {
        "FlowNotifier": "(inputs, flow_id=None, workflow_automation_conn_id='workflow_automation_default', **kwargs)",
        "FlowNotifier.template_fields": "('inputs', 'flow_id', 'workflow_automation_conn_id')",
        "FlowNotifier.get_template_env": "(self, dag=None)",
        "FlowNotifier.notify": "(self, context)",
        "FlowNotifier.async_notify": "(self, context)",
    },
    "operators.batch": {
        "TriggerFlowBatchOperator": "(*, batch, flow_id=not given, workflow_automation_conn_id='workflow_automation_default', max_concurrency=16, max_starts_per_second=None, on_unknown_start='fail', on_rejected='fail', output_path=None, send_retry_timeout=60.0, **kwargs)",
        "TriggerFlowBatchOperator.template_fields": "('batch', 'flow_id', 'workflow_automation_conn_id', 'output_path')",
        "TriggerFlowBatchOperator.template_fields_renderers": "{'batch': 'json'}",
    },
    "operators.flows": {
        "TriggerFlowOperator": "(*, inputs=not given, flow_id=not given, workflow_automation_conn_id='workflow_automation_default', wait_for_completion=False, callback_input='callback_url', completion_timeout=datetime.timedelta(days=1), files=None, heartbeat_timeout=None, on_run_failed='fail', on_unknown_start='fail', claim_timeout=datetime.timedelta(seconds=60), send_retry_timeout=60.0, multiple_outputs=True, **kwargs)",
        "TriggerFlowOperator.template_fields": "('inputs', 'flow_id', 'workflow_automation_conn_id', 'files')",
        "TriggerFlowOperator.template_fields_renderers": "{'inputs': 'json', 'files': 'json'}",
        "TriggerFlowOperator.operator_extra_links": "tuple",
        "TriggerFlowOperator.output": "property",
        "TriggerFlowOperator.execute_complete": "(self, context, event=None, waiting=None, ti_id=None)",
        "UploadFilesOperator": "(*, run_id, files, flow_id=not given, workflow_automation_conn_id='workflow_automation_default', file_format=None, files_per_request=None, max_request_bytes=None, send_retry_timeout=60.0, **kwargs)",
        "UploadFilesOperator.template_fields": "('run_id', 'files', 'flow_id', 'workflow_automation_conn_id')",
        "UploadFilesOperator.template_fields_renderers": "{'files': 'json'}",
    },
    "testing": {
        "Callback": "(status='success', result=None, message=None, delay=0.0, then=(), started=None, claims=1, running=(), obeys=True, names_run=True, body=None, token=None, attempts=4, wait=1.0, input='callback_url', flow_id=None, inputs=None, times=None)",
        "Callback.shown": "(self)",
        "Callback.calls": "property",
        "Callback.first_steps": "(self, run, run_link)",
        "Callback.words": "(self, run)",
        "Callback.url_in": "(self, inputs)",
        "Callback.body_of": "(self, run)",
        "Callback.matches": "(self, flow_id, inputs)",
        "CallbackEndpoint": "(host='127.0.0.1', port=0)",
        "CallbackEndpoint.url": "property",
        "CallbackEndpoint.start": "(self)",
        "CallbackEndpoint.stop": "(self)",
        "Callbacks": "()",
        "Callbacks.add": "(self, status='success', result=None, message=None, **options)",
        "Callbacks.all": "(self)",
        "Callbacks.clear": "(self)",
        "Callbacks.take": "(self, flow_id, inputs)",
        "DEMO_FLOW_ID": "'demo-flow'",
        "DEMO_KEY": "Key",
        "Fault": "(kind, operation=None, flow_id=None, inputs=None, times=1, status=None, body=None, headers=<factory>, location=None, retry_after=None, seconds=None, limit=None)",
        "Fault.accepts": "property",
        "Fault.responds": "property",
        "Fault.matches": "(self, target)",
        "Faults": "()",
        "Faults.add": "(self, kind, **options)",
        "Faults.all": "(self)",
        "Faults.clear": "(self)",
        "Faults.take": "(self, target)",
        "Journal": "(path)",
        "Journal.runs": "(self)",
        "Journal.worked": "(self)",
        "Journal.uploads": "(self)",
        "Journal.requests": "(self, operation=None)",
        "Journal.callbacks": "(self)",
        "JournalError": "",
        "Key": "(value, flow_id, name='key', max_runs=None, expires_on=None)",
        "Key.expired": "(self, now=None)",
        "LocalService": "(keys=(Key(flow_id='demo-flow', name='demo', max_runs=None, expires_on=None),), flows=None, journal=None, host='127.0.0.1', port=0, *, certfile=None, keyfile=None, run_id_type='string', first_run_id=1001, public_url=None, parse_limit=67108864)",
        "LocalService.keys": "property",
        "LocalService.url": "property",
        "LocalService.base_url": "property",
        "LocalService.runs": "property",
        "LocalService.uploads": "property",
        "LocalService.airflow_connection": "(self, key=None, extra=None)",
        "LocalService.start": "(self)",
        "LocalService.stop": "(self)",
        "Request": "(method, path, operation, flow_id, run_id, status, fault, outcome, key_sent, size, at)",
        "Run": "(run_id, flow_id, inputs, by, key, at)",
        "ScriptedCallback": "(callback, remaining, applied=0)",
        "ScriptedCallback.as_json": "(self)",
        "SentCallback": "(run_id, flow_id, url, body, status, response, error, attempts, at)",
        "ScriptedFault": "(fault, remaining, struck=0)",
        "ScriptedFault.as_json": "(self)",
        "Upload": "(run_id, flow_id, files, key, size, sha256, at)",
        "Work": "(run_id, flow_id, inputs, at)",
    },
    "testing.context": {
        "StateStore": "()",
        "StateStore.get": "(self, key, default=None)",
        "StateStore.set": "(self, key, value, *, retention=None)",
        "StateStore.delete": "(self, key)",
        "make_context": "(task, *, try_number=1, store='new', **more)",
    },
    "testing.control_client": {
        "ControlClient": "(url, verify=True)",
        "ControlClient.add_fault": "(self, kind, **options)",
        "ControlClient.faults": "(self)",
        "ControlClient.clear_faults": "(self)",
        "ControlClient.add_callback": "(self, **options)",
        "ControlClient.callbacks": "(self)",
        "ControlClient.clear_callbacks": "(self)",
        "ControlClient.journal": "(self)",
        "ControlClient.healthy": "(self)",
        "ControlClient.close": "(self)",
    },
    "testing.pytest_plugin": {
        "CONNECTION_ID": "'workflow_automation_default'",
        "Connect": "(self, conn_id='workflow_automation_default', key=None, *, extra=None)",
        "MakeContext": "(self, task, *, try_number=1, **more)",
        "pytest_configure": "()",
        "pytest_unconfigure": "()",
        "workflow_automation_callback_base_url": "(workflow_automation_connect, workflow_automation_service)",
        "workflow_automation_connect": "(workflow_automation_service, monkeypatch)",
        "workflow_automation_connection": "(workflow_automation_connect)",
        "workflow_automation_context": "()",
        "workflow_automation_keys": "()",
        "workflow_automation_service": "(workflow_automation_keys, tmp_path)",
    },
}

# The modules above that offer more to the rest of the package.
PARTLY_PUBLIC = {
    "client.files",
    "client.protocol",
    "execution.batch",
    "execution.batch_record",
    "execution.batch_source",
    "execution.ledger",
    "execution.start",
    "execution.upload",
    "get_provider_info",
    "testing.context",
}

# Methods of public classes that are for Airflow, or for the rest of the package alone.
INNER_METHODS = {
    "WorkflowAutomationError.with_facts",
    "WorkflowAutomationHook.get_connection_form_widgets",
    "WorkflowAutomationHook.get_ui_field_behaviour",
    "WorkflowAutomationHook.redact_also",
    "WorkflowAutomationHook.located",
    "WorkflowAutomationHook.prepare_trigger",
    "WorkflowAutomationHook.prepare_uploads",
    "WorkflowAutomationHook.send_trigger",
}


def offered_by(module):
    names = getattr(importlib.import_module(module), "__all__", None)
    return [name for name in definitions(module) if name[0] != "_"] if names is None else names


def tree_of(module):
    file = importlib.import_module(module).__file__
    assert file is not None
    return ast.parse(Path(file).read_text())


def definitions(module):
    """Return name → docstring of all that a module defines at its top."""
    found = {}
    body = tree_of(module).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = ast.get_docstring(statement)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = text
                    case _:
                        found[name] = None
    return found


# What a module offers of another, and which.
ALSO_OFFERED = {f"{PACKAGE}.operators.flows": {"UploadFilesOperator": f"{PACKAGE}.operators.uploads"}}


@pytest.mark.parametrize("module", MODULES)
class TestModule:
    def test_offers_what_it_defines(self, module):
        """Nothing that is imported slips out, and nothing public is forgotten."""
        if module in FACADES:
            assert all(hasattr(importlib.import_module(module), name) for name in offered_by(module))
        else:
            defined = {name for name in definitions(module) if not name.startswith("_")}
            assert {*offered_by(module)} == defined | ALSO_OFFERED.get(module, {}).keys()

    def test_each_name_is_documented(self, module):
        defined = definitions(module)
        for source in ALSO_OFFERED.get(module, {}).values():
            defined |= definitions(source)
        if module in FACADES:
            for below in MODULES:
                defined |= definitions(below) if below.startswith(f"{module}.") else {}
        assert [name for name in offered_by(module) if not defined[name]] == []


def described(value):
    """Return how a name is listed in PUBLIC."""
    if typing.is_typeddict(value):
        return ", ".join(value.__annotations__)
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ", ".join(value.__members__)
    if typing.get_origin(value) is typing.Literal:
        return ", ".join(map(repr, typing.get_args(value)))
    if typing.get_origin(value):
        return "a type"
    if isinstance(value, enum.Enum):
        return str(value)
    if inspect.isclass(value) and issubclass(value, Exception) and value.__init__ is Exception.__init__:
        return ""
    if isinstance(value, property | functools.cached_property):
        return "property"
    if isinstance(value, classmethod | staticmethod):
        return arguments(value.__func__)
    if getattr(value, "_is_protocol", False):
        return arguments(value.__call__)
    if callable(value):
        return arguments(value)
    try:
        return repr(ast.literal_eval(repr(value)))
    except (SyntaxError, ValueError):
        return type(value).__name__


def arguments(function):
    """Return names and defaults, without the types: those are mypy's."""
    signature = inspect.signature(function)
    bare = []
    for parameter in signature.parameters.values():
        default = ... if " at 0x" in repr(parameter.default) else parameter.default
        bare.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def members(value):
    """
    Return name → what a class defines itself, or has of a private class beside it.

    Without the fields of a dataclass: they are its arguments.
    """
    if not inspect.isclass(value) or typing.is_typeddict(value) or issubclass(value, enum.Enum):
        return {}
    private = [
        base for base in value.__bases__ if base.__module__ == value.__module__ and base.__name__[0] == "_"
    ]
    own = {name: member for found in (*private, value) for name, member in vars(found).items()}
    fields = own.get("__dataclass_fields__", {})
    return {
        name: member
        for name, member in own.items()
        if not name.startswith("_") and name not in fields and f"{value.__name__}.{name}" not in INNER_METHODS
    }


def surface(module):
    """Return what a module offers to users, as PUBLIC lists it."""
    names = [name for name in PUBLIC[module] if "." not in name]
    if module not in PARTLY_PUBLIC:
        names = offered_by(f"{PACKAGE}.{module}")
    found = {}
    for name in names:
        value = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        found[name] = described(value)
        found |= {f"{name}.{member}": described(it) for member, it in members(value).items()}
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    assert surface(module) == PUBLIC[module]


def imports_of(source):
    """Return module and name of what Python code imports of the package."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith(PACKAGE):
                yield from ((module.removeprefix(f"{PACKAGE}."), name.name) for name in names)
            case ast.Import(names=names):
                yield from ((name.name, "") for name in names if name.name.startswith(PACKAGE))


SHOWN = [PROJECT / "README.md", *PROJECT.glob("docs/*.md"), *PROJECT.glob("example_dags/*.py")]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_documentation_and_examples_import_only_public_names(path):
    if path.suffix == ".md":
        sources = [block.text for block in read_code_blocks(path, "python") if PACKAGE in block.text]
    else:
        sources = [path.read_text()]
    shown = [found for source in sources for found in imports_of(source)]
    assert [(module, name) for module, name in shown if name not in PUBLIC.get(module, {})] == []

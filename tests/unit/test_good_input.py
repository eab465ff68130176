"""What a hostile reading of client, files and batches found: what is shown, what is sent, and good input that is accepted."""

from __future__ import annotations

import json
import os

import pytest

from raw_server import Server
from workflow_automation_provider.client import protocol
from workflow_automation_provider.client.files import upload_bodies
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.files.sources import resolve

KEY = "wak-Zq7xK9TbW2mQ4r"


@pytest.fixture
def respond(request):
    """Trigger by path at a server that responds with these bytes of a body, and return the outcome."""

    def send(body, *headers, length=None):
        size = len(body) if length is None else length
        head = "\r\n".join(
            ("HTTP/1.1 201 Created", f"Content-Length: {size}", "Connection: close", *headers)
        )
        # The second part closes the connection.
        server = Server(lambda n: None if n else f"{head}\r\n\r\n".encode() + body)
        request.addfinalizer(server.close)
        client = FlowClient(server.url, api_key=KEY, timeout=3)
        return client.trigger(
            client.checked_request(protocol.trigger_request(server.url, {"a": {}}, "flow"))
        )

    return send


@pytest.mark.parametrize(
    "url",
    [
        "sftp://john@corp.example:Passw0rd-Secret@files.example/x",  # the user is an e-mail address
        "sftp://report:2024/Pw-Secret@files.example/x",  # digits and a slash, as a port has
    ],
)
@pytest.mark.parametrize("place", ["files", "batch", "output_path"])
def test_a_password_in_a_url_is_not_shown(batch, service, url, place):
    names = {
        "files": lambda: resolve(url),
        "batch": lambda: batch(url),
        "output_path": lambda: batch([{"n": 1}], output_path=url),
    }
    with pytest.raises((FileUnavailableError, InvalidRequestError)) as caught:
        names[place]()
    assert "Secret" not in str(caught.value)
    assert service.journal.requests() == []


def test_a_path_that_is_not_utf_8_is_refused_where_it_is_sent(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)  # noqa: PTH102
    with open(folder + b"/data.csv", "wb") as file:  # noqa: PTH123
        file.write(b"x")
    found = resolve(f"{tmp_path}/**/data.csv")
    upload_bodies("flow", "1", found, "name")
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        upload_bodies("flow", "1", found, "path")


@pytest.mark.parametrize("host", ["https://flows", "https://trigger", "https://public/upload"])
def test_a_host_that_is_named_like_an_operation_is_a_base_url(host):
    assert FlowClient(host, api_key=KEY).base_url == host


def test_a_long_integer_beside_the_run_id_does_not_cost_it(respond):
    assert respond(b'{"run_id": "1001", "n": ' + b"9" * 5000 + b"}").run_id == "1001"


def test_a_whole_document_counts_although_a_longer_one_was_announced(respond):
    """The body decides; the error does not even quote the run_id."""
    assert respond(b'{"run_id": "1001"}', length=50).run_id == "1001"


def test_an_output_may_be_all_that_one_may_write(batch, service, bucket, monkeypatch):
    """A policy such as ``bucket/reports/runs*``: the probe's name does not begin as the output's does."""
    s3fs = pytest.importorskip("s3fs")
    pipe = s3fs.S3FileSystem._pipe_file

    async def allowed(self, path, *args, **options):
        if not path.rpartition("/")[2].startswith("runs"):
            raise PermissionError("Access Denied")
        return await pipe(self, path, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_pipe_file", allowed)
    batch([{"n": 1}], output_path=bucket.url("reports/runs.jsonl"))
    assert len(service.runs) == 1


def test_an_error_of_the_connection_is_shown_once(batch, service, monkeypatch):
    """With a ``key``, each item asks for the client, whose error is taken for the item's."""
    connection = {"conn_type": "workflow_automation", "host": "http://plain.example"}
    monkeypatch.setenv("AIRFLOW_CONN_BAD", json.dumps(connection))
    with pytest.raises(InvalidRequestError) as caught:
        batch([{"n": n} for n in range(30)], key="n", workflow_automation_conn_id="bad")
    assert str(caught.value).count("plain.example") == 1

"""
Buckets of an S3 stand-in in this process.

Tests write to what it keeps, and the code under test asks it by HTTP.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import botocore.session
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends
from moto.s3.utils import compute_checksum
from werkzeug.serving import make_server

# Each session would read the descriptions of AWS anew, which takes longer than most tests.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Run the stand-in, and yield its port."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    # Without moto's dispatcher, which looks through all services of AWS for each request.
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.port
    server.shutdown()
    thread.join()


class Bucket:
    """A bucket, and the name of a connection to it."""

    def __init__(self, name: str) -> None:
        self._store = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._store.create_bucket(name, "us-east-1")
        self.name = name
        self.conn_id = f"s3_{name.replace('-', '_')}"

    def put(self, **contents: bytes) -> None:
        """Write objects: two underscores in a name stand for a slash."""
        for key, content in contents.items():
            self.write(key.replace("__", "/"), content)

    def write(self, key: str, content: bytes) -> None:
        checksum = compute_checksum(content, "CRC32").decode()
        written = self._store.put_object(self.name, key, content, checksum_value=checksum)
        written.checksum_algorithm = "CRC32"  # as of what an SDK writes

    def read(self, key: str) -> bytes:
        found = self._store.get_object(self.name, key)
        assert found is not None
        return found.value

    def delete(self, key: str) -> None:
        self._store.delete_object(self.name, key)

    def keys(self) -> list[str]:
        return [*self._store.get_bucket(self.name).keys]

    def unfinished(self) -> list[str]:
        """Return the uploads in parts that were neither completed nor aborted."""
        return [*self._store.list_multipart_uploads(self.name)]

    def url(self, path: str = "") -> str:
        return f"s3://{self.conn_id}@{self.name}/{path}"

    def connection(self, port: int, **config: object) -> dict[str, Any]:
        """
        Return the fields of an Airflow connection.

        :param port: of the stand-in, or of a proxy in front of it
        :param config: of botocore
        """
        # One attempt of botocore's own for each of s3fs', or a store that is down takes a minute. A
        # loaded machine may take longer than s3fs' 5 seconds to connect.
        config = {"retries": {"max_attempts": 0}, "connect_timeout": 60, **config}
        extra = {
            "endpoint_url": f"http://127.0.0.1:{port}",
            "region_name": "us-east-1",
            "config_kwargs": config,
        }
        return {"conn_type": "aws", "login": "testing", "password": "testing", "extra": extra}
